"""The checkpoints that a simulated conversation holds under a count, and which of them stay. No payload, no bytes."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from kvcache.adaptive import Curve
from kvcache.eviction import POLICIES as ORDERS
from kvcache.eviction import drop_order
from kvcache.facts import EntryKind, EvictionFacts
from kvcache.optimum import best
from kvcache.placement import UnknownPolicy
from kvcache.thinning import THINNERS, Chain
from kvcache.watch import Ids

RULES = {**THINNERS, "exact": best}
"""Eviction names that judge a whole chain at once: (curve, positions in steps, how many) -> those kept."""


@dataclass(slots=True)
class Point:
    """A checkpoint after `steps` grid steps of the chain whose id there is `id`; `last_used` counts turns."""

    steps: int
    id: Hashable
    last_used: int
    uses: int = 0
    fork: int = 0  # off the present chain: steps that it still has in common with it
    left: int = 0  # off the present chain: the turn that left its branch; 0 on it


@dataclass(frozen=True, slots=True)
class Change:
    """What a turn did: `common` steps with the conversation's last prompt; where the next may leave it (`curve`, where a policy
    learns), and how likely that returns to a branch that was left so many turns before it (`back`)."""

    common: int
    curve: Curve | None
    back: Callable[[int], float]


class Kept:
    """The checkpoints of one conversation, at most `limit`, of every branch it has had."""

    def __init__(self, evict: str, limit: int) -> None:
        """Raises UnknownPolicy."""
        if evict not in RULES and evict not in ORDERS:
            raise UnknownPolicy(evict, {*RULES, *ORDERS})
        self.points: list[Point] = []
        self._evict, self._limit = evict, limit

    def on(self, ids: Ids) -> tuple[int, ...]:
        """Steps of the checkpoints on this chain, ascending."""
        return tuple(sorted(point.steps for point in self.points if _is_on(point, ids)))

    def resume(self, ids: Ids, usable: int, now: int) -> int:
        """The deepest checkpoint within the first `usable` steps of a chain, counted as used; 0 when there is none."""
        fitting = (point for point in self.points if point.steps <= usable and _is_on(point, ids))
        deepest = max(fitting, key=lambda point: point.steps, default=None)
        if deepest is None:
            return 0
        deepest.last_used, deepest.uses = now, deepest.uses + 1
        return deepest.steps

    def add(self, ids: Ids, steps: Iterable[int], now: int, change: Change) -> None:
        """Adds checkpoints on a chain that a turn has just read, then keeps the best `limit`."""
        on = {point.steps: point for point in self.points if _is_on(point, ids)}
        off = [_left(point, change.common, now) for point in self.points if not _is_on(point, ids)]
        for step in steps:
            on.setdefault(step, Point(step, ids[step - 1], now))
        for point in on.values():
            point.left = 0
        if len(on) + len(off) <= self._limit:
            self.points = [*off, *on.values()]
        elif self._evict == "adaptive":
            self.points = self._weighed(on, off, now, change)
        elif self._evict in RULES:
            self.points = self._thinned(on, off, change.curve)
        else:
            self.points = self._ranked([*off, *(on[step] for step in sorted(on))])

    def _weighed(self, on: dict[int, Point], off: list[Point], now: int, change: Change) -> list[Point]:
        """Drops, on the present chain or on a branch that was left, what adds the fewest expected steps."""
        chain = Chain(np.zeros(1) if change.curve is None else change.curve, sorted(on))
        spare = sorted(_branch_values(off, now, change.back), key=lambda item: (item[0], item[1].last_used, item[1].steps))
        while len(chain) + len(spare) > self._limit:
            if spare and (not len(chain) or spare[0][0] < chain.least_loss()):
                spare.pop(0)
            else:
                chain.drop_cheapest()
        return [*(point for _, point in spare), *(on[step] for step in chain.positions())]

    def _thinned(self, on: dict[int, Point], off: list[Point], curve: Curve | None) -> list[Point]:
        """The present chain first; what it leaves free goes to the latest of the abandoned branches."""
        steps = RULES[self._evict](np.empty(0) if curve is None else curve, sorted(on), self._limit)
        room = self._limit - len(steps)
        latest = sorted(off, key=lambda point: (point.last_used, point.steps))[len(off) - min(room, len(off)) :]
        return [*latest, *(on[step] for step in steps)]

    def _ranked(self, points: list[Point]) -> list[Point]:
        """Drops by an eviction order, all at once: the gaps are those before the first is dropped."""
        ordered = sorted(points, key=lambda point: point.steps)
        before = [0, *(point.steps for point in ordered)]
        entries = [_facts(point, point.steps - gap_from) for point, gap_from in zip(ordered, before, strict=False)]
        order = drop_order(self._evict, entries)
        return [ordered[index] for index in order[len(ordered) - self._limit :]]


def _left(point: Point, common: int, now: int) -> Point:
    """Notes that the present chain left a point's branch, and where."""
    point.fork = min(point.fork, common) if point.left else common
    point.left = point.left or now
    return point


def _branch_values(off: Iterable[Point], now: int, back: Callable[[int], float]) -> list[tuple[float, Point]]:
    """Expected steps that points off the chain save. `back`: how likely a prompt returns to a branch, by the turns since it was
    left; on a branch its last point counts, the others for a tenth.
    """
    branches: dict[int, list[Point]] = defaultdict(list)
    for point in off:
        branches[point.left].append(point)
    found = []
    for left in sorted(branches, reverse=True):
        points = sorted(branches[left], key=lambda point: point.steps)
        for number, point in enumerate(points):
            below = points[number - 1].steps if number else point.fork
            chance = back(now + 1 - left) * (1.0 if point is points[-1] else 0.1)
            found.append((chance * (point.steps - below), point))
    return found


def _is_on(point: Point, ids: Ids) -> bool:
    return point.steps <= len(ids) and ids[point.steps - 1] == point.id


def _facts(point: Point, gap: int) -> EvictionFacts:
    return EvictionFacts(
        kind=EntryKind.CHECKPOINT,
        nbytes=1,
        last_used=point.last_used,
        uses=point.uses,
        position=point.steps,
        pinned=False,
        children=0,
        saved_tokens=gap,
        backed=False,
    )
