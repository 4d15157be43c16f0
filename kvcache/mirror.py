"""What one process knows of a shared cache folder: the index in memory, kept up to date, with what it has yet to tell."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

from kvcache.errors import DiskTrouble, IndexBroken
from kvcache.facts import EntryKind, EvictionKey
from kvcache.folder import FIXED_BYTES, ROW_BYTES, Folder, open_folder, reopen, split_key
from kvcache.index import Changes, Row, RowKey, Transaction
from kvcache.tree import Held, Tree

log = logging.getLogger(__name__)


class Mirror:
    """`tree` holds the entries of all models in the folder, since the budget is over all; its ids are fingerprint + chain id.

    `lock` is the Store's and guards the tree; it is never held while the index is written. `transaction` is for one
    thread at a time.
    """

    def __init__(self, folder: Path, key: EvictionKey, needs_checkpoint: bool, lock: RLock) -> None:
        """Opens the folder. Raises OSError or DiskTrouble where it cannot be used."""
        self.lock = lock
        self.folder: Folder = open_folder(folder)
        self.damaged = self.folder.swept.damaged
        self._policy = (key, needs_checkpoint)
        self._seq = 0
        self._touched: set[RowKey] = set()
        self._lost: set[RowKey] = set()
        self.tree = tree_of((), *self._policy)

    def refresh(self) -> None:
        """Takes over what other processes did. An index that cannot be read now leaves the tree as it is.

        After trouble the whole tree has to be read again: that is left to the next transaction, on the writer's thread.
        """
        try:
            if self._seq and self.folder.index.is_changed():
                self._apply(self.folder.index.changes(self._seq))
        except (DiskTrouble, IndexBroken) as error:
            log.debug("index not refreshed: %s", error)

    def touch(self, kind: EntryKind, key: bytes, now: float) -> None:
        """Counts a use; other processes learn of it with the next transaction."""
        self.tree.touch(kind, key, now)
        self._touched.add((kind, key))

    def pin(self, key: bytes, pinned: bool) -> bool:
        """Pins or unpins a checkpoint; False when it is not there."""
        self._touched.add((EntryKind.CHECKPOINT, key))
        return self.tree.change(EntryKind.CHECKPOINT, key, pinned=pinned)

    def lose(self, kind: EntryKind, key: bytes, *, damaged: bool) -> None:
        """Forgets an entry whose file is gone or was set aside; its row goes with the next transaction."""
        with self.lock:
            self.tree.drop(kind, key)
            self._lost.add((kind, key))
            self.damaged += damaged

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell the index, or everything to be read from it again."""
        return bool(self._touched or self._lost or not self._seq)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begins and ends with the tree up to date and tells what was noted meanwhile; a broken index is rebuilt once.

        Raises DiskTrouble, IndexBroken, OSError; nothing has changed then but files that were deleted.
        """
        if self.folder.index.is_replaced():
            self._rebuild()
        try:
            with self.folder.index.transaction() as txn:
                self._catch_up(txn)
                self._seq -= 1  # what this transaction itself does comes with the next look
                self._tell(txn)
                yield txn
                self._catch_up(txn)
        except IndexBroken:
            self._rebuild()
            raise
        except BaseException:
            self._seq = 0  # what the mirror took over may have been rolled back: read everything again
            raise

    def delete(self, txn: Transaction, gone: Sequence[RowKey]) -> None:
        """Rows and files. The files go before the commit: until then nobody else can use the room."""
        txn.delete(gone)
        for kind, key in gone:
            self.folder.files.remove(kind, *split_key(key))

    def overhead(self) -> int:
        """Bytes of the folder that no entry accounts for: the fixed part, quarantine, what deleted rows left in the index."""
        counted = FIXED_BYTES + ROW_BYTES * len(self.tree)
        return FIXED_BYTES + self.folder.files.quarantined()[1] + max(0, self.folder.index.file_bytes() - counted)

    def close(self) -> None:
        """Gives up the folder."""
        self.folder.close()

    def _apply(self, changes: Changes) -> None:
        """Called with the lock held."""
        if changes.everything:
            self.tree = tree_of(changes.rows, *self._policy)
        for kind, key in changes.gone:
            self.tree.drop(kind, key)
        for row in () if changes.everything else changes.rows:
            _take_over(self.tree, row)
        self._seq = changes.seq

    def _catch_up(self, txn: Transaction) -> None:
        """Reads outside the lock: nobody else commits meanwhile, and taking the same rows over twice changes nothing."""
        changes = txn.changes(self._seq)
        tree = tree_of(changes.rows, *self._policy) if changes.everything else None
        with self.lock:
            if tree is None:
                self._apply(changes)
            else:
                self.tree, self._seq = tree, changes.seq

    def _tell(self, txn: Transaction) -> None:
        """Writes down uses, pins and losses that were noted in memory."""
        with self.lock:
            touched, self._touched = self._touched, set()
            lost, self._lost = self._lost, set()
            known = [(kind, key, held) for kind, key in touched if (held := self.tree.get(kind, key))]
        for kind, key, held in known:
            txn.update(kind, key, uses=held.uses, last_used=held.last_used, pinned=held.pinned)
        missing = [(kind, key) for kind, key in lost if not self.folder.files.path(kind, *split_key(key)).exists()]
        txn.delete(missing)
        txn.count_damaged(len(missing))

    def _rebuild(self) -> None:
        index, swept = reopen(self.folder)
        with self.lock:
            self.folder.index, old = index, self.folder.index
            self.damaged += swept.damaged
            self._seq = 0
        old.close()


def tree_of(rows: Sequence[Row], key: EvictionKey, needs_checkpoint: bool) -> Tree:
    """Rows as a tree; no tier below the disk backs them."""
    tree = Tree(key, needs_checkpoint, lambda kind, id: False)
    for row in rows:
        _take_over(tree, row)
    return tree


def _take_over(tree: Tree, row: Row) -> None:
    """Adds or replaces an entry. Uses that were noted here and not told yet are kept."""
    old = tree.drop(row.kind, row.key)
    held = Held(
        row.bytes,
        row.canonical,
        max(row.last_used, old.last_used if old else 0.0),
        pinned=row.pinned,
        uses=max(row.uses, old.uses if old else 0),
        chance=row.chance,
    )
    if row.kind is EntryKind.BLOCK:
        tree.add_block(row.key, row.parent, row.start, row.end, held)
    else:
        tree.add_checkpoint(row.key, row.end, held)
