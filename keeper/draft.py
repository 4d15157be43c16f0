"""The replies to one notes request, taken together line by line. Pure.

A line that passed is never replaced by a later reply, and a rule named in any reply is kept (lesson 7: a reply that was asked for
again left out the rule that the first one had; it stood, and the rule was lost). A line in question is replaced by the first good
answer to it. Writing a doubted line again unchanged answers a doubt, but not what the text or the sums contradict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from keeper.checks import Finding
from keeper.notes import Closed, Line, Opened, Remove, Rule, Set, Unchanged, decimal


@dataclass(frozen=True, slots=True)
class Doubt:
    """What a check saw, and the lines of the first reply that it is about (none: a line is missing)."""

    finding: Finding
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """By what they are about: the lines that passed, and what is still in question."""

    passed: Mapping[str, tuple[Line, ...]] = field(default_factory=dict)
    doubted: Mapping[str, Doubt] = field(default_factory=dict)

    @property
    def asked(self) -> tuple[Finding, ...]:
        """What the model is to be asked about."""
        return tuple(doubt.finding for doubt in self.doubted.values() if doubt.finding.asked)


def about(line: Line) -> str:
    """What a line is about: a name in lower case, or its own text."""
    match line:
        case Set() | Remove() | Unchanged():
            return line.name.casefold()
        case Rule():
            return f"+ {line.text}"
        case Opened() | Closed():
            return f"? {line.text}"
        case _:
            return line.text


def fold(draft: Draft, lines: Sequence[Line], findings: Sequence[Finding], first: bool) -> Draft:
    """The draft after one more reply and what the checks found in it."""
    groups: dict[str, tuple[Line, ...]] = {}
    for line in lines:
        groups[about(line)] = (*groups.get(about(line), ()), line)
    found = _worst(findings)
    passed, doubted = dict(draft.passed), dict(draft.doubted)
    for key, group in groups.items():
        if key in passed:
            continue
        finding, before = found.get(key), doubted.get(key)
        if finding is None or (before is not None and finding.stands == finding.line and _same(before.lines, group)):
            passed[key] = group
            doubted.pop(key, None)
        elif first:
            doubted[key] = Doubt(finding, group)
    if first:
        doubted.update({key: Doubt(f) for key, f in found.items() if f.line is None})
        return Draft(passed, doubted)
    return Draft(passed, {key: _asked_once(doubt) for key, doubt in doubted.items()})


def _worst(findings: Sequence[Finding]) -> dict[str, Finding]:
    """One finding for each thing: the first that leaves nothing of the line standing, else the first."""
    found: dict[str, Finding] = {}
    for finding in findings:
        key = finding.key if finding.line is None else about(finding.line)
        if key not in found or (finding.stands is None and found[key].stands is not None):
            found[key] = finding
    return found


def _asked_once(doubt: Doubt) -> Doubt:
    """A line nobody could read is asked about once: its answer is another line, under another key."""
    return replace(doubt, finding=replace(doubt.finding, asked=False)) if doubt.finding.check == "unread" else doubt


def _same(before: Sequence[Line], after: Sequence[Line]) -> bool:
    return [_meaning(line) for line in before] == [_meaning(line) for line in after]


def _meaning(line: Line) -> object:
    return (decimal(line.value) or line.value, line.who) if isinstance(line, Set) else line


def settle(draft: Draft) -> tuple[tuple[Line, ...], tuple[str, ...]]:
    """The lines that stand after the last reply, and what is left out, with why. For a missing line the noted value stays."""
    stands = [doubt.finding.stands for doubt in draft.doubted.values() if doubt.finding.stands is not None]
    left_out = [doubt.finding for doubt in draft.doubted.values() if doubt.lines and doubt.finding.stands is None]
    lines = [line for group in draft.passed.values() for line in group]
    return (*lines, *stands), tuple(f"{finding.check}: {finding.said}" for finding in left_out)
