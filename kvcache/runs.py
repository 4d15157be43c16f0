"""The entries of the simulated tier, a run of blocks at a time: what tree.Tree would hold and drop, without a node a block.

Blocks that were parked together have one last use until the last of them is dropped, so they need one place in the order and
are dropped by counting. A run is cut where a checkpoint stands and where chains part. Ties are settled as Tree does (a test
runs both beside each other). All positions are in grid steps.
"""

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

from kvcache.facts import EntryKind, EvictionKey
from kvcache.watch import Ids

Order = tuple[bool, Any]


@dataclass(slots=True, eq=False)
class Run:
    """Blocks of the steps (start, end], by id; to an eviction key it is its last block. `base`: last use of the others."""

    ids: list[Hashable]
    end: int
    parent: "Run | None"
    born: int
    base: float
    last_used: float
    nbytes: int
    uses: int = 0
    point: "Point | None" = None
    kids: dict[Hashable, "Run"] = field(default_factory=dict)  # by their first id
    order: Order | None = None
    kind: EntryKind = EntryKind.BLOCK
    pinned: bool = False
    saved_tokens: int = 0  # nothing stands on a block that may be dropped
    backed: bool = False
    chance: float = 1.0

    @property
    def position(self) -> int:
        return self.end

    @property
    def children(self) -> int:
        return len(self.kids)

    @property
    def is_free(self) -> bool:
        return not self.kids and self.point is None and self.parent is not None


@dataclass(slots=True, eq=False)
class Point:
    """The checkpoint at the end of a run, as an eviction key sees it. `grid`: tokens a step."""

    run: Run
    grid: int
    last_used: float
    nbytes: int
    uses: int = 0
    chance: float = 1.0
    order: Order | None = None
    kind: EntryKind = EntryKind.CHECKPOINT
    pinned: bool = False
    backed: bool = False

    @property
    def position(self) -> int:
        return self.run.end * self.grid

    @property
    def children(self) -> int:
        return len(self.run.kids)

    @property
    def saved_tokens(self) -> int:
        before = anchor(self.run.parent)
        return (self.run.end - (before.run.end if before else 0)) * self.grid


def anchor(run: Run | None) -> Point | None:
    """The last checkpoint at or before the end of a run on its chain."""
    while run is not None and run.point is None:
        run = run.parent
    return None if run is None else run.point


@dataclass(frozen=True, slots=True)
class Path:
    """How far a chain is held: all of `runs`, and `inside` blocks of `partial` after them."""

    runs: list[Run]
    partial: Run | None
    inside: int

    @property
    def stored(self) -> int:
        return self.runs[-1].end + self.inside

    @property
    def branches(self) -> list[int]:
        """Steps where an earlier chain went another way than this one, those where this one leaves it included."""
        points = [run.end for run in self.runs[1:-1] if len(run.kids) > 1]
        return [*points, self.stored] if self.inside or (self.stored and self.runs[-1].kids) else points


