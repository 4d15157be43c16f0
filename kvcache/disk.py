"""The disk tier of one process: finding, reading with proof, and writing that never raises at whoever parks."""

import errno
import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import RLock

from kvcache.admin import listing, view_of
from kvcache.batch import BatchWriter, Outgoing
from kvcache.chain import unpack_tokens
from kvcache.config import CacheConfig
from kvcache.entry import Block, Checkpoint
from kvcache.errors import CacheError, DamagedEntry, DiskTrouble, EntryGone, IndexBroken
from kvcache.facts import EntryKind, EvictionKey
from kvcache.folder import Folder
from kvcache.format import Header, check_name
from kvcache.index import Model, RowKey
from kvcache.mirror import Mirror
from kvcache.ram import Clock
from kvcache.reading import Buffers, in_order, is_cached, read_entry
from kvcache.tree import Held
from kvcache.views import DiskStats, EntryView, TierStats

RETRY_SECONDS = 30.0
PIECE_BYTES = 2 << 20
BLOCK, CHECKPOINT = EntryKind.BLOCK, EntryKind.CHECKPOINT
TROUBLE = (OSError, DiskTrouble, IndexBroken)
log = logging.getLogger(__name__)


class DiskTier:
    """Entries of one model in a folder that other processes and models use too.

    `lock` is the Store's. The first group of methods is called with it held and works in memory (the index is read when
    another process wrote); the others are called without it. Only one thread at a time writes (`_writing`).
    """

    def __init__(
        self, config: CacheConfig, model: Model, key: EvictionKey, clock: Clock, lock: RLock, *, needs_checkpoint: bool
    ) -> None:
        """Opens the folder. Raises OSError or DiskTrouble where it cannot be used."""
        self._config = config
        self._model = model
        self._clock = clock
        self._writing = RLock()
        self._mirror = Mirror(Path(config.dir or "."), key, needs_checkpoint, lock)
        try:
            with self._mirror.transaction() as txn:
                txn.describe(model)
                txn.set_meta("budget", config.disk_bytes)
        except BaseException:
            self._mirror.close()
            raise
        self._buffers = Buffers(spare=2 * PIECE_BYTES * (config.readers + 2))
        self._readers = ThreadPoolExecutor(config.readers, "kvalet-read")
        self._batches = BatchWriter(config, model.fingerprint, self._mirror, self._buffers, clock)
        self._paused_until = 0.0
        self.warning: str | None = None
        self.loads = self.loaded_bytes = 0

    def refresh(self) -> None:
        """Takes over what other processes did."""
        self._mirror.refresh()

    def find(self, kind: EntryKind, id: bytes) -> Held | None:
        return self._mirror.tree.get(kind, self._model.fingerprint + id)

    def kids(self, id: bytes) -> tuple[bytes, ...]:
        """Chain ids of the stored blocks that continue from `id`."""
        return tuple(key[16:] for key in self._mirror.tree.kids(self._model.fingerprint + id))

    def tokens(self, ids: Sequence[bytes]) -> tuple[tuple[int, ...] | None, ...]:
        """Token ids of stored blocks, None where one is gone meanwhile or the index cannot be read now."""
        try:
            packed = self._mirror.folder.index.tokens(self._model.fingerprint + id for id in ids)
        except TROUBLE:
            return (None,) * len(ids)
        return tuple(None if p is None else unpack_tokens(p) for p in packed)

    def touch(self, kind: EntryKind, id: bytes) -> None:
        """Counts a use."""
        self._mirror.touch(kind, self._model.fingerprint + id, self._clock())

    def pin(self, id: bytes, pinned: bool) -> bool:
        """Pins or unpins a checkpoint; False when it is not on disk."""
        return self._mirror.pin(self._model.fingerprint + id, pinned)

    def load_block(self, id: bytes) -> Block:
        """A proved block. Raises EntryGone, or DamagedEntry after the file was set aside: then it is not matched again."""
        header, payload = self._read(BLOCK, id)
        return header.block(payload)

    def load_checkpoint(self, id: bytes) -> Checkpoint:
        """A proved checkpoint; raises as load_block."""
        header, payload = self._read(CHECKPOINT, id)
        return header.checkpoint(payload)

    def stream(self, ids: Sequence[bytes]) -> Iterator[Block]:
        """Blocks in order; the next ones are read and proved while the caller uses the one before. Raises as load_block.

        They are read a few MiB at a time: with one task a block, handing over costs as much as reading.
        """
        cached = self._is_cached(ids)
        each = max(1, PIECE_BYTES // max(1, self._block_bytes(ids)))
        pieces = [ids[at : at + each] for at in range(0, len(ids), each)]
        for blocks in in_order(self._readers, partial(self._load_piece, cached=cached), pieces, self._config.readers):
            for block in blocks:
                if isinstance(block, Exception):
                    raise block
                yield block

    @property
    def is_paused(self) -> bool:
        """Whether parking rests after trouble; it is tried again half a minute later."""
        return time.monotonic() < self._paused_until

    def write(self, batch: Sequence[Outgoing]) -> None:
        """Stores a batch, parents before children (BatchWriter). Trouble becomes `warning`, and parking rests a while."""
        if self.is_paused:
            return
        try:
            with self._writing:
                self._batches.write(batch)
            self.warning = None
        except TROUBLE as error:
            self._note_trouble(error)

    def housekeeping(self) -> None:
        """Tells the index what was used, pinned or found missing since the last write."""
        if self._mirror.has_news and not self.is_paused:
            try:
                with self._writing, self._mirror.transaction():
                    pass
            except TROUBLE as error:
                self._note_trouble(error)

    def remove(self, keys: Sequence[RowKey]) -> int:
        """Deletes entries of any model; returns how many were there. Raises OSError, DiskTrouble."""
        with self._writing, self._mirror.transaction() as txn:
            with self._mirror.lock:
                gone = [key for key in keys if self._mirror.tree.drop(*key)]
            self._mirror.delete(txn, gone)
            return len(gone)

    def keys_under(self, id: bytes | None) -> tuple[RowKey, ...]:
        """An entry and all that stands on it, nothing before what stands on it; None: everything of this model."""
        prefix = self._model.fingerprint
        with self._mirror.lock:
            if id is None:
                mine = [(kind, node) for kind, node, _ in self._mirror.tree.all() if node.id.startswith(prefix)]
                mine.sort(key=lambda item: (-item[1].position, item[0] is BLOCK))
                return tuple((kind, node.id) for kind, node in mine)
            return self._mirror.tree.keys_under(prefix + id)

    def close(self) -> None:
        """Writes down what is known of uses and gives up the folder."""
        self.housekeeping()
        self._readers.shutdown()
        with self._writing:
            self._mirror.close()

    def entries(self) -> tuple[EntryView, ...]:
        """What is stored of this model. Takes no lock and may take long."""
        try:
            return tuple(view_of(row) for row in listing(self._mirror.folder, self._model.fingerprint))
        except TROUBLE:
            return ()

    @property
    def folder(self) -> Folder:
        return self._mirror.folder

    @property
    def damaged(self) -> int:
        """Files this process set aside."""
        return self._mirror.damaged

    def stats(self) -> tuple[TierStats, DiskStats]:
        """Counts and the state of parking; `used` covers all models and processes in the folder."""
        files = self._mirror.folder.files.quarantined()[0]
        used = self._mirror.tree.used + self._mirror.overhead()
        counts = (self._mirror.tree.count(BLOCK), self._mirror.tree.count(CHECKPOINT))
        tier = TierStats(
            self._config.disk_bytes, used, *counts, self.loads, self.loaded_bytes, self._batches.evictions, self._batches.refused
        )
        detail = DiskStats(
            str(self._config.dir),
            self._batches.written,
            self._written_today(),
            self._config.write_bytes_per_day,
            0,
            files,
            self._batches.codec.describe(),
            self.warning,
        )
        return tier, detail

    def _written_today(self) -> int:
        try:
            return self._mirror.folder.index.written_since(self._clock())
        except TROUBLE:
            return 0

    def _load_piece(self, ids: Sequence[bytes], *, cached: bool) -> list[Block | Exception]:
        """Blocks up to the first that cannot be read, whose error comes last: those before it are good."""
        blocks: list[Block | Exception] = []
        for id in ids:
            try:
                header, payload = self._read(BLOCK, id, cached=cached)
                blocks.append(header.block(payload))
            except CacheError as error:
                return [*blocks, error]
        return blocks

    def _is_cached(self, ids: Sequence[bytes]) -> bool:
        """Whether the page cache has a prefix, judged by its first and last block."""
        files, model = self._mirror.folder.files, self._model.fingerprint
        try:
            return all(is_cached(files.path(BLOCK, model, id)) for id in (ids[0], ids[-1]))
        except (OSError, IndexError):
            return True

    def _block_bytes(self, ids: Sequence[bytes]) -> int:
        with self._mirror.lock:
            held = self.find(BLOCK, ids[0]) if ids else None
            return held.nbytes if held is not None else 1

    def _read(self, kind: EntryKind, id: bytes, *, cached: bool | None = None) -> tuple[Header, memoryview]:
        path = self._mirror.folder.files.path(kind, self._model.fingerprint, id)
        try:
            header, payload = read_entry(path, self._buffers, cached=cached)
            check_name(header, kind, self._model.fingerprint, id, path.name)
        except FileNotFoundError:
            self._mirror.lose(kind, self._model.fingerprint + id, damaged=False)
            raise EntryGone(path.name) from None
        except OSError as error:
            self._mirror.lose(kind, self._model.fingerprint + id, damaged=error.errno == errno.EIO)
            raise DamagedEntry(path.name, f"it cannot be read: {error}") from error
        except DamagedEntry as error:
            log.warning("set aside %s", error)
            with suppress(OSError):  # a disk that became read-only: it is forgotten all the same
                self._mirror.folder.files.set_aside(path)
            self._mirror.lose(kind, self._model.fingerprint + id, damaged=True)
            raise
        with self._mirror.lock:
            self.loads += 1
            self.loaded_bytes += header.raw_bytes
        return header, payload

    def _note_trouble(self, error: Exception) -> None:
        warning = f"parking to disk rests: {error}"
        if warning != self.warning:  # said once, not at every retry
            log.warning("%s", warning)
        self.warning, self._paused_until = warning, time.monotonic() + RETRY_SECONDS
