"""Writing a batch of entries to disk: room first, then files, then rows, all under a budget shared by processes."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from kvcache.codec import CodecChoice, encode
from kvcache.config import CacheConfig
from kvcache.entry import Block, Checkpoint
from kvcache.errors import DiskTrouble
from kvcache.facts import EntryKind
from kvcache.files import Staged
from kvcache.folder import entry_cost, row_of
from kvcache.format import Header, checksum, header_bytes, header_of
from kvcache.index import RowKey
from kvcache.mirror import Mirror
from kvcache.ram import Clock
from kvcache.reading import Buffers, cold_read_speed

BLOCK, CHECKPOINT = EntryKind.BLOCK, EntryKind.CHECKPOINT


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An entry on its way to disk, with what only the index keeps of it."""

    entry: Block | Checkpoint
    label: str = ""
    session: str = ""
    pinned: bool = False
    chance: float = 1.0

    @property
    def kind(self) -> EntryKind:
        return BLOCK if isinstance(self.entry, Block) else CHECKPOINT

    @property
    def most_bytes(self) -> int:
        """What it costs at most: stored raw."""
        tokens = len(self.entry.tokens) if isinstance(self.entry, Block) else 0
        return entry_cost(header_bytes(tokens) + self.entry.nbytes)


class BatchWriter:
    """Writes entries of the model `fingerprint`. For one thread at a time, without the Store's lock."""

    def __init__(self, config: CacheConfig, fingerprint: bytes, mirror: Mirror, buffers: Buffers, clock: Clock) -> None:
        self._config = config
        self._fingerprint = fingerprint
        self._mirror = mirror
        self._buffers = buffers
        self._clock = clock
        self.codec = CodecChoice(config.codec, config.readers)
        self.evictions = self.refused = self.written = 0

    def write(self, batch: Sequence[Outgoing]) -> None:
        """Stores a batch, parents before children. What does not fit, or whose parent is not on disk, is left out.

        Raises OSError, DiskTrouble or IndexBroken when the folder cannot take more; then no temp file is left.
        """
        with self._mirror.lock:
            wanted = [item for item in batch if not self._is_there(item)]
        if not wanted:
            return
        self._check_wear(sum(item.most_bytes for item in wanted))
        fitting = self._reserve(wanted)
        if fitting:
            self._commit(fitting, self._store_files(fitting))

    def _is_there(self, item: Outgoing) -> bool:
        held = self._mirror.tree.get(item.kind, self._fingerprint + item.entry.id)
        return held is not None and (held.canonical or not item.entry.canonical)

    def _check_wear(self, nbytes: int) -> None:
        bound = self._config.write_bytes_per_day
        if bound and self._mirror.folder.index.written_since(self._clock()) + nbytes > bound:
            raise DiskTrouble(f"{bound} bytes were written in the last 24 hours, the bound that keeps the disk from wearing out")

    def _reserve(self, wanted: Sequence[Outgoing]) -> list[Outgoing]:
        """Makes room for what fits, deleting in the same transaction, so that no process ever sees the budget exceeded."""
        self._mirror.folder.files.resettle()
        buried = self._mirror.folder.files.bury_dead()
        with self._mirror.transaction() as txn:
            for token in buried:
                txn.forget_owner(token)
            others = txn.reserved(besides=self._mirror.folder.files.token)
            room = self._config.disk_bytes - self._mirror.overhead() - others
            with self._mirror.lock:
                fitting, gone = self._choose(wanted, room)
            self._mirror.delete(txn, gone)
            txn.reserve(self._mirror.folder.files.token, sum(item.most_bytes for item in fitting))
            return fitting

    def _choose(self, wanted: Sequence[Outgoing], room: int) -> tuple[list[Outgoing], list[RowKey]]:
        prefix, tree = self._fingerprint, self._mirror.tree
        fitting: list[Outgoing] = []
        gone: list[RowKey] = []
        keep: set[RowKey] = set()
        stored = {item.entry.id for item in wanted if item.kind is BLOCK}
        need = 0
        for item in wanted:
            base, has_base = _base(item), self._has_base(item, stored)
            if has_base and need + item.most_bytes <= room:
                keep |= {(BLOCK, prefix + base), (item.kind, prefix + item.entry.id)}
                gone += tree.make_room(need + item.most_bytes, room, keep)
            if has_base and tree.used + need + item.most_bytes <= room:
                need += item.most_bytes
                fitting.append(item)
            else:
                self.refused += 1
                stored.discard(item.entry.id)
        self.evictions += len(gone)
        return fitting, gone

    def _store_files(self, fitting: Sequence[Outgoing]) -> list[Header]:
        headers: list[Header] = []
        staged: list[Staged] = []
        try:
            for item in fitting:
                header, file = self._stage(item)
                headers.append(header)
                staged.append(file)
        except BaseException:
            self._mirror.folder.files.unstage(staged)
            raise
        self._mirror.folder.files.publish(staged)
        for item, file in zip(fitting, staged, strict=True):
            if self.codec.wants_sample(item.kind):
                with suppress(FileNotFoundError):  # another process evicted it already
                    self.codec.learn(item.kind, item.entry.payload, partial(cold_read_speed, file.final, self._buffers))
        return headers

    def _stage(self, item: Outgoing) -> tuple[Header, Staged]:
        raw_sum = checksum(item.entry.payload)
        codec, stored = encode(self.codec.codec(item.kind), item.entry.payload)
        header = header_of(item.entry, self._fingerprint, codec, stored, raw_sum, item.label)
        return header, self._mirror.folder.files.stage(header, stored)

    def _commit(self, fitting: Sequence[Outgoing], headers: Sequence[Header]) -> None:
        now = self._clock()
        nbytes = sum(entry_cost(header.file_bytes) for header in headers)
        with self._mirror.transaction() as txn:
            put: set[bytes] = set()
            for item, header in zip(fitting, headers, strict=True):
                if not self._mirror.folder.files.path(header.kind, header.fingerprint, header.id).exists():
                    continue  # another process had stored it too, and evicted it between our rename and now
                with self._mirror.lock:
                    has_base = self._has_base(item, put)
                if not has_base:  # another process has evicted it since _choose looked
                    self._abandon(header)
                    continue
                put |= {header.id} if item.kind is BLOCK else set()
                row = row_of(header, last_used=now, pinned=item.pinned, chance=item.chance, session=item.session)
                txn.put(row, header.packed)
            txn.reserve(self._mirror.folder.files.token, 0)
            txn.count_written(now, nbytes)
        self.written += nbytes

    def _has_base(self, item: Outgoing, among: set[bytes]) -> bool:
        """Whether the block that it stands on is stored, or one of `among`; nothing is before the first block."""
        base, starts = _base(item), isinstance(item.entry, Block) and item.entry.start == 0
        return starts or base in among or self._mirror.tree.get(BLOCK, self._fingerprint + base) is not None

    def _abandon(self, header: Header) -> None:
        """Takes the file of an entry that leads nowhere away again, unless somebody else has stored the same."""
        self.refused += 1
        with self._mirror.lock:
            is_theirs = self._mirror.tree.get(header.kind, header.fingerprint + header.id) is not None
        if not is_theirs:
            self._mirror.folder.files.remove(header.kind, header.fingerprint, header.id)


def _base(item: Outgoing) -> bytes:
    """The id of the block that an entry stands on."""
    return item.entry.parent if isinstance(item.entry, Block) else item.entry.id
