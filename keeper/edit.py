"""What an edit of a history costs and does: the values that planning takes and gives, and how a plan is printed."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, groupby


class Fate(StrEnum):
    KEEP = "keep"
    STUB = "stub"
    ARCHIVE = "archive"


@dataclass(frozen=True)
class Costs:
    """tokens: of each message as rendered. overhead: tokens before the first (tools, template). checkpoints: rising token
    positions at which the state can be restored; 0, a cold read, always can. Times in ms."""

    tokens: tuple[int, ...]
    overhead: int = 0
    checkpoints: tuple[int, ...] = ()
    restore_ms: float = 0.0
    restore_ms_a_token: float = 0.0
    reread_ms_a_token: float = 1.0

    def starts(self) -> tuple[int, ...]:
        """Token position at which each message begins, and where the last one ends."""
        return tuple(accumulate(self.tokens, initial=self.overhead))

    def resume(self, position: int) -> int:
        """The deepest checkpoint at or before a token position; 0 without one."""
        found = bisect_right(self.checkpoints, position)
        return self.checkpoints[found - 1] if found else 0

    def ms(self, resume: int, reread: int) -> float:
        """Estimated time until the last of `reread` tokens is decoded."""
        restored = self.restore_ms + self.restore_ms_a_token * resume if resume else 0.0
        return restored + self.reread_ms_a_token * reread


GRID = 64
"""Checkpoints stand at multiples of this many tokens."""


def assumed(tokens: Sequence[int], overhead: int = 0) -> Costs:
    """What a proxy assumes of a server it knows nothing about: a checkpoint at the grid below each message, free restores."""
    borders = accumulate(tokens, initial=overhead)
    return Costs(tuple(tokens), overhead, tuple(sorted({border // GRID * GRID for border in borders} - {0})))


@dataclass(frozen=True)
class Budget:
    """Tokens. limit: the view must not exceed it. target: what an edit brings it down to (so the next one is not at once).
    continuation: what level 3 adds for it. near: results at most this far from the frontier are not stubbed."""

    limit: int
    target: int
    continuation: int
    near: int = 3


@dataclass(frozen=True)
class Decision:
    """What happens to one message; `tokens` are those it has afterwards, of `before`. `text`: the stub."""

    position: int
    fate: Fate
    before: int
    tokens: int
    reason: str
    text: str = ""


@dataclass(frozen=True)
class EditPlan:
    """The whole edit; token numbers are of the view.

    first_edit  the first message that changes (None: nothing does)
    start       messages before it, other than the head, are archived (0: none)
    resume      position to continue from: everything behind it, `reread`, is decoded again
    fits        the view is within the limit
    """

    decisions: tuple[Decision, ...]
    level: int
    first_edit: int | None
    start: int
    resume: int
    reread: int
    before: int
    after: int
    ms: float
    fits: bool
    reason: str

    def stubs(self) -> dict[int, str]:
        return {decision.position: decision.text for decision in self.decisions if decision.fate is Fate.STUB}


def render_plan(plan: EditPlan) -> str:
    """The plan for people: one line of numbers, one of why, then runs of messages with the same fate and reason."""
    unfit = "" if plan.fits else " (DOES NOT FIT THE LIMIT)"
    lines = [
        f"{plan.before:,} -> {plan.after:,} tokens{unfit}; re-read {plan.reread:,} from token {plan.resume:,}: {plan.ms:,.0f} ms",
        f"why: {plan.reason}",
        *_runs(plan.decisions),
    ]
    return "\n".join(lines) + "\n"


def _runs(decisions: Sequence[Decision]) -> Iterator[str]:
    for (fate, reason, _), run in groupby(decisions, key=lambda d: (d.fate, d.reason, d.text)):
        found = list(run)
        first, last = found[0].position, found[-1].position
        where = f"message {first}" if first == last else f"messages {first}-{last}"
        before, after = sum(d.before for d in found), sum(d.tokens for d in found)
        sizes = f"{before:,}" if fate is Fate.KEEP else f"{before:,} -> {after:,}"
        yield f"{fate:<8}{where:<18} {sizes:>16}  {reason}"
