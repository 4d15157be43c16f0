"""Optima to compare with: the exact placement for a known curve, and the exact offline optimum of a whole conversation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from kvcache.adaptive import Curve
from kvcache.watch import Ids, common_steps

MAX_STATES = 3000
Steps = NDArray[np.int64]
Node = tuple[int, int]
"""(steps, number of a turn that passes there)."""


def best(curve: Curve, positions: Iterable[int], keep: int) -> tuple[int, ...]:
    """The at most `keep` of the positions (grid steps) with the fewest expected steps to read again: O(keep * n^2).

    Source: the dynamic program for a known overlap distribution, Shirokikh & Nikolenko (arXiv:2605.05219, Corollary 1).
    Position 0 is always there. A segment [a, b) between kept positions costs sum_i curve[i] * (i - a).
    """
    points = np.array(sorted({0, *positions}))
    if len(points) - 1 <= keep:
        return tuple(int(p) for p in points[1:])
    mass, first = _prefix_sums(curve)
    ends = np.append(points[1:], len(curve))
    segment = first[ends][None, :] - first[points][:, None] - points[:, None] * (mass[ends][None, :] - mass[points][:, None])
    segment[np.tril_indices(len(points), -1)] = np.inf
    cost, choices = segment[0], []
    for _ in range(keep):
        longer = cost[:-1, None] + segment[1:, :]
        choices.append(np.argmin(longer, axis=0))
        cost = np.minimum(cost, longer[choices[-1], np.arange(len(points))])
        choices[-1] = np.where(cost < longer.min(axis=0), -1, choices[-1])
    return _walk_back(points, choices)


def _prefix_sums(curve: Curve) -> tuple[Curve, Curve]:
    """Sums over i < n of curve[i] and of i * curve[i], n = 0 .. len."""
    steps = np.arange(len(curve))
    return np.concatenate([[0.0], np.cumsum(curve)]), np.concatenate([[0.0], np.cumsum(curve * steps)])


def _walk_back(points: Steps, choices: Sequence[Steps]) -> tuple[int, ...]:
    kept, end = [], len(points) - 1
    for choice in reversed(choices):
        if choice[end] >= 0:
            kept.append(int(points[choice[end] + 1]))
            end = int(choice[end])
    return tuple(reversed(kept))


@dataclass(frozen=True, slots=True)
class Offline:
    """Steps read again under the best choices with the whole conversation known; `exact` when no state was left out."""

    reread: int
    exact: bool


def offline(chains: Sequence[Ids], usable: Sequence[int], keep: int) -> Offline:
    """The fewest steps read again with `keep` checkpoints for the turns of one conversation.

    `chains[t]`: chain ids of turn t's prompt. `usable[t]`: steps of it that may be resumed (one token must be left). A
    checkpoint can be made wherever a turn reads, and be dropped at any time. Only places where a later turn leaves an
    earlier one can matter (a checkpoint elsewhere can move down to the first of them), so the states are sets of those
    that are still of use, and all maximal sets are followed. Beyond MAX_STATES the best are followed and `exact` is False.
    """
    turns = _Turns(chains, usable)
    states: dict[frozenset[Node], int] = {frozenset(): 0}
    exact = True
    for now in range(len(chains)):
        following: dict[frozenset[Node], int] = {}
        for held, cost in states.items():
            start = max((node[0] for node in held if turns.serves(node, now)), default=0)
            offered = [node for node in held if turns.useful(node, now)] + turns.passed(now, start)
            for kept in _largest_sets(frozenset(offered), keep):
                total = cost + turns.wanted[now] - start
                following[kept] = min(total, following.get(kept, total))
        exact = exact and len(following) <= MAX_STATES
        states = dict(sorted(following.items(), key=lambda item: item[1])[:MAX_STATES])
    return Offline(min(states.values()) + turns.lost, exact)


def _largest_sets(offered: frozenset[Node], keep: int) -> Iterable[frozenset[Node]]:
    """Dropping more than needed never helps, so only the sets of exactly `keep`, or all when they fit."""
    return [offered] if len(offered) <= keep else [frozenset(chosen) for chosen in combinations(sorted(offered), keep)]


class _Turns:
    """How the turns of a conversation overlap. Nodes are named by their first turn."""

    def __init__(self, chains: Sequence[Ids], usable: Sequence[int]) -> None:
        count = len(chains)
        full = [[common_steps(chains[late], chains[early]) for early in range(late)] for late in range(count)]
        self._shared = [[min(steps, usable[early]) for early, steps in enumerate(row)] for row in full]
        self.wanted = [min(max(row, default=0), limit) for row, limit in zip(self._shared, usable, strict=True)]
        known = [min(max(row, default=0), limit) for row, limit in zip(full, usable, strict=True)]
        self.lost = sum(known) - sum(self.wanted)  # the last step of a prompt that ends on the grid cannot be resumed after
        self._usable = usable
        self._until: dict[Node, int] = {}
        for late in range(count):
            self._want(late, self.wanted[late], late)
            for early in range(late):
                self._want(late, min(self._shared[late][early], self.wanted[early], self.wanted[late]), early)

    def serves(self, node: Node, turn: int) -> bool:
        return node[0] <= self.wanted[turn] and self._common(node[1], turn) >= node[0]

    def useful(self, node: Node, now: int) -> bool:
        return self._until[node] > now

    def passed(self, now: int, start: int) -> list[Node]:
        """Nodes still of use that turn `now` reads across when it starts at `start`."""
        end = self._usable[now]
        nodes = [n for n in self._until if start < n[0] <= end and self._common(n[1], now) >= n[0]]
        return [node for node in nodes if self.useful(node, now)]

    def _want(self, turn: int, steps: int, until: int) -> None:
        if steps > 0:
            node = (steps, self._first(turn, steps))
            self._until[node] = max(until, self._until.get(node, 0))

    def _first(self, turn: int, steps: int) -> int:
        return next((early for early in range(turn) if self._shared[turn][early] >= steps), turn)

    def _common(self, one: int, other: int) -> int:
        if one == other:
            return self._usable[one]
        return self._shared[max(one, other)][min(one, other)]
