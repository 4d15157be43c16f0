"""The Store: the one place that changes what is cached, thread-safe behind one lock. The engine thread only copies in RAM."""

import logging
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from threading import RLock
from typing import TypeVar

from kvcache import admin, eviction
from kvcache.chain import chain_ids
from kvcache.config import CacheConfig
from kvcache.disk import DiskTier
from kvcache.entry import Block, BlockRef, Checkpoint, CheckpointRef, Match, Tier, TipRef
from kvcache.errors import DiskTrouble, EntryGone, IndexBroken
from kvcache.facts import EntryKind
from kvcache.index import Model
from kvcache.parking import Parking
from kvcache.ram import Clock, RamTier
from kvcache.sessions import Sessions
from kvcache.views import CheckReport, DiskStats, EntryView, StoreStats, TierStats

BLOCK, CHECKPOINT = EntryKind.BLOCK, EntryKind.CHECKPOINT
OFF = TierStats(0, 0, 0, 0, 0, 0, 0, 0)
log = logging.getLogger(__name__)


class Store:
    """Blocks and checkpoints of one model with one set of settings; `root` is the chain id of the empty prefix.

    A block is stored once however many branches share it. `needs_checkpoint` says that a prefix can only be resumed at
    a checkpoint (window, hybrid, recurrent). With both budgets 0 it holds nothing and every match is empty. With RAM
    off and disk on, entries pass through `transit_bytes` of memory on their way to disk and are dropped there.

    The disk tier opens with `identify`, since the hash of the weights may come later than the first request.
    """

    def __init__(self, config: CacheConfig, root: bytes, needs_checkpoint: bool, *, clock: Clock = time.time) -> None:
        self.config = config
        self.root = root
        self.needs_checkpoint = needs_checkpoint
        self._lock = RLock()
        self._clock = clock
        self._key = eviction.by_name(config.eviction)
        self._is_transit = not config.ram_bytes and config.disk_bytes > 0
        budget = config.transit_bytes if self._is_transit else config.ram_bytes
        self._ram = RamTier(budget, self._key, clock, needs_checkpoint=needs_checkpoint, backed=self._is_on_disk)
        self._disk: DiskTier | None = None
        self._parking: Parking | None = None
        self._disk_problem: str | None = None
        self._sessions = Sessions(clock)
        self._lookups = self._hits = self._asked = self._matched = 0

    @property
    def enabled(self) -> bool:
        """Whether any tier is on."""
        return self._ram.budget > 0

    def identify(self, fingerprint: bytes, name: str = "", settings: str = "") -> bool:
        """Opens the disk tier for this model (16 bytes that stand for weights and settings) and parks what RAM holds.

        False, with a warning in stats(), when the folder cannot be used; serving goes on in RAM. `name` and `settings`
        are for listings. Nothing happens when the disk budget is 0 or the tier is open.
        """
        if not self.config.disk_bytes or self._disk is not None:
            return self._disk is not None
        model = Model(fingerprint, name, settings)
        try:
            disk = DiskTier(self.config, model, self._key, self._clock, self._lock, needs_checkpoint=self.needs_checkpoint)
        except (OSError, DiskTrouble, IndexBroken) as error:
            self._disk_problem = f"no disk tier: {error}"
            log.warning("%s", self._disk_problem)
            if self._is_transit:
                self._close_passage()
            return False
        with self._lock:
            passage = self._is_transit
            self._disk, self._disk_problem = disk, None
            self._parking = Parking(self._ram, disk, self._lock, min_tokens=self.config.park_min_tokens, is_transit=passage)
            self._parking.offer_all()
        return True

    def match(self, tokens: Sequence[int], *, canonical_only: bool = False, counted: bool = True) -> Match:
        """What is stored of `tokens`; a plain miss is an empty match. Counts a lookup unless told not to, and never a use of
        what it names."""
        ids = chain_ids(self.root, tokens, self.config.grid) if self.enabled else ()
        with self._lock:
            if self._disk is not None:
                self._disk.refresh()
            found = Match(ids, *self._along(ids, canonical_only))
            found = found if canonical_only else replace(found, tip=self._tip(tokens, found))
            if counted:
                self._count_lookup(len(tokens), found)
        return found

    def load_block(self, ref: BlockRef) -> Block:
        """The block a match named. Raises EntryGone, DamagedEntry; then a new match is shorter."""
        with self._lock:
            if self._is_in_ram(BLOCK, ref):
                self._ram.used_now(BLOCK, ref.id)
                return self._ram.block(ref.id)
        return _as_named(self._disk_or_gone(ref).load_block(ref.id), ref)

    def load_checkpoint(self, ref: CheckpointRef) -> Checkpoint:
        """The checkpoint a match named. Raises EntryGone, DamagedEntry; then a new match has it no more."""
        with self._lock:
            if self._is_in_ram(CHECKPOINT, ref):
                self._ram.used_now(CHECKPOINT, ref.id)
                return self._ram.checkpoint(ref.id)
        disk = self._disk_or_gone(ref)
        checkpoint = _as_named(disk.load_checkpoint(ref.id), ref)
        with self._lock:
            disk.touch(CHECKPOINT, ref.id)
        return checkpoint

    def restore(self, match: Match, position: int, from_: int = 0) -> Iterator[Block]:
        """The stored blocks of [from_, position) in order, read and proved ahead while the caller loads the one before.

        A payload stays valid as long as it is referenced; dropping it before asking for the next one keeps memory low.
        Raises as load_block does; blocks handed out before stay good.
        """
        refs = [ref for ref in match.blocks if from_ <= ref.start and ref.end <= position]
        refs += [match.tip.block] if match.tip is not None and match.tip.position == position else []
        with self._lock:
            runs = [(in_ram, list(run)) for in_ram, run in groupby(refs, lambda ref: self._is_in_ram(BLOCK, ref))]
        for in_ram, run in runs:
            yield from map(self.load_block, run) if in_ram else self._stream(run)

    def has_block(self, id: bytes, canonical: bool = False) -> bool:
        """Whether a block is stored in any tier; with `canonical` only one that a strict request may use counts."""
        with self._lock:
            return self._find(BLOCK, id, canonical) is not None

    def has_checkpoint(self, id: bytes, canonical: bool = False) -> bool:
        """As has_block, for a checkpoint."""
        with self._lock:
            return self._find(CHECKPOINT, id, canonical) is not None

    def park_block(self, block: Block, session: str | None = None) -> bool:
        """Keeps a block whose parent is stored (or the root); False when there is no room or a gap before it.

        `bytes` and read-only memoryviews are kept without a copy, so nobody may change them any more; a writable memoryview
        is copied before this returns. What is stored already is left alone, except that a canonical block replaces one
        that is not.
        """
        with self._lock:
            if self._find(BLOCK, block.id, block.canonical) is not None:
                return True
            if not self.enabled or (block.parent != self.root and self._find(BLOCK, block.parent, False) is None):
                return False
            stored = self._ram.put_block(block, session=session or "")
            if stored:
                self._sessions.note(session, BLOCK, block.nbytes, block.end)
                if self._parking is not None:
                    self._parking.offer_block(block.id)
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

        It reaches the disk once its block is parked. `chance` is EvictionFacts.chance.
        """
        with self._lock:
            if self._find(CHECKPOINT, checkpoint.id, checkpoint.canonical) is not None:
                return self.pin(checkpoint.id) if pinned else True
            if not self.enabled:
                return False
            stored = self._ram.put_checkpoint(checkpoint, pinned=pinned, label=kind, chance=chance, session=session or "")
            if stored:
                self._sessions.note(session, CHECKPOINT, checkpoint.nbytes, checkpoint.position)
                if self._parking is not None:
                    self._parking.offer_checkpoint(checkpoint.id)
            return stored

    def park_tip(self, block: Block, checkpoint: Checkpoint, session: str | None = None) -> bool:
        """Keeps a state off the grid, in RAM alone: `block` is what leads to it from the grid multiple before, `checkpoint` has
        the block's id. False when there is no room for it or nothing that it stands on. It is the first to go."""
        with self._lock:
            if self._ram.tree.get(CHECKPOINT, block.id) is not None:
                return True
            if self._is_transit or (block.parent != self.root and self._find(BLOCK, block.parent, False) is None):
                return False
            stored = self._ram.put_block(block, session=session or "", fleeting=True)
            return stored and self._ram.put_checkpoint(checkpoint, label="tip", session=session or "", fleeting=True)

    def children(self, parent_id: bytes) -> tuple[tuple[bytes, tuple[int, ...]], ...]:
        """The stored blocks that continue from a prefix: (id, tokens) each, in no order."""
        with self._lock:
            kids = {id: self._ram.tokens(id) for id in self._ram.tree.kids(parent_id)}
            if self._disk is not None:
                more = [id for id in self._disk.kids(parent_id) if id not in kids]
                kids |= {id: found for id, found in zip(more, self._disk.tokens(more), strict=True) if found is not None}
            return tuple(kids.items())

    def pin(self, id: bytes) -> bool:
        """Evicts this checkpoint (and so the blocks under it) only after everything unpinned; False when not stored."""
        return self._set_pin(id, True)

    def judge(self, worths: Mapping[bytes, float]) -> None:
        """Tells the RAM tier which checkpoints of a conversation that is here just now can be spared (EvictionFacts.chance)."""
        with self._lock:
            for id, worth in worths.items():
                self._ram.tree.judge(id, worth, self._clock())

    def unpin(self, id: bytes) -> bool:
        """Takes a pin back; False when the checkpoint is not stored."""
        return self._set_pin(id, False)

    def remove(self, id: bytes | None = None) -> int:
        """Deletes a prefix's block and checkpoint and all that stands on it, in every tier; None: everything of this model.

        Returns how many entries went. Raises OSError, DiskTrouble or IndexBroken when the folder refuses.
        """
        with self._lock:
            gone = sum(self._ram.drop(*key) for key in self._ram.keys_under(id))
        if self._disk is not None:
            gone += self._disk.remove(self._disk.keys_under(id))
        return gone

    def stats(self) -> StoreStats:
        """Counters and sizes by tier; `disk_detail` is None while no folder is open and nothing is wrong."""
        with self._lock:
            ram = self._ram.stats()
            disk, detail = self._disk.stats() if self._disk is not None else (OFF, self._closed_detail())
            damaged = self._disk.damaged if self._disk is not None else 0
            if self._is_transit:
                ram = OFF
            if detail is not None and self._parking is not None:
                detail = replace(detail, queued_bytes=self._parking.queued_bytes())
            counts = (self._lookups, self._hits, self._asked, self._matched)
            return StoreStats(ram, disk, *counts, damaged, detail, self._sessions.all())

    def entries(self) -> tuple[EntryView, ...]:
        """Everything stored of this model, one line for each tier that holds it."""
        with self._lock:
            held = () if self._is_transit else self._ram.entries()
            disk = self._disk
        return held + (disk.entries() if disk is not None else ())

    def check(self, fix: bool = False) -> CheckReport:
        """Reads every byte on disk, proves chains, compares index and folder both ways; `fix` sets right what is wrong.

        RAM entries are counted, not proved: nothing but this process could have changed them.
        """
        stats = self.stats()
        if self._disk is None:
            return CheckReport(stats.ram.blocks, stats.ram.checkpoints, stats.ram.used, ())
        return admin.verify(self._disk.folder, fix=fix)

    def hold_writes(self, who: Hashable, on: bool) -> None:
        """Asks that writing to disk waits while `who` reads a prompt somebody waits for: ten seconds at most, where it
        is more than a little, and only while RAM has room for what waits. Without a disk tier nothing happens."""
        if self._parking is not None:
            self._parking.hold(who, on)

    def flush(self) -> None:
        """Returns when everything parked so far is on disk, or was given up with a warning in stats()."""
        if self._parking is not None:
            self._parking.flush()

    def close(self) -> None:
        """Writes what waits and gives up the folder; the Store must not be used afterwards."""
        if self._parking is not None:
            self._parking.close()
        if self._disk is not None:
            self._disk.close()
        self._parking = self._disk = None

    def _close_passage(self) -> None:
        """With RAM off and no disk behind it, nothing may be held at all."""
        with self._lock:
            for key in self._ram.keys_under(None):
                self._ram.drop(*key)
            self._ram.budget = 0

    def _find(self, kind: EntryKind, id: bytes, canonical_only: bool) -> tuple[Tier, int, bool] | None:
        """(tier, bytes, canonical) of the best place that holds it."""
        held = self._ram.tree.get(kind, id)
        if held is not None and (held.canonical or not canonical_only):
            return Tier.RAM, held.nbytes, held.canonical
        held = self._disk.find(kind, id) if self._disk is not None else None
        if held is not None and (held.canonical or not canonical_only):
            return Tier.DISK, held.nbytes, held.canonical
        return None

    def _closed_detail(self) -> DiskStats | None:
        """Why there is no disk tier, if there should be one."""
        if self._disk_problem is None:
            return None
        return DiskStats(str(self.config.dir), 0, 0, self.config.write_bytes_per_day, 0, 0, self.config.codec, self._disk_problem)

    def _is_on_disk(self, kind: EntryKind, id: bytes) -> bool:
        return self._disk is not None and self._disk.find(kind, id) is not None

    def _along(self, ids: Sequence[bytes], canonical_only: bool) -> tuple[tuple[BlockRef, ...], tuple[CheckpointRef, ...]]:
        """Blocks up to the first gap, and checkpoints wherever they stand. The inner loop of every lookup: 2 µs a block."""
        blocks: list[BlockRef] = []
        checkpoints: list[CheckpointRef] = []
        find, grid, has_gap = self._find, self.config.grid, False
        for index, id in enumerate(ids):
            if not has_gap and (found := find(BLOCK, id, canonical_only)) is not None:
                blocks.append(BlockRef(id, index * grid, (index + 1) * grid, *found))
            else:
                has_gap = True
            if (found := find(CHECKPOINT, id, canonical_only)) is not None:
                checkpoints.append(CheckpointRef(id, (index + 1) * grid, *found))
        return tuple(blocks), tuple(checkpoints)

    def _tip(self, tokens: Sequence[int], found: Match) -> TipRef | None:
        """The deepest tip that lies before the last token and behind the last checkpoint that can be restored."""
        deepest = max((ref.position for ref in found.checkpoints if ref.position <= found.stored), default=0)
        parents = (self.root, *found.ids)[deepest // self.config.grid : len(found.blocks) + 1]
        tips = [tip for parent in parents for tip in self._tips(parent, tokens)]
        return max(tips, key=lambda tip: tip.position, default=None)

    def _tips(self, parent: bytes, tokens: Sequence[int]) -> Iterator[TipRef]:
        for id in self._ram.tree.kids(parent):
            node = self._ram.tree.node(id)
            if node is None or node.block is None or node.checkpoint is None or not node.block.fleeting:
                continue
            block = self._ram.block(id)
            if node.position < len(tokens) and tuple(tokens[block.start : block.end]) == block.tokens:
                yield TipRef(
                    BlockRef(id, block.start, block.end, Tier.RAM, node.block.nbytes),
                    CheckpointRef(id, block.end, Tier.RAM, node.checkpoint.nbytes),
                )

    def _count_lookup(self, asked: int, found: Match) -> None:
        usable = max((ref.position for ref in found.checkpoints if ref.position <= found.stored), default=0)
        usable = max(usable, found.tip.position if found.tip else 0)
        matched = usable if self.needs_checkpoint else found.stored
        self._lookups += 1
        self._hits += matched > 0
        self._asked += asked
        self._matched += matched

    def _is_in_ram(self, kind: EntryKind, ref: BlockRef | CheckpointRef) -> bool:
        held = self._ram.tree.get(kind, ref.id)
        return held is not None and (held.canonical or not ref.canonical)

    def _disk_or_gone(self, ref: BlockRef | CheckpointRef) -> DiskTier:
        if self._disk is None:
            raise EntryGone(ref.id.hex())
        return self._disk

    def _stream(self, refs: Sequence[BlockRef]) -> Iterator[Block]:
        disk = self._disk_or_gone(refs[0])
        for ref, block in zip(refs, disk.stream([ref.id for ref in refs]), strict=True):
            yield _as_named(block, ref)
        with self._lock:
            disk.touch(BLOCK, refs[-1].id)  # what it stands on inherits the use (Tree)

    def _set_pin(self, id: bytes, pinned: bool) -> bool:
        with self._lock:
            in_ram = self._ram.tree.change(CHECKPOINT, id, pinned=pinned)
            on_disk = self._disk is not None and self._disk.pin(id, pinned)
            return in_ram or on_disk


Entry = TypeVar("Entry", Block, Checkpoint)


def _as_named(entry: Entry, ref: BlockRef | CheckpointRef) -> Entry:
    """Raises EntryGone when what a strict request was named was replaced by bytes of a read that was not canonical."""
    if ref.canonical and not entry.canonical:
        raise EntryGone(ref.id.hex())
    return entry
