"""The simulator under a byte budget: runs of blocks go as single blocks do in the RAM tier's tree, and memory is bounded."""

import random
from typing import cast

import pytest

from kvcache.adaptive import Curve
from kvcache.budgeted import Budget, Budgeted, Sizes
from kvcache.eviction import by_name
from kvcache.facts import EntryKind
from kvcache.placement import PlacementFacts, positions
from kvcache.simulate import Known, Outcome, Turn
from kvcache.thinning import LEAST_TOKENS, worths
from kvcache.tree import Held, Node, Tree

BLOCK, CHECKPOINT = EntryKind.BLOCK, EntryKind.CHECKPOINT
SIZES = Sizes(10, 3000)
GRID = 16


class OneByOne(Budgeted):
    """Parks as the RAM tier does, in the RAM tier's own tree: room for each block, then the block."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self.tree = Tree(by_name(budget.evict), True, lambda kind, id: False)

    @property
    def held_bytes(self) -> int:
        return self.tree.used

    def turn(self, turn: Turn) -> Outcome:
        ids, now = [cast(bytes, id) for id in turn.ids], turn.time
        stored = self._stored(ids, 0)
        nodes = self.tree.checkpoints_along(ids[:stored])
        usable = (turn.length - 1) // GRID
        found = next((node for node in reversed(nodes) if node.position <= usable * GRID), None)
        if found is not None:
            self.tree.touch(CHECKPOINT, found.id, now)
            self.tree.touch(BLOCK, found.id, now)
        curve = self._watch.note(ids, turn.length, turn.marks) if self._learns else None
        if curve is not None:
            worth = worths(curve, [node.position // GRID for node in nodes], least=LEAST_TOKENS / GRID)
            for node, chance in zip(nodes, worth, strict=True):
                self.tree.judge(node.id, chance, now)
        resumed = found.position if found is not None else 0
        self._keep(ids, stored, self._wanted(turn, resumed, curve, nodes, self._parted(ids, stored)), now)
        return Outcome(turn.length, 0, resumed, None)

    def _stored(self, ids: list[bytes], start: int) -> int:
        return next((step for step in range(start, len(ids)) if self.tree.get(BLOCK, ids[step]) is None), len(ids))

    def _parted(self, ids: list[bytes], stored: int) -> tuple[int, ...]:
        """Where another chain goes on from this one's blocks in another way."""
        following = [*ids[1:], b""]
        return tuple(
            (step + 1) * GRID for step in range(stored) if any(kid != following[step] for kid in self.tree.kids(ids[step]))
        )

    def _wanted(
        self, turn: Turn, start: int, curve: Curve | None, nodes: list[Node], branches: tuple[int, ...]
    ) -> tuple[int, ...]:
        kept = tuple(node.position for node in nodes) if curve is not None else ()
        marks = tuple((position, kind, False) for kind, position in turn.marks)
        return positions(
            self.budget.placement,
            PlacementFacts(turn.length, start, GRID, self.budget.interval, marks, branches, curve, kept),
        )

    def _keep(self, ids: list[bytes], stored: int, wanted: tuple[int, ...], now: float) -> None:
        for position in wanted:
            stored = self._add_blocks(ids, min(stored, self._stored(ids, 0)), position // GRID, now)
            id = ids[position // GRID - 1]
            absent = self.tree.get(CHECKPOINT, id) is None and self.tree.get(BLOCK, id) is not None
            if absent and self._fits(SIZES.checkpoint, [(BLOCK, id)]):
                self.tree.add_checkpoint(id, position, Held(SIZES.checkpoint, True, now))
        self._add_blocks(ids, min(stored, self._stored(ids, 0)), len(ids), now)

    def _add_blocks(self, ids: list[bytes], stored: int, end: int, now: float) -> int:
        for step in range(stored, end):
            parent = ids[step - 1] if step else b"root"
            anchor = self.tree.deepest_checkpoint(parent)
            spared = [(BLOCK, parent), *([(CHECKPOINT, anchor)] if anchor is not None else [])]
            if not self._fits(SIZES.token * GRID, spared):
                return step
            self.tree.add_block(ids[step], parent, step * GRID, (step + 1) * GRID, Held(SIZES.token * GRID, True, now))
        return max(stored, end)

    def _fits(self, nbytes: int, spared: list[tuple[EntryKind, bytes]]) -> bool:
        self.tree.make_room(nbytes, self.budget.nbytes, spared)
        return self.tree.used + nbytes <= self.budget.nbytes


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
        held = simulator._runs
        sizes.append(held.runs + held.points + len(held._heap))
        assert simulator._known.size <= 10_200
    assert max(sizes) < 2_000 and sizes[-1] < 1.5 * sizes[0] + 500


def test_a_branch_point_is_placed_where_a_prompt_leaves_an_earlier_one_and_found_by_the_next() -> None:
    simulator = Budgeted(Budget("branches", "lru", 10**9, SIZES, GRID))
    chains = [[1, 2, 3, 4], [1, 2, 30, 40], [1, 2, 31, 41]]
    outcomes = [simulator.turn(Turn("a", 4 * GRID + 1, ids, float(now))) for now, ids in enumerate(chains)]
    assert [outcome.resumed for outcome in outcomes] == [0, 0, 2 * GRID]
