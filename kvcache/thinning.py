"""Which checkpoint positions to keep, given how likely each return is: pure functions over a curve (adaptive.Rollbacks.density).

All positions are in grid steps. A return that has i steps in common resumes at the deepest kept position p <= i and reads
i - p steps again, so a set of positions costs sum_i curve[i] * (i - p(i)), and losing one costs its loss below.
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]
SPREAD = 64
CORE = 4
"""Checkpoints that a conversation keeps as long as it is remembered at all; 3 to 4 were best on the traces, 2 to 8 near."""
LEAST_TOKENS = 64
"""A checkpoint that is expected to save less is not worth the time and the bytes of saving it, about as many tokens' worth."""


def chances(curve: Curve, positions: Sequence[int]) -> list[float]:
    """For each of the ascending positions: the probability that a return resumes exactly there, not at a deeper one."""
    below = np.concatenate([[0.0], np.cumsum(curve)])
    ends = [*positions[1:], len(curve)][: len(positions)]
    return [float(below[end] - below[start]) for start, end in zip(positions, ends, strict=True)]


def expected(curve: Curve, positions: Sequence[int]) -> float:
    """Expected steps read again with these ascending positions (0 is always one)."""
    kept = np.array([0, *positions])
    steps = np.arange(len(curve))
    return float((curve * (steps - kept[np.searchsorted(kept, steps, side="right") - 1])).sum())


def thin(curve: Curve, positions: Iterable[int], keep: int, least: float = 0.0) -> tuple[int, ...]:
    """At most `keep` of the positions, dropped one by one, each time the one that adds the fewest expected steps; of those
    left only the ones that save at least `least` expected steps, but one in any case.

    loss(p) = P(a return lands in [p, next kept)) * (p - kept before it). Greedy; optimum.best is exact and within 2 % of it
    on the traces (docs/benchmarks.md), at a tenth of the time.
    """
    chain = Chain(curve, sorted(set(positions)))
    chain.shrink(keep, least)
    return chain.positions()


def worths(curve: Curve, positions: Sequence[int], core: int = CORE, least: float = 0.0) -> list[float]:
    """What eviction is told of the ascending positions (EvictionFacts.chance): 1.0 for those that `thin` would keep, less for
    the others, the sooner they would go the less.

    Between conversations only recency decides about the core, and anybody's spare goes before it: on interleaved sessions
    this re-reads 40 % of what LRU does (docs/benchmarks.md); dropping by chance * tokens / bytes alone was worse than LRU.
    """
    chain = Chain(curve, list(positions))
    found = dict.fromkeys(positions, 1.0)
    found.update((dropped, 1 / (1 + len(positions) - number)) for number, dropped in enumerate(chain.shrink(core, least)))
    return [found[position] for position in positions]


def spread(curve: Curve, start: int, end: int, count: int) -> tuple[int, ...]:
    """About `count` positions in (start, end] worth offering to `thin`: quantiles of sqrt(curve), the likeliest ones, the end.

    Gaps proportional to curve^(-1/2) are the optimum for many positions (high-resolution quantiser, shared/facts/placement.md,
    checked in tests); the likeliest steps are added because few positions are not many.
    """
    if end <= start:
        return ()
    if end - start <= count:
        return tuple(range(start + 1, end + 1))
    part = curve[start + 1 : end + 1]
    rising = np.cumsum(np.sqrt(part))
    levels = np.searchsorted(rising, rising[-1] * np.arange(1, count // 2 + 1) / (count // 2 + 1))
    likely = np.argpartition(part, -(count // 2))[-(count // 2) :]
    return tuple(int(p) for p in np.unique(np.concatenate([levels, likely, [end - start - 1]])) + start + 1)


class Chain:
    """Kept positions as a linked list with a heap of losses; a loss only grows while others leave, so stale ones are renewed."""

    def __init__(self, curve: Curve, positions: list[int]) -> None:
        self._mass = np.concatenate([[0.0], np.cumsum(curve)]).tolist()
        ends = [0, *positions, len(curve)]
        self._before = dict(zip(positions, ends, strict=False))
        self._after = dict(zip(positions, ends[2:], strict=True))
        self._heap = [(self._loss(p), p) for p in positions]
        heapify(self._heap)

    def __len__(self) -> int:
        return len(self._before)

    def positions(self) -> tuple[int, ...]:
        return tuple(sorted(self._before))

    def least_loss(self) -> float:
        """The expected steps that the next to be dropped would add. There must be one."""
        while True:
            loss, position = self._heap[0]
            now = self._loss(position) if position in self._before else None
            if now is not None and now <= loss:
                return loss
            heappop(self._heap)
            if now is not None:
                heappush(self._heap, (now, position))

    def shrink(self, keep: int, least: float) -> list[int]:
        """Drops the cheapest until at most `keep` are left, then those that save less than `least`, but never the last one;
        names them in order. In one loop: this is most of the time of an adaptive prompt in the simulator."""
        heap, before, after, mass = self._heap, self._before, self._after, self._mass
        dropped = []
        while len(before) > min(keep, 1):
            loss, position = heap[0]
            now = (mass[after[position]] - mass[position]) * (position - before[position])
            if now > loss:
                heapreplace(heap, (now, position))
            elif len(before) > keep or loss < least:
                heappop(heap)
                self._drop(position)
                dropped.append(position)
            else:
                break
        return dropped

    def drop_cheapest(self) -> int:
        """The position that it dropped."""
        self.least_loss()
        _, position = heappop(self._heap)
        self._drop(position)
        return position

    def _loss(self, position: int) -> float:
        chance: float = self._mass[self._after[position]] - self._mass[position]
        return chance * (position - self._before[position])

    def _drop(self, position: int) -> None:
        before, after = self._before.pop(position), self._after.pop(position)
        if before in self._after:
            self._after[before] = after
        if after in self._before:
            self._before[after] = before


def _newest(_: Curve, positions: Sequence[int], keep: int) -> tuple[int, ...]:
    """The deepest ones."""
    return tuple(sorted(positions)[-keep:]) if keep else ()


def _uniform(_: Curve, positions: Sequence[int], keep: int) -> tuple[int, ...]:
    """Equal gaps over what there is: the optimum for a uniform return (elementary)."""
    return _nearest(positions, [max(positions, default=0) * i / keep for i in range(1, keep + 1)], keep)


def _geometric(_: Curve, positions: Sequence[int], keep: int) -> tuple[int, ...]:
    """Distances from the end that grow by one ratio: a return over d steps reads at most a fixed share of d again."""
    end = max(positions, default=0)
    ratio = (end + 1) ** (1 / max(keep, 1))
    return _nearest(positions, [end + 1 - ratio**i for i in range(keep)], keep)


def _nearest(positions: Sequence[int], targets: Sequence[float], keep: int) -> tuple[int, ...]:
    """For each target the nearest position not taken yet; so never fewer than can be kept."""
    free = set(positions)
    for target in targets[: min(keep, len(free))]:
        free.discard(min(free, key=lambda p: (abs(p - target), p)))
    return tuple(sorted(set(positions) - free))


Thinner = Callable[[Curve, Sequence[int], int], tuple[int, ...]]
THINNERS: dict[str, Thinner] = {"adaptive": thin, "newest": _newest, "uniform": _uniform, "geometric": _geometric}
"""By name: (curve, positions, how many to keep) -> ascending positions kept. `optimum.best` is the exact one."""
