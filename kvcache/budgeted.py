"""The simulator under a byte budget shared by all conversations: the same tree and eviction keys as the RAM tier, no payload."""

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import cast

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
        held = [] if curve is None else self._checkpoints(ids[:stored])
        if curve is not None:
            self._judge(held, curve, turn.time)
        placed = self._placed(turn, resumed, curve, held)
        self._park(ids, stored, placed, turn.time)
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

    def _placed(self, turn: Turn, resumed: int, curve: Curve | None, held: Sequence[tuple[int, bytes]]) -> list[int]:
        grid, interval = self.budget.grid, self.budget.interval
        kept = tuple(step * grid for step, _ in held)
        marks = tuple((position, kind, False) for kind, position in turn.marks)
        facts = PlacementFacts(turn.length, resumed * grid, grid, interval, marks, (), curve, kept)
        return [position // grid for position in positions(self.budget.placement, facts)]

    def _park(self, ids: Ids, stored: int, placed: Sequence[int], now: float) -> None:
        """As the engine does while it reads: the blocks up to each checkpoint, then the checkpoint."""
        for step in placed:
            stored = self._park_blocks(ids, stored, step, now)
            self._park_checkpoint(ids, step, now)
        self._park_blocks(ids, stored, len(ids), now)

    def _park_blocks(self, ids: Ids, stored: int, end: int, now: float) -> int:
        """What is new of a chain up to `end` steps, or as much as there is room for; returns how far it is stored now."""
        if stored >= end:
            return stored
        grid, nbytes = self.budget.grid, self.budget.sizes.token * self.budget.grid
        parent = _key(ids[stored - 1]) if stored else ROOT
        anchor = self._tree.deepest_checkpoint(parent)
        spared = [(BLOCK, parent), *([(CHECKPOINT, anchor)] if anchor is not None else [])]
        wanted = min(end - stored, self.budget.nbytes // nbytes)
        self._room(wanted * nbytes, spared)
        fitting = min(wanted, (self.budget.nbytes - self._tree.used) // nbytes)
        new = [_key(id) for id in ids[stored : stored + fitting]]
        self._tree.add_chain(new, parent, stored * grid, grid, lambda: Held(nbytes, True, now))
        return stored + fitting

    def _park_checkpoint(self, ids: Ids, step: int, now: float) -> None:
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
        nodes = self._tree.checkpoints_along(cast(Sequence[bytes], ids))
        return [(node.position // self.budget.grid, node.id) for node in nodes]

    def _judge(self, held: Sequence[tuple[int, bytes]], curve: Curve, now: float) -> None:
        """As habits.Habits does: the checkpoints that were there learn what their conversation can spare."""
        for (_, id), worth in zip(
            held, worths(curve, [step for step, _ in held], least=LEAST_TOKENS / self.budget.grid), strict=True
        ):
            self._tree.judge(id, worth, now)


def _key(id: Hashable) -> bytes:
    """The tree compares ids and no more, so whatever names a block in a trace will do."""
    return cast(bytes, id)
