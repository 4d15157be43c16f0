"""What goes from RAM to disk, and when: long enough prefixes, parents before children, behind the engine's back."""

from collections.abc import Hashable, Sequence
from threading import RLock

from kvcache.batch import Outgoing
from kvcache.disk import DiskTier
from kvcache.errors import EntryGone
from kvcache.facts import EntryKind
from kvcache.ram import RamTier
from kvcache.tree import Held, Key
from kvcache.writer import Writer

BLOCK, CHECKPOINT = EntryKind.BLOCK, EntryKind.CHECKPOINT
_LITTLE = 16 << 20  # bytes that are written at once, as they take nothing measurable from a prompt: so a small model loses least
_HELD_SHARE = 4  # of the RAM budget: one part may wait unwritten for the sake of a prompt; a fuller tier would evict it unwritten


class Parking:
    """Hands entries of the RAM tier to the disk tier. An entry stays in RAM until it is written, so waiting costs nothing.

    `lock` is the Store's; the offer methods are called with it held. With `is_transit` RAM is only a passage: what was
    written is dropped there. What RAM evicts before its turn is not written.
    """

    def __init__(self, ram: RamTier, disk: DiskTier, lock: RLock, *, min_tokens: int, is_transit: bool) -> None:
        self._ram = ram
        self._disk = disk
        self._lock = lock
        self._min_tokens = min_tokens
        self._is_transit = is_transit
        most_held = 0 if is_transit else ram.budget // _HELD_SHARE
        self._writer = Writer(self._write, disk.housekeeping, least_held=_LITTLE, most_held=most_held)

    def offer_all(self) -> None:
        """Offers everything RAM holds: what was parked before the disk tier was open."""
        for id in [node.id for kind, node, _ in self._ram.tree.all() if kind is BLOCK]:
            self.offer_block(id)

    def offer_block(self, id: bytes) -> None:
        """Queues a block, and what it stands on, once its prefix is long enough to be worth a write."""
        node = self._ram.tree.node(id)
        if node is None or node.position < self._min_tokens or self._disk.is_paused:
            return
        for each in reversed(self._unwritten_chain(id)):
            self._queue((BLOCK, each))
            self.offer_checkpoint(each)

    def offer_checkpoint(self, id: bytes) -> None:
        """Queues a checkpoint whose block is queued or on disk; one that comes too early is offered with its block."""
        held = self._ram.tree.get(CHECKPOINT, id)
        if held is None or self._disk.is_paused or not self._is_wanted((CHECKPOINT, id), held):
            return
        if (BLOCK, id) in self._writer or self._disk.find(BLOCK, id) is not None:
            self._queue((CHECKPOINT, id))

    def hold(self, who: Hashable, on: bool) -> None:
        """Asks that writing waits a while (Writer), since it would take a core from a prompt that is being read."""
        self._writer.hold(who, on)

    def flush(self) -> None:
        """Returns when everything queued so far was written or given up."""
        self._writer.flush()

    def close(self) -> None:
        """Writes what is queued, and what RAM holds and the disk lacks after trouble, and ends the thread."""
        with self._lock:
            self.offer_all()
        self._writer.close()

    def queued_bytes(self) -> int:
        """Bytes in RAM that wait for the disk."""
        held = [self._ram.tree.get(*key) for key in self._writer.waiting()]
        return sum(entry.nbytes for entry in held if entry is not None)

    def _unwritten_chain(self, id: bytes) -> list[bytes]:
        """From `id` towards the root, as far as RAM holds blocks that the disk lacks."""
        chain: list[bytes] = []
        node = self._ram.tree.node(id)
        while node is not None and node.block is not None and self._is_wanted((BLOCK, node.id), node.block):
            chain.append(node.id)
            node = self._ram.tree.node(node.parent) if node.parent is not None else None
        return chain

    def _is_wanted(self, key: Key, held: Held) -> bool:
        """Neither queued nor on disk as good as in RAM."""
        there = self._disk.find(*key)
        return not held.fleeting and key not in self._writer and (there is None or (held.canonical and not there.canonical))

    def _queue(self, key: Key) -> None:
        held = self._ram.tree.get(*key)
        self._ram.tree.change(*key, dirty=True)
        self._writer.put(key, held.nbytes if held is not None else 0)

    def _write(self, keys: Sequence[Key]) -> None:
        """Runs on the writer's thread."""
        with self._lock:
            outgoing = [item for key in keys if (item := self._outgoing(key)) is not None]
            self._ram.writing.update(keys)
        try:
            self._disk.write(outgoing)
        finally:
            with self._lock:
                self._ram.writing.difference_update(keys)
                for key in keys:
                    self._settle(key)

    def _settle(self, key: Key) -> None:
        self._ram.tree.change(*key, dirty=False)
        held, there = self._ram.tree.get(*key), self._disk.find(*key)
        if held is None or there is None:
            return
        if held.pinned != there.pinned:
            self._disk.pin(key[1], held.pinned)  # it was pinned while it was written
        if self._is_transit:
            self._ram.drop(*key)

    def _outgoing(self, key: Key) -> Outgoing | None:
        kind, id = key
        held = self._ram.tree.get(kind, id)
        try:
            entry = self._ram.block(id) if kind is BLOCK else self._ram.checkpoint(id)
            label, session = self._ram.notes(kind, id)
        except EntryGone:
            return None
        return Outgoing(entry, label, session, held is not None and held.pinned, held.chance if held is not None else 1.0)
