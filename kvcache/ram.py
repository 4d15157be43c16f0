"""The RAM tier: payloads under a byte budget that counts bookkeeping too and holds at every moment."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvcache.chain import pack_tokens, unpack_tokens
from kvcache.entry import Block, Checkpoint, Payload, Tier
from kvcache.errors import EntryGone
from kvcache.facts import EntryKind, EvictionKey
from kvcache.tree import Held, Key, Tree
from kvcache.views import EntryView, TierStats

# Measured with tracemalloc on CPython 3.11-3.13 (tests/kvcache/test_ram.py holds it): nodes, ids, dict slots, heap entries.
BLOCK_OVERHEAD = 1536
CHECKPOINT_OVERHEAD = 1536
PAGE = 4096


Clock = Callable[[], float]
"""Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A block's or checkpoint's bytes; `packed` are a block's tokens (4 bytes each, a tuple would take 36)."""

    parent: bytes
    start: int
    packed: bytes
    payload: Payload
    label: str
    session: str


class RamTier:
    """Holds payloads in this process. Not thread-safe: the Store's lock guards it.

    A payload that nobody can write to (`bytes`, a read-only memoryview) is kept without a copy: one of 20 MB into fresh memory
    costs 50 ms. A writable one is copied, after room was made for it, so that its owner may reuse the buffer.
    What is being written to disk is in `writing` and stays until the writer is done.
    """

    def __init__(
        self,
        budget: int,
        key: EvictionKey,
        clock: Clock,
        *,
        needs_checkpoint: bool,
        backed: Callable[[EntryKind, bytes], bool],
    ) -> None:
        self.budget = budget
        self.tree = Tree(key, needs_checkpoint, backed)
        self.writing: set[Key] = set()
        self.evictions = self.refused = self.loads = self.loaded_bytes = 0
        self._clock = clock
        self._needs_checkpoint = needs_checkpoint
        self._kept: dict[Key, _Kept] = {}

    def put_block(self, block: Block, *, session: str = "", fleeting: bool = False) -> bool:
        """Keeps a block, replacing one of the same id; False (changing nothing of it) when it cannot fit.

        Its parent and the last checkpoint of its own chain are not evicted for it: without them it is worth nothing.
        What is `fleeting` goes before anything else and never to the tier below.
        """
        cost = _taken(block.payload) + 4 * len(block.tokens) + BLOCK_OVERHEAD
        anchor = self.tree.deepest_checkpoint(block.parent) if self._needs_checkpoint else None
        keep = [(EntryKind.BLOCK, block.parent)] + ([(EntryKind.CHECKPOINT, anchor)] if anchor is not None else [])
        held = self._admit(EntryKind.BLOCK, block.id, cost, block.canonical, keep)
        if held is None:
            return False
        held.fleeting = fleeting
        self.tree.add_block(block.id, block.parent, block.start, block.end, held)
        packed = pack_tokens(block.tokens)
        self._kept[EntryKind.BLOCK, block.id] = _Kept(block.parent, block.start, packed, _own(block.payload), "", session)
        return True

    def put_checkpoint(
        self,
        checkpoint: Checkpoint,
        *,
        pinned: bool = False,
        label: str = "",
        chance: float = 1.0,
        session: str = "",
        fleeting: bool = False,
    ) -> bool:
        """Keeps a checkpoint, replacing one of the same id; False when it cannot fit. Its block is not evicted for it."""
        kind, cost = EntryKind.CHECKPOINT, _taken(checkpoint.payload) + CHECKPOINT_OVERHEAD
        held = self._admit(kind, checkpoint.id, cost, checkpoint.canonical, [(EntryKind.BLOCK, checkpoint.id)])
        if held is None:
            return False
        held.pinned, held.chance, held.fleeting = held.pinned or pinned, chance, fleeting
        self._kept[kind, checkpoint.id] = _Kept(b"", checkpoint.position, b"", _own(checkpoint.payload), label, session)
        self.tree.add_checkpoint(checkpoint.id, checkpoint.position, held)
        return True

    def block(self, id: bytes) -> Block:
        """A held block, without counting a use. Raises EntryGone."""
        kept, held = self._find(EntryKind.BLOCK, id)
        return Block(id, kept.parent, kept.start, unpack_tokens(kept.packed), kept.payload, held.canonical)

    def checkpoint(self, id: bytes) -> Checkpoint:
        """A held checkpoint, without counting a use. Raises EntryGone."""
        kept, held = self._find(EntryKind.CHECKPOINT, id)
        return Checkpoint(id, kept.start, kept.payload, held.canonical)

    def tokens(self, id: bytes) -> tuple[int, ...]:
        """The tokens of a held block. Raises EntryGone."""
        return unpack_tokens(self._find(EntryKind.BLOCK, id)[0].packed)

    def notes(self, kind: EntryKind, id: bytes) -> tuple[str, str]:
        """(label, session) of a held entry. Raises EntryGone."""
        kept, _ = self._find(kind, id)
        return kept.label, kept.session

    def used_now(self, kind: EntryKind, id: bytes) -> None:
        """Counts one load of an entry."""
        held = self.tree.get(kind, id)
        if held is not None:
            self.tree.touch(kind, id, self._clock())
            self.loads += 1
            self.loaded_bytes += held.nbytes

    def keys_under(self, id: bytes | None) -> tuple[Key, ...]:
        """An entry and all that stands on it here, children first; None: everything."""
        return tuple(self._kept) if id is None else self.tree.keys_under(id)

    def drop(self, kind: EntryKind, id: bytes) -> bool:
        """Forgets an entry at once; False when it was not held."""
        self._kept.pop((kind, id), None)
        return self.tree.drop(kind, id) is not None

    def stats(self) -> TierStats:
        blocks, checkpoints = self.tree.count(EntryKind.BLOCK), self.tree.count(EntryKind.CHECKPOINT)
        counters = (self.loads, self.loaded_bytes, self.evictions, self.refused)
        return TierStats(self.budget, self.tree.used, blocks, checkpoints, *counters)

    def entries(self) -> tuple[EntryView, ...]:
        """One line an entry, blocks before the checkpoint that stands on them."""
        return tuple(self._view(kind, node.id, node.position, held) for kind, node, held in self.tree.all())

    def _view(self, kind: EntryKind, id: bytes, position: int, held: Held) -> EntryView:
        kept = self._kept[kind, id]
        flags = (held.canonical, held.pinned, held.uses, held.last_used)
        return EntryView(id, kind, Tier.RAM, position, held.nbytes, *flags, kept.label, kept.session)

    def _find(self, kind: EntryKind, id: bytes) -> tuple[_Kept, Held]:
        kept, held = self._kept.get((kind, id)), self.tree.get(kind, id)
        if kept is None or held is None:
            raise EntryGone(f"{kind.value} {id.hex()}")
        return kept, held

    def _admit(self, kind: EntryKind, id: bytes, cost: int, canonical: bool, keep: Iterable[Key]) -> Held | None:
        """Makes room for `cost` bytes, the entry's old bytes counted as free; None when it does not fit."""
        old = self.tree.get(kind, id)
        spare = old.nbytes if old else 0
        if cost > self.budget or not self._make_room(cost - spare, [*keep, (kind, id)]):
            self.refused += 1
            return None
        self.drop(kind, id)
        uses, pinned = (old.uses, old.pinned) if old else (0, False)
        return Held(cost, canonical, self._clock(), pinned=pinned, uses=uses)

    def _make_room(self, need: int, keep: Iterable[Key]) -> bool:
        dropped = self.tree.make_room(need, self.budget, {*keep, *self.writing})
        for key in dropped:
            self._kept.pop(key, None)
        self.evictions += len(dropped)
        return self.tree.used + need <= self.budget


def _own(payload: Payload) -> Payload:
    return payload if isinstance(payload, bytes) or payload.readonly else bytes(payload)


def _taken(payload: Payload) -> int:
    """Bytes of memory behind a payload: views are of mapped buffers, whole pages each."""
    return len(payload) if isinstance(payload, bytes) else -(-len(payload) // PAGE) * PAGE
