"""What the idle engine should read next: planning only, pure functions over frozen values.

When a turn has ended, these reads are worth their time, the cheapest and most likely first:
1. anticipate: the next prompt up to where the client's new words will start
2. exact: the same, or where nothing can be foreseen what was read and said, as a canonical read; often 1 has done it already
3. cut: the view after the keeper's next cut
4. densify: checkpoints that placement wants and nobody has made
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.request import Anchor, Exact
from kvcache.entry import Match

LITTLE_MORE = 4  # grid steps
EXACT_SHARE = 0.25  # of the budget
LEAST_REST = 16  # tokens that are worth a read of their own
LEAST_GAP = 256  # tokens; the finest interval between checkpoints that placement makes, so no smaller gap is one


class Kind(StrEnum):
    """Why something is read before it is asked for."""

    ANTICIPATE = "anticipate"
    EXACT = "exact"
    CUT = "cut"
    DENSIFY = "densify"


@dataclass(frozen=True, slots=True)
class Prompt:
    """The beginning of a prompt that may come, with its anchors."""

    tokens: tuple[int, ...]
    anchors: tuple[Anchor, ...] = ()

    def upto(self, end: int) -> "Prompt":
        return Prompt(self.tokens[:end], tuple(anchor for anchor in self.anchors if anchor.position <= end))


@dataclass(frozen=True, slots=True)
class Held:
    """Positions of a prompt, ascending, where reading could go on, and those of them that a canonical read made. `live`: a slot
    holds so many of its tokens and nothing else; 0: none does."""

    positions: tuple[int, ...] = ()
    canonical: tuple[int, ...] = ()
    live: int = 0

    def deepest(self, end: int, exact: Exact) -> int:
        """The last one up to `end`, 0 for none."""
        found = self.canonical if exact is Exact.STRICT else self.positions
        return max((position for position in found if position <= end), default=0)


@dataclass(frozen=True, slots=True)
class Ahead:
    """A prompt that may come, and what is held of it. `wanted`: positions at which placement wants checkpoints."""

    kind: Kind
    prompt: Prompt
    held: Held
    wanted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Read:
    """Tokens [start, end) of a prompt that ends there are to be read."""

    kind: Kind
    prompt: Prompt
    start: int
    exact: Exact

    @property
    def end(self) -> int:
        return len(self.prompt.tokens)


def reads(aheads: Sequence[Ahead], exact: Exact, grid: int, budget: int) -> Iterator[Read]:
    """What is missing, in the order in which it should be read; no single read takes more than `budget` tokens.

    `exact` is the conversation's: where it is APPEND, 1 may go on from state that is not canonical.
    """
    for ahead in aheads:
        if ahead.kind is Kind.ANTICIPATE:
            yield from _first(ahead, exact, grid, budget)
    for ahead in aheads:
        if ahead.kind in (Kind.ANTICIPATE, Kind.EXACT):
            yield from _exact(ahead, exact, grid, budget)
    for ahead in aheads:
        if ahead.kind is Kind.CUT:
            yield from _upto(Kind.CUT, ahead, _end(ahead, grid), exact, grid, budget)
    for ahead in aheads:
        yield from _dense(ahead, exact, grid, budget)


def _first(ahead: Ahead, exact: Exact, grid: int, budget: int) -> Iterator[Read]:
    """Not where a slot is that far already: then the next prompt goes on from it. A canonical read that takes little more does
    for `exact` as well. In append mode the rest beyond the grid is read too: the slot that holds it answers next."""
    held, whole = ahead.held, _end(ahead, grid)
    end = len(ahead.prompt.tokens) - 1 if exact is Exact.APPEND and whole else whole
    if exact is Exact.APPEND and end - held.live < LEAST_REST:
        return
    more = held.deepest(end, Exact.APPEND) - held.deepest(end, Exact.STRICT)
    yield from _upto(Kind.ANTICIPATE, ahead, end, Exact.STRICT if more <= LITTLE_MORE * grid else exact, grid, budget)


def _exact(ahead: Ahead, exact: Exact, grid: int, budget: int) -> Iterator[Read]:
    """In append mode, which promises nothing of it, only where it takes no more than a share of the budget."""
    end = _end(ahead, grid)
    missing = end - ahead.held.deepest(end, Exact.STRICT)
    if exact is Exact.STRICT or missing <= EXACT_SHARE * budget:
        yield from _upto(Kind.EXACT, ahead, end, Exact.STRICT, grid, budget)


def _dense(ahead: Ahead, exact: Exact, grid: int, budget: int) -> Iterator[Read]:
    """Missing checkpoints, the cheapest first, each from the one before it; those that are near another stay missing."""
    held = ahead.held.canonical if exact is Exact.STRICT else ahead.held.positions
    missing = sorted((at - ahead.held.deepest(at, exact), at) for at in ahead.wanted if at not in held)
    for cost, at in missing:
        if LEAST_GAP <= cost <= budget:
            yield from _upto(Kind.DENSIFY, ahead, at, exact, grid, budget)


def _upto(kind: Kind, ahead: Ahead, end: int, exact: Exact, grid: int, budget: int) -> Iterator[Read]:
    start = ahead.held.deepest(end, exact)
    end = min(end, start + budget // grid * grid)
    if end > start:
        yield Read(kind, ahead.prompt.upto(end), start, exact)


def _end(ahead: Ahead, grid: int) -> int:
    """The last grid multiple before the last token, which may yet grow together with the client's first word."""
    return max(0, len(ahead.prompt.tokens) - 1) // grid * grid


def held_of(match: Match, canonical: Match, live: int, *, checkpoints: bool) -> Held:
    """From what the store holds of a prompt, in all and canonical; without `checkpoints` every block's end will do."""
    return Held(_positions(match, checkpoints), _positions(canonical, checkpoints), live)


def _positions(match: Match, checkpoints: bool) -> tuple[int, ...]:
    if checkpoints:
        return tuple(sorted(ref.position for ref in match.checkpoints if ref.position <= match.stored))
    return tuple(ref.end for ref in match.blocks)
