"""The Store: the one place that changes what is cached, thread-safe behind one lock. The engine thread only copies in RAM."""

import time
from collections.abc import Iterator, Sequence
from threading import RLock

from kvcache import eviction
from kvcache.chain import chain_ids
from kvcache.config import CacheConfig
from kvcache.entry import Block, BlockRef, Checkpoint, CheckpointRef, Match, Tier
from kvcache.facts import EntryKind
from kvcache.ram import Clock, RamTier
from kvcache.sessions import Sessions
from kvcache.tree import Held
from kvcache.views import CheckReport, EntryView, StoreStats, TierStats

BLOCK, CHECKPOINT = EntryKind.BLOCK, EntryKind.CHECKPOINT


class Store:
    """Blocks and checkpoints of one model with one set of settings; `root` is the chain id of the empty prefix.

    A block is stored once however many branches share it. `needs_checkpoint` says that a prefix can only be resumed at
    a checkpoint (window, hybrid, recurrent). With both budgets 0 it holds nothing and every match is empty.
    """

    def __init__(self, config: CacheConfig, root: bytes, needs_checkpoint: bool, *, clock: Clock = time.time) -> None:
        self.config = config
        self.root = root
        self.needs_checkpoint = needs_checkpoint
        self._lock = RLock()
        self._clock = clock
        key = eviction.by_name(config.eviction)
        self._ram = RamTier(config.ram_bytes, key, clock, needs_checkpoint=needs_checkpoint, backed=lambda kind, id: False)
        self._sessions = Sessions(clock)
        self._lookups = self._hits = self._asked = self._matched = 0

    def match(self, tokens: Sequence[int], *, canonical_only: bool = False) -> Match:
        """What is stored of `tokens`; a plain miss is an empty match. Counts a lookup, not a use of what it names."""
        ids = chain_ids(self.root, tokens, self.config.grid) if self.enabled else ()
        with self._lock:
            found = Match(ids, self._blocks_along(ids, canonical_only), self._checkpoints_along(ids, canonical_only))
            self._count_lookup(len(tokens), found)
        return found

    @property
    def enabled(self) -> bool:
        """Whether any tier is on."""
        return self.config.ram_bytes > 0

    def load_block(self, ref: BlockRef) -> Block:
        """The block a match named. Raises EntryGone, DamagedEntry; then a new match is shorter."""
        with self._lock:
            block = self._ram.block(ref.id)
            self._ram.used_now(BLOCK, ref.id)
            return block

    def load_checkpoint(self, ref: CheckpointRef) -> Checkpoint:
        """The checkpoint a match named. Raises EntryGone, DamagedEntry; then a new match has it no more."""
        with self._lock:
            checkpoint = self._ram.checkpoint(ref.id)
            self._ram.used_now(CHECKPOINT, ref.id)
            return checkpoint

    def restore(self, match: Match, position: int, from_: int = 0) -> Iterator[Block]:
        """The stored blocks of [from_, position) in order, read ahead while the caller loads the one before.

        A payload is valid until the next block is asked for. Raises as load_block does; blocks handed out before stay good.
        """
        for ref in match.blocks:
            if from_ <= ref.start and ref.end <= position:
                yield self.load_block(ref)

    def has_block(self, id: bytes, canonical: bool = False) -> bool:
        """Whether a block is stored in any tier; with `canonical` only one that a strict request may use counts."""
        with self._lock:
            return self._find(BLOCK, id, canonical) is not None

    def has_checkpoint(self, id: bytes, canonical: bool = False) -> bool:
        with self._lock:
            return self._find(CHECKPOINT, id, canonical) is not None

    def park_block(self, block: Block, session: str | None = None) -> bool:
        """Keeps a block whose parent is stored (or the root); False when there is no room or a gap before it.

        A `bytes` payload is kept without a copy, a memoryview is copied before this returns. What is stored already is
        left alone, except that a canonical block replaces one that is not.
        """
        with self._lock:
            if self._find(BLOCK, block.id, block.canonical) is not None:
                return True
            if not self.enabled or (block.parent != self.root and self._find(BLOCK, block.parent, False) is None):
                return False
            stored = self._ram.put_block(block)
            if stored:
                self._sessions.note(session, BLOCK, block.nbytes, block.end)
            return stored

    def park_checkpoint(
        self,
        checkpoint: Checkpoint,
        *,
        pinned: bool = False,
        kind: str = "",
        session: str | None = None,
        chance: float = 1.0,
    ) -> bool:
        """Keeps a checkpoint; False when there is no room. `kind` says why it is kept, for listings.

        To reach the disk its block must be parked before it. `chance` is EvictionFacts.chance.
        """
        with self._lock:
            if self._find(CHECKPOINT, checkpoint.id, checkpoint.canonical) is not None:
                if pinned:
                    self.pin(checkpoint.id)
                return True
            if not self.enabled:
                return False
            stored = self._ram.put_checkpoint(checkpoint, pinned=pinned, label=kind, chance=chance)
            if stored:
                self._sessions.note(session, CHECKPOINT, checkpoint.nbytes, checkpoint.position)
            return stored

    def children(self, parent_id: bytes) -> tuple[tuple[bytes, tuple[int, ...]], ...]:
        """The stored blocks that continue from a prefix: (id, tokens) each, in no order."""
        with self._lock:
            return tuple((id, self._ram.tokens(id)) for id in self._ram.tree.kids(parent_id))

    def pin(self, id: bytes) -> bool:
        """Evicts this checkpoint (and so the blocks under it) only after everything unpinned; False when not stored."""
        with self._lock:
            return self._ram.tree.change(CHECKPOINT, id, pinned=True)

    def unpin(self, id: bytes) -> bool:
        with self._lock:
            return self._ram.tree.change(CHECKPOINT, id, pinned=False)

    def stats(self) -> StoreStats:
        with self._lock:
            off = TierStats(0, 0, 0, 0, 0, 0, 0, 0)
            counts = (self._lookups, self._hits, self._asked, self._matched)
            return StoreStats(self._ram.stats(), off, *counts, 0, None, self._sessions.all())

    def entries(self) -> tuple[EntryView, ...]:
        """Everything stored, one line for each tier that holds it."""
        with self._lock:
            return self._ram.entries()

    def check(self, fix: bool = False) -> CheckReport:
        """Reads everything that is stored and compares it with its checksum and the index."""
        with self._lock:
            stats = self._ram.stats()
            return CheckReport(stats.blocks, stats.checkpoints, stats.used, ())

    def flush(self) -> None:
        """Returns when everything parked so far is where it shall be."""

    def close(self) -> None:
        """Flushes and forgets; the Store must not be used afterwards."""
        self.flush()

    def _find(self, kind: EntryKind, id: bytes, canonical_only: bool) -> tuple[Tier, Held] | None:
        held = self._ram.tree.get(kind, id)
        return (Tier.RAM, held) if held is not None and (held.canonical or not canonical_only) else None

    def _blocks_along(self, ids: Sequence[bytes], canonical_only: bool) -> tuple[BlockRef, ...]:
        refs, grid = [], self.config.grid
        for index, id in enumerate(ids):
            found = self._find(BLOCK, id, canonical_only)
            if found is None:
                break
            refs.append(BlockRef(id, index * grid, (index + 1) * grid, found[0], found[1].nbytes))
        return tuple(refs)

    def _checkpoints_along(self, ids: Sequence[bytes], canonical_only: bool) -> tuple[CheckpointRef, ...]:
        refs, grid = [], self.config.grid
        for index, id in enumerate(ids):
            found = self._find(CHECKPOINT, id, canonical_only)
            if found is not None:
                refs.append(CheckpointRef(id, (index + 1) * grid, found[0], found[1].nbytes))
        return tuple(refs)

    def _count_lookup(self, asked: int, found: Match) -> None:
        usable = max((ref.position for ref in found.checkpoints if ref.position <= found.stored), default=0)
        matched = usable if self.needs_checkpoint else found.stored
        self._lookups += 1
        self._hits += matched > 0
        self._asked += asked
        self._matched += matched
