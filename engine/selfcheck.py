"""Does what was parked come back, on this very model and machine? Asked at load (self_check) and by `kvalet verify` (verify).

A prompt is read cold; then it is read in other batches, rolled back to a checkpoint, restored whole and as a prefix, and read to
its end each time. The last logits are compared: equal bits, or at least equal greedy tokens, or neither. Nothing is claimed that
was not measured.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.context import Context, Run, StateKind
from engine.errors import EngineError, StateRefused
from kvcache.entry import Payload

GRIDS = (16, 32, 64, 128, 256)
_GREEDY = 8  # tokens compared when bits differ
_SLOT = 0
Result = TypeVar("Result")

Logits = NDArray[np.float32]


class Promise(StrEnum):
    """What holds, from best to worst."""

    BITS = "bits"  # the same logits, bit by bit
    TOKENS = "tokens"  # other last bits, the same greedy tokens
    NONE = "none"


_ORDER = (Promise.NONE, Promise.TOKENS, Promise.BITS)


@dataclass(frozen=True, slots=True)
class Trial:
    """One way back to `position` of a prompt. `difference` is the largest |logit - cold logit|; `ms` the time to get there,
    `reread_ms` to read the `reread` tokens after it; `error` what was refused, if anything was."""

    way: str
    position: int
    promise: Promise
    difference: float
    ms: float
    reread: int
    reread_ms: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class GridReport:
    """What a grid of `grid` tokens keeps. `cold_ms` is the whole prompt of `tokens` read from nothing, `park_ms` its state copied
    out, `state_bytes` what that takes (checkpoints included)."""

    grid: int
    tokens: int
    cold_ms: float
    park_ms: float
    state_bytes: int
    trials: tuple[Trial, ...]

    @property
    def promise(self) -> Promise:
        return _worst(trial.promise for trial in self.trials)


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """`ok` is False when reuse must be switched off: some way back changes the answer. `failed` says which, in words."""

    ok: bool
    promise: Promise
    failed: tuple[str, ...]
    report: GridReport | None


@dataclass(frozen=True, slots=True)
class Verification:
    """`kvalet verify`: every grid that was tried, in ascending order."""

    kind: StateKind
    reports: tuple[GridReport, ...]

    def smallest(self, promise: Promise) -> int | None:
        """The smallest grid that keeps at least `promise`, as do all larger ones that were tried."""
        kept = [_ORDER.index(report.promise) >= _ORDER.index(promise) for report in self.reports]
        good = [report.grid for at, report in enumerate(self.reports) if all(kept[at:])]
        return good[0] if good else None


def self_check(context: Context, grid: int = 64) -> SelfCheck:
    """Parks, restores and rolls back on slot 0, which must be empty and is left empty. Reads about 4 grids of tokens."""
    try:
        report = try_grid(context, grid, 2 * grid + max(1, grid // 8))
    except EngineError as error:
        context.clear(_SLOT)
        return SelfCheck(False, Promise.NONE, (f"the check itself failed: {error}",), None)
    failed = tuple(_complaint(trial) for trial in report.trials if trial.promise is Promise.NONE)
    return SelfCheck(not failed, report.promise, failed, report)


def verify(
    context: Context, grids: Sequence[int] = GRIDS, tokens: int = 1000, progress: Callable[[int], None] | None = None
) -> Verification:
    """Tries each grid on a prompt of about `tokens` tokens, fewer in a small context; `progress` gets the grid that is next."""
    reports = []
    for grid in sorted(grids):
        length = _length(context, grid, tokens)
        if length is None:
            continue
        if progress:
            progress(grid)
        reports.append(try_grid(context, grid, length))
    return Verification(context.kind, tuple(reports))


def _length(context: Context, grid: int, wanted: int) -> int | None:
    """A prompt length that ends off the grid and holds two checkpoints; None where the context or its batch is too small."""
    most = min(wanted, context.n_ctx - _GREEDY)
    length = most // grid * grid + max(1, grid // 8)
    length -= grid if length > most else 0
    return length if length >= 2 * grid and grid <= context.n_batch else None


def try_grid(context: Context, grid: int, length: int) -> GridReport:
    """Raises what the context raises when even the cold read fails; a refused way back is a Trial with its error."""
    tokens = _tokens(length, context.n_vocab)
    last = (length - 1) // grid * grid
    middle = max(grid, last // 3 // grid * grid)
    parked = _Parked(context, grid, tokens)
    context.clear(_SLOT)
    cold_ms, cold = _timed(lambda: canonical_read(context, _SLOT, tokens, 0, grid))
    bench = _Bench(context, parked, cold, _continue(context, cold, length))
    trials = (
        bench.tries("other batches", 0, lambda: parked.park((middle, last)), read_from=last),
        bench.tries("rollback", last, lambda: parked.roll_back(last), before=parked.generate),
        bench.tries("restore", last, lambda: parked.restore(last)),
        bench.tries("restore of a prefix", middle, lambda: parked.restore(middle)),
    )
    context.clear(_SLOT)
    return GridReport(grid, length, cold_ms, parked.ms, parked.nbytes, trials)


class _Parked:
    """The state of one prompt, copied out while it is read."""

    def __init__(self, context: Context, grid: int, tokens: tuple[int, ...]) -> None:
        self.context, self.grid, self.tokens = context, grid, tokens
        self.blocks: list[Payload] = []
        self.checkpoints: dict[int, Payload] = {}
        self.ms = 0.0

    @property
    def nbytes(self) -> int:
        return sum(map(len, [*self.blocks, *self.checkpoints.values()]))

    def park(self, stops: tuple[int, ...]) -> None:
        """Reads the prompt from nothing up to the last of `stops`, and copies its state out at each."""
        self.context.clear(_SLOT)
        at = 0
        for stop in sorted(set(stops)):
            canonical_read(self.context, _SLOT, self.tokens[:stop], at, self.grid)
            self.ms += _timed(self._copy_out)[0]
            at = stop

    def _copy_out(self) -> None:
        stop = self.context.length(_SLOT)
        for start in range(len(self.blocks) * self.grid, stop, self.grid):
            self.blocks.append(self.context.save_block(_SLOT, start, start + self.grid))
        if self.context.kind is not StateKind.ATTENTION:
            self.checkpoints[stop] = self.context.save_checkpoint(_SLOT)

    def generate(self) -> None:
        """Adds a few tokens one by one, so that a rollback has something to take back."""
        for _ in range(_GREEDY):
            self.context.decode([Run(_SLOT, self.context.length(_SLOT), self.tokens[:1], False)])

    def roll_back(self, position: int) -> None:
        if self.checkpoints:
            self.context.load_checkpoint(_SLOT, position, self.checkpoints[position])
        elif not self.context.cut(_SLOT, position):
            raise StateRefused(f"the context would not cut at {position}")

    def restore(self, position: int) -> None:
        self.context.clear(_SLOT)
        for index in range(position // self.grid):
            self.context.load_block(_SLOT, index * self.grid, (index + 1) * self.grid, self.blocks[index])
        if self.checkpoints:
            self.context.load_checkpoint(_SLOT, position, self.checkpoints[position])


@dataclass(frozen=True, slots=True)
class _Bench:
    context: Context
    parked: _Parked
    cold: Logits
    greedy: tuple[int, ...]

    def tries(
        self,
        way: str,
        position: int,
        back: Callable[[], None],
        read_from: int | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> Trial:
        """`back` leaves the slot `read_from` tokens long (default: `position`); the rest is read and compared."""
        tokens, start = self.parked.tokens, position if read_from is None else read_from
        try:
            before()
            ms, _ = _timed(back)
            reread_ms, logits = _timed(lambda: canonical_read(self.context, _SLOT, tokens, start, self.parked.grid))
            promise = self._promise(logits)
        except EngineError as error:
            return Trial(way, position, Promise.NONE, float("inf"), 0.0, len(tokens) - position, 0.0, str(error))
        return Trial(way, position, promise, float(np.abs(logits - self.cold).max()), ms, len(tokens) - position, reread_ms)

    def _promise(self, logits: Logits) -> Promise:
        if np.array_equal(logits, self.cold):
            return Promise.BITS
        same = _continue(self.context, logits, len(self.parked.tokens)) == self.greedy
        return Promise.TOKENS if same else Promise.NONE


def canonical_read(context: Context, slot: int, tokens: Sequence[int], start: int, grid: int) -> Logits:
    """Reads tokens[start:] onto a slot of length `start` (a grid multiple): batches of whole grids, then the rest as one batch.

    Returns the logits after the last token. All such reads of the same tokens agree to the last bit where the promise holds.
    """
    most, last = context.n_batch // grid * grid, len(tokens) // grid * grid
    while start < len(tokens):
        end = min(start + most, last) if start < last else len(tokens)
        context.decode([Run(slot, start, tuple(tokens[start:end]), end == len(tokens))])
        start = end
    return context.logits(0)


def _continue(context: Context, logits: Logits, length: int) -> tuple[int, ...]:
    """The greedy tokens that follow."""
    said: list[int] = []
    while True:
        said.append(int(np.argmax(logits)))
        if len(said) == _GREEDY:
            return tuple(said)
        context.decode([Run(_SLOT, length + len(said) - 1, (said[-1],), True)])
        logits = context.logits(0)


def _tokens(length: int, n_vocab: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(0).integers(0, n_vocab, length).tolist())


def _timed(work: Callable[[], Result]) -> tuple[float, Result]:
    start = time.perf_counter()
    result = work()
    return (time.perf_counter() - start) * 1e3, result


def _worst(promises: Iterable[Promise]) -> Promise:
    return min(promises, key=_ORDER.index, default=Promise.NONE)


def _complaint(trial: Trial) -> str:
    if trial.error:
        return f"{trial.way} at {trial.position}: {trial.error}"
    return f"{trial.way} at {trial.position}: logits differ by up to {trial.difference:.3g} and greedy tokens with them"
