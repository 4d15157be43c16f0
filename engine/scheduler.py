"""What the next llama_decode reads: planning only, pure functions over plain values.

Recurrent layers want runs of equal length: llama.cpp splits a batch with unequal ones into micro-batches of the shortest,
so a prefill that shared a batch with a decode would be read 1 + 511 at a time, twice as slow and no canonical read. So on
such models prefills and decodes take turns, and prefills share a batch only when their runs are equally long.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DECODE_SHARE = 0.03  # of the time in which prompts are read, what the tokens of running turns in between may take


@dataclass(frozen=True, slots=True)
class Work:
    """A running turn: its slot holds `position` tokens of the `end` to be read. `stop`: the next position at which a
    checkpoint is wanted (or `end`). `decoding`: it generates, its one unread token was just sampled. `served`: when it was
    last part of a prefill batch, larger is later."""

    slot: int
    position: int
    end: int
    stop: int
    decoding: bool
    served: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, end) of the turn in `slot` are read next."""

    slot: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Limits:
    """`batch`: most tokens a decode call takes; `beside`: most prompt tokens between two decodes of running turns, so that
    they do not starve; both multiples of `grid`. `mixed`: runs of unequal length share a batch at no cost (see the module)."""

    batch: int
    beside: int
    grid: int
    mixed: bool


def plan(works: Sequence[Work], limits: Limits, prefill_first: bool, fair: bool = False) -> tuple[Piece, ...]:
    """The next batch; empty when nothing runs. `prefill_first`: the last batch was not a prefill, so one is due.

    The prompt with the least left to read goes first, which gives the shortest mean wait for a first token; with `fair`, which
    every few batches must ask for, the one unserved the longest, so that a long prompt is not kept out by short ones.
    """
    decoding = tuple(Piece(work.slot, work.position, work.end) for work in works if work.decoding)
    order = (lambda work: (work.served, work.slot)) if fair else (lambda work: (work.end - work.position, work.served, work.slot))
    reading = sorted((work for work in works if not work.decoding), key=order)
    if limits.mixed:
        room = limits.batch if not decoding else min(limits.beside, limits.batch - len(decoding))
        return decoding + _fill(reading, room, limits, equal=False)
    if reading and (prefill_first or not decoding):
        return _fill(reading, limits.beside if decoding else limits.batch, limits, equal=True)
    return decoding


def _fill(reading: Iterable[Work], room: int, limits: Limits, *, equal: bool) -> tuple[Piece, ...]:
    """The first turn gets as much as fits; others join while there is room, with runs as long where `equal`."""
    pieces: list[Piece] = []
    for work in reading:
        end = next_cut(work.position, work.end, work.stop, room, limits.grid)
        if pieces and equal:
            length = pieces[0].end - pieces[0].start
            if length > room or not _may_read(work, length, end, limits.grid):
                continue
            end = work.position + length
        if end > work.position:
            pieces.append(Piece(work.slot, work.position, end))
            room -= end - work.position
    return tuple(pieces)


def _may_read(work: Work, length: int, end: int, grid: int) -> bool:
    """Whether a run of exactly `length` is one that next_cut could have chosen: all of it, or fewer whole grid steps."""
    return length == end - work.position or (length < end - work.position and work.position % grid == 0 and length % grid == 0)


def next_cut(position: int, end: int, stop: int, room: int, grid: int) -> int:
    """Where the run that starts at `position` ends, so that the whole is a canonical read (contract 5); `position` itself
    when not even that fits into `room` tokens.

    Runs end at `stop` at the latest. On the grid they are whole grid steps up to the last multiple before `end`, then the
    remainder alone. Off the grid (append mode) nothing is canonical any more and only `stop` matters.
    """
    last = end // grid * grid
    if position % grid:
        return min(position + room, stop)
    if position >= last:
        at = min(end, stop)  # a stop in here is off the grid: the tip of an append-mode turn
        return at if at - position <= room else position
    return min(position + room // grid * grid, stop, last)


def beside_limit(prefill_ms: float, decode_ms: float, gap_ms: float, batch: int, grid: int) -> int:
    """Prompt tokens to read between two decodes: about `gap_ms` of reading at `prefill_ms` a token, or more where decodes that
    take `decode_ms` would cost more than DECODE_SHARE of the reading. Whole grid steps, at least one."""
    if prefill_ms <= 0:
        return batch
    target = max(gap_ms, decode_ms / DECODE_SHARE)
    return max(grid, min(batch, int(target / prefill_ms) // grid * grid))


def admission_order(sessions: Sequence[str | None], running: Sequence[str | None]) -> tuple[int, ...]:
    """Indices of waiting requests (given in order of arrival) as they should start: those first whose session has the
    fewest running turns, so that one client with many requests cannot keep the others out; then by arrival."""
    counts: Counter[str | None] = Counter(name for name in running if name is not None)
    return tuple(sorted(range(len(sessions)), key=lambda i: (counts[sessions[i]], i)))
