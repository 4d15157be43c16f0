"""The simulator under a byte budget shared by all conversations: the same tree and eviction keys as the RAM tier, no payload."""

from bisect import bisect_left
from collections.abc import Hashable
from dataclasses import dataclass

from kvcache.adaptive import Curve, Rollbacks
from kvcache.eviction import by_name
from kvcache.facts import EntryKind
from kvcache.placement import PlacementFacts, positions
from kvcache.simulate import Known, Outcome, Turn
from kvcache.thinning import chances
from kvcache.tree import Held, Tree
from kvcache.watch import Watch

BLOCK, CHECKPOINT = EntryKind.BLOCK, EntryKind.CHECKPOINT
ROOT = b"root"
LEARNED = 16
"""Checkpoints that adaptive placement asks for in one conversation; the budget decides how many of them stay."""


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
        grid, ids = self.budget.grid, [_key(id) for id in turn.ids]
        known = self._known(turn.ids)
        stored = bisect_left(range(len(ids)), True, key=lambda i: self._tree.get(BLOCK, ids[i]) is None)
        resumed = self._resume(ids[: min(stored, (turn.length - 1) // grid)], turn.time)
        curve = self._watch.note(turn.ids, turn.length, turn.marks) if self._learns else None
        self._park_blocks(ids, stored, turn.time)
        self._park_checkpoints(ids, self._placed(turn, ids, resumed, curve), turn.time)
        if curve is not None:
            self._tell_chances(ids, curve)
        return Outcome(turn.length, known * grid, resumed * grid, None)

    def _resume(self, ids: list[bytes], now: float) -> int:
        found = self._tree.deepest_checkpoint(ids[-1]) if ids else None
        node = self._tree.node(found) if found is not None else None
        if node is None:
            return 0
        resumed = node.position // self.budget.grid
        self._tree.touch(CHECKPOINT, node.id, now)
        for id in ids[:resumed]:
            self._tree.touch(BLOCK, id, now)
        return resumed

    def _placed(self, turn: Turn, ids: list[bytes], resumed: int, curve: Curve | None) -> list[int]:
        grid = self.budget.grid
        kept = tuple((i + 1) * grid for i in self._checkpoints(ids)) if curve is not None else ()
        marks = tuple((position, kind, False) for kind, position in turn.marks)
        interval = self.budget.interval
        facts = PlacementFacts(turn.length, resumed * grid, grid, interval, marks, (), curve, kept, LEARNED)
        return [position // grid for position in positions(self.budget.placement, facts)]

    def _park_blocks(self, ids: list[bytes], stored: int, now: float) -> None:
        nbytes = self.budget.sizes.token * self.budget.grid
        for index in range(stored, len(ids)):
            parent = ids[index - 1] if index else ROOT
            anchor = self._tree.deepest_checkpoint(parent)
            spared = [(BLOCK, parent), *([(CHECKPOINT, anchor)] if anchor is not None else [])]
            if not self._room(nbytes, spared):
                return
            self._tree.add_block(
                ids[index], parent, index * self.budget.grid, (index + 1) * self.budget.grid, Held(nbytes, True, now)
            )

    def _park_checkpoints(self, ids: list[bytes], steps: list[int], now: float) -> None:
        for step in steps:
            id = ids[step - 1]
            absent = self._tree.get(CHECKPOINT, id) is None and self._tree.get(BLOCK, id) is not None
            if absent and self._room(self.budget.sizes.checkpoint, [(BLOCK, id)]):
                self._tree.add_checkpoint(id, step * self.budget.grid, Held(self.budget.sizes.checkpoint, True, now))

    def _room(self, nbytes: int, spared: list[tuple[EntryKind, bytes]]) -> bool:
        if nbytes > self.budget.nbytes:
            return False
        self._tree.make_room(nbytes, self.budget.nbytes, spared)
        return self._tree.used + nbytes <= self.budget.nbytes

    def _checkpoints(self, ids: list[bytes]) -> list[int]:
        return [index for index, id in enumerate(ids) if self._tree.get(CHECKPOINT, id) is not None]

    def _tell_chances(self, ids: list[bytes], curve: Curve) -> None:
        """What the Store does after a turn: its checkpoints learn how likely the next prompt resumes at each."""
        held = self._checkpoints(ids)
        for index, chance in zip(held, chances(curve, [index + 1 for index in held]), strict=True):
            entry = self._tree.get(CHECKPOINT, ids[index])
            if entry is not None:
                entry.chance = chance
                self._tree.change(CHECKPOINT, ids[index])


def _key(id: Hashable) -> bytes:
    return id if isinstance(id, bytes) else id.to_bytes(8, "little") if isinstance(id, int) else repr(id).encode()
