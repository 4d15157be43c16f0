"""The simulator under a byte budget shared by all conversations: the same tree and eviction keys as the RAM tier, no payload."""

from bisect import bisect_left
from collections.abc import Hashable
from dataclasses import dataclass

from kvcache.adaptive import Curve, Rollbacks
from kvcache.eviction import by_name
from kvcache.facts import EntryKind
from kvcache.placement import PlacementFacts, positions
from kvcache.simulate import Known, Outcome, Turn
from kvcache.thinning import LEAST_TOKENS, worths
from kvcache.tree import Held, Tree
from kvcache.watch import Ids, Watch

BLOCK, CHECKPOINT = EntryKind.BLOCK, EntryKind.CHECKPOINT
ROOT = b"root"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a model's state: attention KV a token, and one checkpoint."""

    token: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Budget:
    """`nbytes` for blocks and checkpoints of all conversations together; `evict` is one of eviction.KEYS."""

    placement: str
    evict: str
    nbytes: int
    sizes: Sizes
    grid: int
    interval: int = 0


class Budgeted:
    """Replays turns against one byte budget. A prefix is resumed where all its blocks and a checkpoint are held."""

    def __init__(self, budget: Budget, rollbacks: Rollbacks | None = None, known: Known | None = None) -> None:
        """Raises UnknownPolicy."""
        positions(budget.placement, PlacementFacts(1, 0, budget.grid, 0))
        self.budget = budget
        self._tree = Tree(by_name(budget.evict), True, lambda kind, id: False)
        self._known = known or Known()
        self._watch = Watch(budget.grid, rollbacks or Rollbacks())
        self._learns = "adaptive" in (*budget.placement.split("+"), budget.evict)

    @property
    def held_bytes(self) -> int:
        return self._tree.used

    @property
    def held(self) -> int:
        """Checkpoints held now."""
        return self._tree.count(CHECKPOINT)

    def turn(self, turn: Turn) -> Outcome:
        """Serves one request and parks what is new of it. `rollback` is not followed here: None."""
        grid, ids = self.budget.grid, turn.ids
        known = self._known(ids)
        stored = bisect_left(range(len(ids)), True, key=lambda i: self._tree.get(BLOCK, _key(ids[i])) is None)
        resumed = self._resume(ids, min(stored, (turn.length - 1) // grid), turn.time)
        curve = self._watch.note(ids, turn.length, turn.marks) if self._learns else None
        if curve is not None:
            self._judge(ids, curve, turn.time)
        self._park_blocks(ids, stored, turn.time)
        self._park_checkpoints(ids, self._placed(turn, resumed, curve), turn.time)
        return Outcome(turn.length, known * grid, resumed * grid, None)

    def _resume(self, ids: Ids, usable: int, now: float) -> int:
        """Steps of the deepest checkpoint within `usable`; a load touches the end of a chain alone, as the tier does."""
        found = self._tree.deepest_checkpoint(_key(ids[usable - 1])) if usable else None
        node = self._tree.node(found) if found is not None else None
        if node is None:
            return 0
        self._tree.touch(CHECKPOINT, node.id, now)
        self._tree.touch(BLOCK, node.id, now)
        return node.position // self.budget.grid

    def _placed(self, turn: Turn, resumed: int, curve: Curve | None) -> list[int]:
        grid, interval = self.budget.grid, self.budget.interval
        kept = tuple(step * grid for step, _ in self._checkpoints(turn.ids)) if curve is not None else ()
        marks = tuple((position, kind, False) for kind, position in turn.marks)
        facts = PlacementFacts(turn.length, resumed * grid, grid, interval, marks, (), curve, kept)
        return [position // grid for position in positions(self.budget.placement, facts)]

    def _park_blocks(self, ids: Ids, stored: int, now: float) -> None:
        grid, nbytes = self.budget.grid, self.budget.sizes.token * self.budget.grid
        parent = _key(ids[stored - 1]) if stored else ROOT
        anchor = self._tree.deepest_checkpoint(parent)
        for index in range(stored, len(ids)):
            spared = [(BLOCK, parent), *([(CHECKPOINT, anchor)] if anchor is not None else [])]
            if not self._room(nbytes, spared):
                return
            id = _key(ids[index])
            self._tree.add_block(id, parent, index * grid, (index + 1) * grid, Held(nbytes, True, now))
            parent = id

    def _park_checkpoints(self, ids: Ids, steps: list[int], now: float) -> None:
        for step in steps:
            id = _key(ids[step - 1])
            absent = self._tree.get(CHECKPOINT, id) is None and self._tree.get(BLOCK, id) is not None
            if absent and self._room(self.budget.sizes.checkpoint, [(BLOCK, id)]):
                self._tree.add_checkpoint(id, step * self.budget.grid, Held(self.budget.sizes.checkpoint, True, now))

    def _room(self, nbytes: int, spared: list[tuple[EntryKind, bytes]]) -> bool:
        if nbytes > self.budget.nbytes:
            return False
        if self._tree.used + nbytes > self.budget.nbytes:
            self._tree.make_room(nbytes, self.budget.nbytes, spared)
        return self._tree.used + nbytes <= self.budget.nbytes

    def _checkpoints(self, ids: Ids) -> list[tuple[int, bytes]]:
        """(steps, id) of the checkpoints held on a chain, ascending."""
        found: list[tuple[int, bytes]] = []
        stored = bisect_left(range(len(ids)), True, key=lambda i: self._tree.get(BLOCK, _key(ids[i])) is None)
        at = self._tree.deepest_checkpoint(_key(ids[stored - 1])) if stored else None
        while at is not None:
            node = self._tree.node(at)
            assert node is not None
            found.append((node.position // self.budget.grid, at))
            at = self._tree.deepest_checkpoint(node.parent) if node.parent is not None else None
        return found[::-1]

    def _judge(self, ids: Ids, curve: Curve, now: float) -> None:
        """As habits.Habits does: the checkpoints that were there learn what their conversation can spare."""
        held = self._checkpoints(ids)
        for (_, id), worth in zip(
            held, worths(curve, [step for step, _ in held], least=LEAST_TOKENS / self.budget.grid), strict=True
        ):
            self._tree.judge(id, worth, now)


def _key(id: Hashable) -> bytes:
    return id if isinstance(id, bytes) else id.to_bytes(8, "little") if isinstance(id, int) else repr(id).encode()
