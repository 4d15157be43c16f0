"""The simulator under a byte budget: a chain parked at once is its blocks parked one by one, and memory is bounded."""

import random

import pytest

from kvcache.budgeted import Budget, Budgeted, Sizes
from kvcache.facts import EntryKind
from kvcache.simulate import Known, Turn
from kvcache.tree import Held
from kvcache.watch import Ids

SIZES = Sizes(10, 3000)
GRID = 16


class OneByOne(Budgeted):
    """Parks as the RAM tier does: room for each block, then the block."""

    def _park_blocks(self, ids: Ids, stored: int, end: int, now: float) -> int:
        nbytes = self.budget.sizes.token * GRID
        for step in range(stored, end):
            parent = ids[step - 1] if step else b"root"
            anchor = self._tree.deepest_checkpoint(parent)  # type: ignore[arg-type]
            spared = [(EntryKind.BLOCK, parent), *([(EntryKind.CHECKPOINT, anchor)] if anchor is not None else [])]
            if not self._room(nbytes, spared):  # type: ignore[arg-type]
                return step
            self._tree.add_block(ids[step], parent, step * GRID, (step + 1) * GRID, Held(nbytes, True, now))  # type: ignore[arg-type]
        return max(stored, end)


def trace(seed: int, count: int) -> list[Turn]:
    """Conversations that grow, go back, branch, and end; a time of its own for each turn."""
    rng = random.Random(seed)
    fresh = iter(range(1, 10**9))
    chats = [[next(fresh) for _ in range(20)] for _ in range(6)]
    turns = []
    for now in range(count):
        at = rng.randrange(len(chats))
        if rng.random() < 0.1:
            chats[at] = [next(fresh) for _ in range(rng.randrange(1, 60))]
        elif rng.random() < 0.2:
            chats[at] = chats[rng.randrange(len(chats))][: rng.randrange(1, 40)]
        chats[at] = (chats[at] + [next(fresh) for _ in range(rng.randrange(1, 12))])[:150]
        ids = list(chats[at])
        marks = (("tools_end", GRID), ("system_end", 3 * GRID))
        turns.append(Turn(str(at), len(ids) * GRID + rng.randrange(1, GRID), ids, float(now), 0, marks))
    return turns


@pytest.mark.parametrize("evict", ["lru", "lfu", "adaptive", "cost"])
@pytest.mark.parametrize("nbytes", [30_000, 120_000, 10**9])
def test_a_chain_parked_at_once_is_its_blocks_parked_one_by_one(evict: str, nbytes: int) -> None:
    budget = Budget("adaptive" if evict == "adaptive" else "interval+newest+branches", evict, nbytes, SIZES, GRID, 128)
    at_once, slowly = Budgeted(budget), OneByOne(budget)
    for turn in trace(4, 400):
        assert at_once.turn(turn).resumed == slowly.turn(turn).resumed
        assert at_once.held_bytes == slowly.held_bytes <= nbytes


def test_what_is_remembered_does_not_grow_with_the_trace() -> None:
    simulator = Budgeted(Budget("adaptive", "adaptive", 200_000, SIZES, GRID), known=Known(limit=5000))
    sizes = []
    for part in range(4):
        for turn in trace(10 + part, 500):
            ids = [(part, id) for id in turn.ids]
            simulator.turn(Turn(f"{part}/{turn.conversation}", turn.length, ids, part * 500 + turn.time, 0, turn.marks))
        tree = simulator._tree
        sizes.append(len(tree._nodes) + len(tree._heap) + len(tree._marked))
        assert simulator._known.size <= 10_200
    assert max(sizes) < 12_000 and sizes[-1] < 1.5 * sizes[0] + 500
