"""What a notes reply must satisfy. Each check is a pure function that says what it saw; none asks the model anything itself.

A finding that is asked about goes back to the model with its sentence. `stands` is what becomes of the line when it is never
mended: the line itself where it is merely doubted, or nothing where the text, the sums or the notes contradict it.

What no check can catch, and the docs say so: a misread sentence that this reader cannot follow either (an unusual turn of phrase,
another language, a value that depends on another name), a change left out whose sentence never names the thing, and a wrong value
whose wrong working stands in the text word for word.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from keeper.notes import Line, Notes, Remove, Rule, Set, Unchanged, Unread, Working, decimal, normal, plain
from keeper.numbers import amounts
from keeper.reading import Fact, Kind, Told, named, outcome

STANDING = re.compile(r"\b(?:rule|always|never|confidential|whenever|must not|method)\b", re.IGNORECASE)
ORDERS = (
    "write|read|save|create|fetch|run|process|continue|work|start|call|make|fill|go|open|store|produce|collect|give|output|list"
)
ORDER = re.compile(rf"(?:(?:you|the agent|the task is|your task is|please|must|should|to|then)\s+)*(?:{ORDERS})\b", re.IGNORECASE)
CODE_LIKE = re.compile(r"[\d_/.\\-]|[a-z][A-Z]")  # names that are no plain words: doma86, max_tokens, src/x.py, maxTokens


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns being noted. heard: what user and tools said; said: what the assistant said, without a remark on turns before
    these; head: what stays in view anyway (system and task)."""

    heard: tuple[str, ...]
    said: tuple[str, ...] = ()
    head: str = ""

    @property
    def all(self) -> str:
        return "\n".join((*self.heard, *self.said))


@dataclass(frozen=True, slots=True)
class Evidence:
    """The turns, looked through once: what they say about each name, and every amount in them without its sign."""

    turns: Turns
    told: Told
    amounts: frozenset[Decimal]