class Runs:
    """Owns what is held and how many bytes it is: `block` and `checkpoint` bytes each, dropped by `key`. Not thread-safe."""

    def __init__(self, key: EvictionKey, grid: int, block: int, checkpoint: int) -> None:
        self.used = self.points = 0
        self.root = Run([], 0, None, 0, 0.0, 0.0, 0)
        self._key, self._grid, self._block, self._checkpoint = key, grid, block, checkpoint
        self._heap: list[tuple[Order, int, Run | Point, int]] = []
        self._is_ordered = False  # the heap is filled when room is needed for the first time
        self._ticket = count()
        self._born = count(1)
        self.runs = 0

    def walk(self, ids: Ids) -> Path:
        """Ids are chained, so a run is held by a chain when its last id is."""
        runs, at, size = [self.root], self.root, len(ids)
        while at.end < size:
            kid = at.kids.get(ids[at.end])
            if kid is None:
                break
            if kid.end > size or ids[kid.end - 1] != kid.ids[-1]:
                return Path(runs, kid, _shared(kid.ids, ids, at.end))
            runs.append(kid)
            at = kid
        return Path(runs, None, 0)

    def cut(self, run: Run, inside: int) -> Run:
        """Makes the first `inside` blocks of a run one of their own, and returns it: fewer than it has."""
        above = run.parent
        assert above is not None
        upper = Run(run.ids[:inside], above.end + inside, above, run.born, run.base, run.base, run.nbytes)
        above.kids[upper.ids[0]] = upper
        run.ids = run.ids[inside:]
        run.parent = upper
        upper.kids[run.ids[0]] = run
        self.runs += 1
        return upper

    def extend(self, parent: Run, ids: Sequence[Hashable], now: float) -> Run:
        """Adds new blocks, at least one, on a run's end; only the last can be dropped."""
        run = Run(list(ids), parent.end + len(ids), parent, next(self._born), now, now, self._block)
        parent.kids[run.ids[0]] = run
        self.used += self._block * len(ids)
        self.runs += 1
        self._offer(run)
        return run

    def mark(self, run: Run, now: float) -> None:
        """Adds the checkpoint at a run's end."""
        run.point = Point(run, self._grid, now, self._checkpoint)
        self.used += self._checkpoint
        self.points += 1
        self._offer(run.point)

    def touch(self, point: Point, now: float) -> None:
        """A checkpoint and the block that it stands on were used once."""
        for entry in (point, point.run):
            entry.uses += 1
            entry.last_used = max(entry.last_used, now)

    def judge(self, point: Point, chance: float, now: float) -> None:
        """As Tree.judge. An order that stays needs no new place."""
        point.chance, point.last_used = chance, max(point.last_used, now)
        if self._is_ordered and self._order(point) != point.order:
            self._offer(point)

    def make_room(self, need: int, budget: int, keep: Sequence[Run | Point | None]) -> None:
        """Drops entries, smallest order first, until `need` more bytes fit into `budget`, or only `keep` is left."""
        limit, aside = budget - need, []
        if self.used > limit and not self._is_ordered:
            self._order_all()
        while self.used > limit and self._heap:
            entry = heappop(self._heap)
            if not self._is_due(entry):
                continue
            if entry[2] in keep:
                aside.append(entry)
            elif isinstance(entry[2], Point):
                self._drop_point(entry[2], limit, keep)
            else:
                self._drop_blocks(entry[2], limit, keep)
        for entry in aside:
            heappush(self._heap, entry)

    def _order_all(self) -> None:
        """As Tree has them: in the order in which they were added."""
        self._is_ordered = True
        found, waiting = [], [self.root]
        while waiting:
            run = waiting.pop()
            waiting += run.kids.values()
            found.append(run)
        for run in sorted(found, key=lambda run: (run.born, run.end)):
            self._offer(run)
            if run.point is not None:
                self._offer(run.point)

    def _drop_point(self, point: Point, limit: int, keep: Sequence[Run | Point | None]) -> None:
        run = point.run
        run.point = None
        self.used -= self._checkpoint
        self.points -= 1
        _inherit(run, point)
        if run.is_free:
            self._go_on(run, limit, keep)

    def _go_on(self, run: Run, limit: int, keep: Sequence[Run | Point | None]) -> None:
        """Drops from a run that just came free at once where it is next in order anyway."""
        if self.used <= limit or run in keep or self._is_behind(self._order(run)):
            self._offer(run)
        else:
            self._drop_blocks(run, limit, keep)

    def _is_behind(self, order: Order) -> bool:
        return bool(self._heap) and self._heap[0][0] <= order

    def _drop_blocks(self, run: Run, limit: int, keep: Sequence[Run | Point | None]) -> None:
        """As many blocks of a run as are needed; one, where another entry is as due as what is left."""
        wanted = 1 if self._is_behind(self._order(run)) else -(-(self.used - limit) // self._block)
        number = min(wanted, len(run.ids))
        self.used -= number * self._block
        if number < len(run.ids):
            del run.ids[-number:]
            run.end -= number
            self._offer(run)
            return
        above = run.parent
        assert above is not None
        del above.kids[run.ids[0]]
        run.order = None
        self.runs -= 1
        _inherit(above, run)
        if above.is_free:
            self._go_on(above, limit, keep)

    def _order(self, entry: Run | Point) -> Order:
        """Blocks that may be dropped go before all checkpoints: nothing is lost with them."""
        return (entry.kind is EntryKind.CHECKPOINT, self._key(entry))

    def _offer(self, entry: Run | Point) -> None:
        if not self._is_ordered or (isinstance(entry, Run) and not entry.is_free):
            return
        entry.order = self._order(entry)
        heappush(self._heap, (entry.order, next(self._ticket), entry, entry.position))
        if len(self._heap) > 4 * (self.runs + self.points) + 64:
            self._heap = [waiting for waiting in self._heap if waiting[2].order == waiting[0] and _is_there(waiting)]
            heapify(self._heap)

    def _is_due(self, waiting: tuple[Order, int, Run | Point, int]) -> bool:
        """As Tree._is_due: one that was used since goes back with its new order."""
        order, _, entry, _ = waiting
        if entry.order != order or not _is_there(waiting):
            return False
        if isinstance(entry, Run) and not entry.is_free:
            entry.order = None
            return False
        if self._order(entry) > order:
            self._offer(entry)
            return False
        return True


def _is_there(waiting: tuple[Order, int, Run | Point, int]) -> bool:
    """Whether an entry of the heap is still held and ends where it did."""
    _, _, entry, position = waiting
    return position == entry.position and (isinstance(entry, Run) or entry.run.point is entry)


def _inherit(run: Run, entry: Run | Point) -> None:
    """A block was in use whenever what stood on it was."""
    run.last_used = max(run.last_used, entry.last_used)
    run.uses = max(run.uses, entry.uses)


def _shared(held: Sequence[Hashable], ids: Ids, start: int) -> int:
    """Leading ids of a run that a chain has from `start` on."""
    size = min(len(held), len(ids) - start)
    return bisect_left(range(size), True, key=lambda i: held[i] != ids[start + i])
