"""The entries of one tier as a prefix tree, with the order in which they may be dropped. Holds no payload and does no I/O."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from heapq import heapify, heappop, heappush
from itertools import count

from kvcache.facts import EntryKind, EvictionFacts, EvictionKey

Order = tuple[float, ...]
Key = tuple[EntryKind, bytes]


@dataclass(slots=True)
class Held:
    """Bookkeeping of one stored entry. `dirty`: a copy to the tier below is still on its way."""

    nbytes: int
    canonical: bool
    last_used: float
    pinned: bool = False
    dirty: bool = False
    uses: int = 0
    fleeting: bool = False  # the tier below never gets it, and it goes before all that is not
    chance: float = 1.0  # below 1: its conversation can spare it (EvictionFacts)
    order: Order | None = None  # the order under which it waits in the heap; None: not a candidate


@dataclass(slots=True)
class Node:
    """A prefix, by chain id. It exists while a block, a checkpoint or a child needs it."""

    id: bytes
    position: int
    parent: bytes | None = None  # known once a block was stored
    block: Held | None = None
    checkpoint: Held | None = None
    kids: list[bytes] = field(default_factory=list)  # blocks stored here that continue from this prefix


class Tree:
    """Owns which entries one tier holds and their byte count; the tier owns the bytes themselves.

    Candidates for dropping are checkpoints, and blocks that no stored block or checkpoint stands on: so a chain never
    gets a gap. `backed` asks whether another tier holds the entry too. Not thread-safe: the Store's lock guards it.
    """

    def __init__(self, key: EvictionKey, needs_checkpoint: bool, backed: Callable[[EntryKind, bytes], bool]) -> None:
        self.used = 0
        self._nodes: dict[bytes, Node] = {}
        self._key = key
        self._needs_checkpoint = needs_checkpoint
        self._backed = backed
        self._heap: list[tuple[Order, int, EntryKind, bytes]] = []
        self._is_ordered = False  # the heap is filled when room is needed for the first time
        self._ticket = count()
        self._counts = {EntryKind.BLOCK: 0, EntryKind.CHECKPOINT: 0}
        self._marked: set[bytes] = set()  # ids with a checkpoint

    def __len__(self) -> int:
        return sum(self._counts.values())

    def count(self, kind: EntryKind) -> int:
        return self._counts[kind]

    def get(self, kind: EntryKind, id: bytes) -> Held | None:
        node = self._nodes.get(id)
        return None if node is None else _held(node, kind)

    def node(self, id: bytes) -> Node | None:
        return self._nodes.get(id)

    def all(self) -> Iterator[tuple[EntryKind, Node, Held]]:
        """Every held entry with its node."""
        for node in self._nodes.values():
            if node.block is not None:
                yield EntryKind.BLOCK, node, node.block
            if node.checkpoint is not None:
                yield EntryKind.CHECKPOINT, node, node.checkpoint

    def kids(self, id: bytes) -> tuple[bytes, ...]:
        node = self._nodes.get(id)
        return tuple(node.kids) if node else ()

    def add_block(self, id: bytes, parent: bytes, start: int, end: int, held: Held) -> None:
        """Adds a block of [start, end) that is not held yet; its parent may be missing here (another tier has it)."""
        node = self._node(id, end)
        node.parent, node.block = parent, held
        self._node(parent, start).kids.append(id)
        self._count(EntryKind.BLOCK, held)
        self._offer(EntryKind.BLOCK, node)

    def add_chain(self, ids: Sequence[bytes], parent: bytes, start: int, step: int, held: Callable[[], Held]) -> None:
        """add_block for each of `ids`, all `step` tokens long, each on the one before: only the last can be dropped."""
        nodes, above = self._nodes, self._node(parent, start)
        for id in ids:
            start += step
            above.kids.append(id)
            node = nodes.get(id)
            if node is None:
                node = nodes[id] = Node(id, start)
            node.parent, node.block = above.id, held()
            self.used += node.block.nbytes
            above = node
        self._counts[EntryKind.BLOCK] += len(ids)
        if ids:
            self._offer(EntryKind.BLOCK, above)

    def add_checkpoint(self, id: bytes, position: int, held: Held) -> None:
        """Adds a checkpoint that is not held yet; its block may be missing."""
        node = self._node(id, position)
        node.checkpoint = held
        self._marked.add(id)
        self._count(EntryKind.CHECKPOINT, held)
        self._offer(EntryKind.CHECKPOINT, node)

    def drop(self, kind: EntryKind, id: bytes) -> Held | None:
        """Forgets an entry; returns what was known of it, None when it was not held. What stands on it stays."""
        held, below = self._drop(kind, id)
        if below is not None:
            self._offer(EntryKind.BLOCK, below)
        return held

    def _drop(self, kind: EntryKind, id: bytes) -> tuple[Held | None, Node | None]:
        """As drop; and the node with the block that it stood on, which may be dropped next."""
        node = self._nodes.get(id)
        held = _held(node, kind) if node else None
        if node is None or held is None:
            return None, None
        self.used -= held.nbytes
        self._counts[kind] -= 1
        if kind is EntryKind.CHECKPOINT:
            node.checkpoint = None
            self._marked.discard(id)
            below = self._inherit(node, held)
        else:
            node.block = None
            below = self._leave_parent(node, held)
        self._tidy(node)
        return held, below

    def touch(self, kind: EntryKind, id: bytes, now: float) -> None:
        """Notes one use. Its stale, too small order in the heap is found out when it comes to the top."""
        held = self.get(kind, id)
        if held is not None:
            held.uses += 1
            held.last_used = max(held.last_used, now)

    def change(self, kind: EntryKind, id: bytes, *, pinned: bool | None = None, dirty: bool | None = None) -> bool:
        """Sets a flag; False when the entry is not held. A change may make it cheaper to lose, so it is offered anew."""
        node = self._nodes.get(id)
        held = _held(node, kind) if node else None
        if node is None or held is None:
            return False
        held.pinned = held.pinned if pinned is None else pinned
        held.dirty = held.dirty if dirty is None else dirty
        self._offer(kind, node)
        return True

    def judge(self, id: bytes, chance: float, now: float) -> None:
        """A checkpoint's conversation was here just now and can, or cannot, spare it (EvictionFacts.chance)."""
        held = self.get(EntryKind.CHECKPOINT, id)
        if held is not None:
            held.chance, held.last_used = chance, max(held.last_used, now)
            self._offer(EntryKind.CHECKPOINT, self._nodes[id])

    def make_room(self, need: int, budget: int, keep: Iterable[Key] = ()) -> tuple[Key, ...]:
        """Drops entries, smallest order first, until `need` more bytes fit into `budget`; names what it dropped.

        Entries in `keep` stay. When nothing else is left the bytes may still not fit: compare `used` afterwards.
        """
        spared, aside = set(keep), []
        gone: list[Key] = []
        if self.used + need > budget and not self._is_ordered:
            self._is_ordered = True
            for kind, node, _ in self.all():
                self._offer(kind, node)
        while self.used + need > budget and self._heap:
            order, ticket, kind, id = heappop(self._heap)
            if not self._is_due(order, kind, id):
                continue
            if (kind, id) in spared:
                aside.append((order, ticket, kind, id))
                continue
            self._drop_run(kind, id, budget - need, spared, gone)
        for entry in aside:
            heappush(self._heap, entry)
        return tuple(gone)

    def _drop_run(self, kind: EntryKind, id: bytes, limit: int, spared: set[Key], gone: list[Key]) -> None:
        """Drops an entry, and what it stood on as long as that is next in order anyway: most of a chain goes in one run, and its
        blocks need no place in the heap."""
        following: Key | None = (kind, id)
        while following is not None:
            _, below = self._drop(*following)
            gone.append(following)
            following = None
            if below is not None and below.block is not None and not below.kids and below.checkpoint is None:
                order = self._order(EntryKind.BLOCK, below, below.block)
                last = self.used <= limit or (EntryKind.BLOCK, below.id) in spared
                if last or (self._heap and self._heap[0][0] <= order):
                    self._offer(EntryKind.BLOCK, below)
                else:
                    following = (EntryKind.BLOCK, below.id)

    def keys_under(self, id: bytes) -> tuple[Key, ...]:
        """What could be held at a prefix and at all that stands on it, children first."""
        found, waiting = [], [id]
        while waiting:
            at = waiting.pop()
            found += [(EntryKind.BLOCK, at), (EntryKind.CHECKPOINT, at)]
            waiting += self.kids(at)
        return tuple(reversed(found))

    def checkpoints_along(self, ids: Sequence[bytes]) -> list[Node]:
        """The prefixes among `ids` whose checkpoint is held here, ascending by position."""
        return sorted((self._nodes[id] for id in self._marked.intersection(ids)), key=lambda node: node.position)

    def deepest_checkpoint(self, id: bytes) -> bytes | None:
        """The last prefix at or before `id` on its chain whose checkpoint is held here."""
        node = self._nodes.get(id)
        while node is not None and node.checkpoint is None:
            node = self._nodes.get(node.parent) if node.parent is not None else None
        return None if node is None else node.id

    def facts(self, kind: EntryKind, id: bytes) -> EvictionFacts:
        """What a policy may know of a held entry. Raises KeyError when it is not held."""
        node = self._nodes[id]
        held = _held(node, kind)
        if held is None:
            raise KeyError(id)
        view = _View(self, kind, node, held)
        return EvictionFacts(**{each.name: getattr(view, each.name) for each in fields(EvictionFacts)})

    def _node(self, id: bytes, position: int) -> Node:
        node = self._nodes.get(id)
        if node is None:
            node = self._nodes[id] = Node(id, position)
        return node

    def _count(self, kind: EntryKind, held: Held) -> None:
        self.used += held.nbytes
        self._counts[kind] += 1

    def _leave_parent(self, node: Node, held: Held) -> Node | None:
        above = self._nodes.get(node.parent) if node.parent is not None else None
        if above is None:
            return None
        above.kids.remove(node.id)
        self._tidy(above)
        return self._inherit(above, held)

    def _inherit(self, node: Node, held: Held) -> Node | None:
        """A block was in use whenever what stood on it was: so loads need to touch the end of a chain alone."""
        block = node.block
        if block is None:
            return None
        block.last_used = max(block.last_used, held.last_used)
        block.uses = max(block.uses, held.uses)
        return node

    def _tidy(self, node: Node) -> None:
        if node.block is None and node.checkpoint is None and not node.kids:
            self._nodes.pop(node.id, None)

    def is_backed(self, kind: EntryKind, id: bytes) -> bool:
        """Whether another tier holds it too."""
        return self._backed(kind, id)

    def saved(self, kind: EntryKind, node: Node) -> int:
        """Tokens decoded again if the entry is lost. A leaf block under no checkpoint saves no decoding where checkpoints are
        needed; elsewhere its own tokens."""
        if kind is EntryKind.BLOCK:
            above = self._nodes.get(node.parent) if node.parent is not None else None
            return 0 if self._needs_checkpoint else node.position - (above.position if above else 0)
        before = self.deepest_checkpoint(node.parent) if node.parent is not None else None
        return node.position - (self._nodes[before].position if before is not None else 0)

    def _order(self, kind: EntryKind, node: Node, held: Held) -> Order:
        key = self._key(_View(self, kind, node, held))
        barren = (
            self._needs_checkpoint and kind is EntryKind.BLOCK
        )  # no checkpoint stands on what may be dropped: nothing is lost
        return (held.dirty, held.pinned, not held.fleeting, not barren, *(key if isinstance(key, tuple) else (key,)))

    def _offer(self, kind: EntryKind, node: Node) -> None:
        """Puts an entry into the heap if it may be dropped now; entries it leaves behind there are skipped as not due."""
        held = _held(node, kind)
        if not self._is_ordered or held is None or (kind is EntryKind.BLOCK and (node.kids or node.checkpoint is not None)):
            return
        held.order = self._order(kind, node, held)
        heappush(self._heap, (held.order, next(self._ticket), kind, node.id))
        if len(self._heap) > 4 * len(self) + 64:
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapify(self._heap)

    def _is_current(self, entry: tuple[Order, int, EntryKind, bytes]) -> bool:
        held = self.get(entry[2], entry[3])
        return held is not None and held.order == entry[0]

    def _is_due(self, order: Order, kind: EntryKind, id: bytes) -> bool:
        """Whether the top of the heap may be dropped; one that was used since goes back with its new order."""
        node = self._nodes.get(id)
        held = _held(node, kind) if node else None
        if node is None or held is None or held.order != order:
            return False
        if kind is EntryKind.BLOCK and (node.kids or node.checkpoint is not None):
            held.order = None
            return False
        if self._order(kind, node, held) > order:
            self._offer(kind, node)
            return False
        return True


class _View:
    """See Evictable: a held entry, as it is now."""

    __slots__ = ("_held", "_node", "_tree", "kind")

    def __init__(self, tree: Tree, kind: EntryKind, node: Node, held: Held) -> None:
        self._tree, self.kind, self._node, self._held = tree, kind, node, held

    @property
    def nbytes(self) -> int:
        return self._held.nbytes

    @property
    def last_used(self) -> float:
        return self._held.last_used

    @property
    def uses(self) -> int:
        return self._held.uses

    @property
    def pinned(self) -> bool:
        return self._held.pinned

    @property
    def chance(self) -> float:
        return self._held.chance

    @property
    def position(self) -> int:
        return self._node.position

    @property
    def children(self) -> int:
        return len(self._node.kids)

    @property
    def saved_tokens(self) -> int:
        return self._tree.saved(self.kind, self._node)

    @property
    def backed(self) -> bool:
        return self._tree.is_backed(self.kind, self._node.id)


def _held(node: Node, kind: EntryKind) -> Held | None:
    return node.block if kind is EntryKind.BLOCK else node.checkpoint