def evidence(turns: Turns, names: Sequence[str]) -> Evidence:
    found = (amount.value for text in (*turns.heard, *turns.said) for amount in amounts(text))
    return Evidence(turns, Told(turns.heard, names), frozenset(abs(value) for value in found))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a check saw. `key` is the name it is about in lower case (or the line's text), `line` the line in question
    (None: a line is missing), `asked` says whether the model is asked again, `stands` what is kept if it is never mended."""

    check: str
    key: str
    said: str
    line: Line | None = None
    asked: bool = True
    stands: Line | None = None


def check(notes: Notes, lines: Sequence[Line], turns: Turns) -> tuple[Finding, ...]:
    """All findings on one delta against the notes before it and the turns it is about."""
    found: list[Finding] = []
    names = [*(entry.name for entry in notes.state), *(line.name for line in lines if isinstance(line, Set))]
    seen = evidence(turns, names)
    first = Told([turns.head], names)
    current = {entry.name.casefold(): decimal(entry.value) for entry in notes.state}
    last = {line.name.casefold(): place for place, line in enumerate(lines) if isinstance(line, Set)}
    for place, line in enumerate(lines):
        if isinstance(line, Set):
            noted = current.get(line.name.casefold(), outcome(None, first.facts(line.name)))
            if last[line.name.casefold()] == place:  # earlier lines about a name are steps on the way to its last one
                found += _of_set(line, noted, notes, seen)
            current[line.name.casefold()] = decimal(resolved(line, noted).value)
        elif isinstance(line, Unread):
            found.append(Finding("unread", line.text, f'"{line.text}" is not one of the forms', line))
        elif isinstance(line, Rule):
            found += _of_rule(line, turns)
        elif isinstance(line, Remove):
            found += _of_remove(line, notes, turns)
        elif isinstance(line, Unchanged):
            found += _of_unchanged(line, current.get(line.name.casefold()), seen.told)
    return (*found, *_unaccounted(notes, lines, seen.told))


def resolved(line: Set, noted: Decimal | None) -> Set:
    """The line with its value worked out where the model showed the working and left the result out."""
    if line.value or line.working is None:
        return line
    start = line.working.start if line.working.start is not None else noted
    return replace(line, value=plain(start + sum(line.working.steps)) if start is not None else "")


def _of_set(line: Set, noted: Decimal | None, notes: Notes, seen: Evidence) -> Iterator[Finding]:
    key = line.name.casefold()
    if not _mentioned(line, seen.turns):
        said = f"the turns being noted never mention {line.name}"
        yield Finding("unmentioned", key, said, line, asked=False)
        return
    if line.who and not any(named(word, seen.turns.all) for word in line.who.split()):
        yield Finding("who", key, f'"{line.who}" is not in these turns', line, stands=replace(line, who=""))
    read = seen.told.facts(line.name)
    right = outcome(noted, read) if any(fact.kind in (Kind.SET, Kind.CHANGE) for fact in read) else None
    value = number(resolved(line, noted).value)
    if value is None and line.working:
        yield Finding("start", key, f"{line.name} has no noted value to start from", line)
    elif value is None and right is not None:
        yield Finding("contradicted", key, f"by these sentences {line.name} is {plain(right)}: {_quoted(read)}", line)
    if value is None or right == value:
        return
    kept = None if right is not None else line
    if line.working:
        doubts = list(_of_working(line, line.working, value, noted, seen, read, notes))
    else:
        doubts = list(_of_plain(line, value, seen, read))
    if right is not None and not doubts:
        doubts = [("contradicted", f"by these sentences {line.name} is {plain(right)}: {_quoted(read)}", False)]
    yield from (Finding(name, key, f"{line.name}: {said}", line, stands=None if sure else kept) for name, said, sure in doubts)


def number(text: str) -> Decimal | None:
    """A value as a number: in digits, or in words where it is nothing else."""
    found = amounts(text)
    return decimal(text) if len(found) != 1 or text[: found[0].start].strip() or text[found[0].end :].strip() else found[0].value


Doubt = tuple[str, str, bool]  # the check's name, what it saw, and whether the line cannot stand whatever the text says


def _of_working(
    line: Set, working: Working, value: Decimal, noted: Decimal | None, seen: Evidence, read: Sequence[Fact], notes: Notes
) -> Iterator[Doubt]:
    """Starts from the noted value, adds up, has its amounts from the text, with their sign, and no amount that was set."""
    start = working.start if working.start is not None else noted
    set_to = {fact.amount for fact in read if fact.kind is Kind.SET}
    if start is None or (noted is not None and start != noted and start not in set_to):
        was, begins = "nothing" if noted is None else plain(noted), "old" if start is None else plain(start)
        yield "start", f"the working starts from {begins} and the noted value is {was}", True
        return
    if start + sum(working.steps) != value:
        yield "sum", f"{plain(start)}{_steps(working)} is {plain(start + sum(working.steps))}, not {plain(value)}", True
    known = seen.amounts | {abs(number) for entry in notes.state if (number := decimal(entry.value)) is not None}
    changes = {fact.amount for fact in read if fact.kind is Kind.CHANGE}
    for step in working.steps:
        if abs(step) not in known:
            yield "amount", f"{plain(abs(step))} is not in these turns: {_quoted(read)}", False
        elif step not in changes and -step in changes:
            yield "sign", f"{_signed(step)} has the wrong sign: {_quoted(read)}", False
        elif abs(step) in set_to and step not in changes:
            yield "set_noted_as_change", f"{plain(abs(step))} is what it was set to, not a change: {_quoted(read)}", False


def _of_plain(line: Set, value: Decimal, seen: Evidence, read: Sequence[Fact]) -> Iterator[Doubt]:
    """A value without a working must stand in the text, and not as the amount of a change."""
    changes = [fact for fact in read if fact.kind is Kind.CHANGE and fact.amount is not None and abs(fact.amount) == abs(value)]
    set_to = {fact.amount for fact in read if fact.kind is Kind.SET}
    if changes and value not in set_to:
        yield "change_noted_as_set", f"{plain(value)} is a change, not what it was set to: {_quoted(changes)}", False
    elif abs(value) not in seen.amounts:
        yield "working", f"{plain(value)} is not in these turns; show its working: {line.name} = old + 5 = 12", False


def _of_rule(line: Rule, turns: Turns) -> Iterator[Finding]:
    """A "rule" that only restates what the task says to do is left out: repeated at each question it would be obeyed to the
    letter there, and was (lesson 12). What calls itself a rule, or gives no order to act, is kept."""
    words = [word for word in normal(line.text).split() if len(word) > 3]
    if not words or STANDING.search(line.text) or not ORDER.match(line.text):
        return
    if sum(named(word, turns.head) for word in words) / len(words) >= 0.8:
        yield Finding("restated", normal(line.text), "the rule only restates the task", line, asked=False)


def _of_unchanged(line: Unchanged, noted: Decimal | None, told: Told) -> Iterator[Finding]:
    """A noted name that plain sentences set or change is not unchanged."""
    read = told.facts(line.name)
    right = outcome(noted, read)
    if right is not None and right != noted:
        said = f"by these sentences {line.name} is {plain(right)}: {_quoted(read)}"
        yield Finding("contradicted", line.name.casefold(), said, line)


def _of_remove(line: Remove, notes: Notes, turns: Turns) -> Iterator[Finding]:
    if notes.entry(line.name) is None:
        yield Finding("remove", line.name.casefold(), f"no STATE line is called {line.name}", line, asked=False)
    elif not _spoken(line.name, turns.all):
        yield Finding("unmentioned", line.name.casefold(), f"the turns being noted never mention {line.name}", line, asked=False)


def _unaccounted(notes: Notes, lines: Sequence[Line], told: Told) -> Iterator[Finding]:
    """A tracked name that the turns mention has a line. Of a plain word (port, status) only what looks like a change counts."""
    lined = {line.name.casefold() for line in lines if isinstance(line, Set | Unchanged | Remove)}
    for entry in notes.state:
        if entry.name.casefold() in lined:
            continue
        read = told.facts(entry.name)
        if any(fact.kind is not Kind.MENTION or CODE_LIKE.search(entry.name) for fact in read):
            said = f'{entry.name} is mentioned and has no line (write "{entry.name} unchanged" if so): {_quoted(read)}'
            yield Finding("unaccounted", entry.name.casefold(), said)


def _mentioned(line: Set, turns: Turns) -> bool:
    """Whether the turns speak of what a line is about. Names that the notes invent (current_goal) are found by their words, or by
    the words of the value."""
    if _spoken(line.name, turns.all):
        return True
    words = [word for word in normal(line.value).split() if len(word) > 3]
    if decimal(line.value) is not None or line.working or not words:
        return False
    return sum(named(word, turns.all) for word in words) * 2 >= len(words)


def _spoken(name: str, text: str) -> bool:
    if named(name, text):
        return True
    words = re.findall(r"[A-Za-z]{4,}", name.replace("_", " "))
    return len(words) > 1 and all(named(word, text) for word in words)


def _quoted(read: Sequence[Fact]) -> str:
    """The sentences, as the check saw them, the last three at most."""
    return " / ".join(f'"{sentence}"' for sentence in dict.fromkeys(fact.sentence for fact in read[-3:])) or "no sentence says it"


def _signed(step: Decimal) -> str:
    return f"+{plain(step)}" if step >= 0 else plain(step)


def _steps(working: Working) -> str:
    return "".join(f" {'+' if step >= 0 else '-'} {plain(abs(step))}" for step in working.steps)
