"""Follows conversations by their chain ids and tells the learner where each new prompt left the one before it.

A conversation is a chain of blocks, not a name: a client that gives none is followed as well, and a new conversation that
starts with another's system text is a return to that place, which is what the checkpoint there is kept for.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

from kvcache.adaptive import Curve, Rollbacks, Shape, shape_of

TURN, BRANCH = "turn", "branch"
TURNS = 2
"""Ends of prompts that are landmarks, the latest: older ones are as unlikely as any place, and would share their weight."""

Ids = Sequence[Hashable]


def common_steps(one: Ids, other: Ids) -> int:
    """Leading ids that two chains share. Ids are chained, so the first difference can be found by halving."""
    return bisect_left(range(min(len(one), len(other))), True, key=lambda i: one[i] != other[i])


class _Chain:
    """What was last seen of one conversation: its ids, where its prompts ended, and where it was branched. `shared`: no id
    that it owns at or beyond this place is in another chain, for a later one that had it would own it."""

    def __init__(self, ids: Ids, turns: tuple[int, ...], branches: tuple[int, ...], shape: Shape, shared: int) -> None:
        self.ids, self.turns, self.branches, self.shape, self.shared = ids, turns, branches, shape, shared


class Watch:
    """Remembers the last `conversations` chains. Not thread-safe."""

    def __init__(self, grid: int, rollbacks: Rollbacks, conversations: int = 256) -> None:
        self.rollbacks = rollbacks
        self._grid = grid
        self._limit = conversations
        self._chains: OrderedDict[int, _Chain] = OrderedDict()
        self._owner: dict[Hashable, int] = {}
        self._next = 0

    def note(self, ids: Ids, length: int, marks: Iterable[tuple[str, int]] = ()) -> Curve:
        """A prompt of `length` tokens with the chain ids `ids` (one a whole grid step) starts; returns the density of where
        the prompt after it will leave it, index = grid steps in common. `marks`: anchors as (kind, position in tokens)."""
        known = bisect_left(range(len(ids)), True, key=lambda i: ids[i] not in self._owner)
        number = self._owner[ids[known - 1]] if known else self._next
        before = self._chains.get(number)
        turns: tuple[int, ...] = ()
        branches: tuple[int, ...] = ()
        shared = known
        if before is not None:
            self.rollbacks.observe(before.shape, known * self._grid)
            turns = tuple(t for t in (*before.turns, before.shape.length) if t // self._grid <= known)[-TURNS:]
            branches, shared = before.branches, before.shared
            if known < len(before.ids):
                branches = (*(b for b in branches if b < known * self._grid), known * self._grid)
                number, shared = self._next, known
        placed = [*marks, *((TURN, t) for t in turns), *((BRANCH, b) for b in branches)]
        shape = shape_of(length, self._grid, placed)
        self._remember(number, _Chain(ids, turns, branches, shape, shared), 0 if number == self._next else known)
        return self.rollbacks.density(shape)

    def _remember(self, number: int, chain: _Chain, owned: int) -> None:
        self._next = max(self._next, number + 1)
        self._chains[number] = chain
        self._chains.move_to_end(number)
        self._owner.update(dict.fromkeys(chain.ids[owned:], number))
        if len(self._chains) > self._limit:
            self._forget(*self._chains.popitem(last=False))

    def _forget(self, number: int, chain: _Chain) -> None:
        """Drops a chain's ids; what another chain shares of them passes on to that one, so that known ids have no gap."""
        owner, ids = self._owner, chain.ids
        first = next((place for place, id in enumerate(ids) if owner.get(id) == number), len(ids))
        shared = self._bequeath(ids, first) if first < chain.shared else first
        for id in ids[max(first, shared) :]:
            if owner.get(id) == number:
                del owner[id]

    def _bequeath(self, ids: Ids, first: int) -> int:
        """Gives the ids from `first` on to the chain that shares most of them; returns how far. Before `first` others own all, so
        only who shares that id can inherit more."""
        here = ids[first] if first < len(ids) else None
        heirs = [chain for chain in self._chains.items() if first < len(chain[1].ids) and chain[1].ids[first] == here]
        if not heirs:
            return first
        shared, heir, chain = max(((common_steps(ids, c.ids), n, c) for n, c in heirs), key=lambda found: found[0])
        chain.shared = max(chain.shared, shared)
        self._owner.update(dict.fromkeys(ids[first:shared], heir))
        return shared
