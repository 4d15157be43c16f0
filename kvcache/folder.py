"""A cache folder as a whole: opened, swept of leftovers, its index rebuilt from the files when it is missing or wrong."""

import logging
from dataclasses import dataclass
from pathlib import Path

from kvcache.errors import DamagedEntry, IndexBroken
from kvcache.files import Files, Found, disk_bytes
from kvcache.format import Header, check_name
from kvcache.index import Index, Row, RowKey, Transaction

INDEX_NAME = "index.sqlite"
ROW_BYTES = 640
"""What a row costs in the index file, with its share of the indices on it (measured over 104,000 rows: 570 bytes)."""
FIXED_BYTES = 1 << 20
"""The empty index, its write-ahead log and the small files beside it; part of every disk budget."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found: temp files of dead processes, files without a row, rows without a file, files set aside."""

    leftovers: int
    adopted: int
    lost: int
    damaged: int


@dataclass(slots=True)
class Folder:
    """The files and the index over them; `swept` tells of the opening."""

    files: Files
    index: Index
    swept: Swept

    def close(self) -> None:
        """Gives up the index and this process's token."""
        self.index.close()
        self.files.close()


def open_folder(path: Path, *, tidy: bool = True) -> Folder:
    """Opens or makes a cache folder. Raises OSError or DiskTrouble where it cannot be used.

    Without `tidy` nothing in it is put right, so that verify can see it as it is; a broken index raises IndexBroken then.
    """
    files = Files(path)
    try:
        with files.alone():
            index = _open_index(files) if tidy else Index(path / INDEX_NAME)
            return Folder(files, index, sweep(files, index) if tidy else Swept(0, 0, 0, 0))
    except BaseException:
        files.close()
        raise


def reopen(folder: Folder) -> tuple[Index, Swept]:
    """After IndexBroken, or when another process replaced the index: the one there now, or a rebuilt one.

    The caller swaps it in under its lock and closes the old one.
    """
    folder.files.resettle()
    with folder.files.alone():
        index = _open_index(folder.files)
        return index, sweep(folder.files, index)


def sweep(files: Files, index: Index) -> Swept:
    """Removes leftovers of dead processes and makes index and folder agree; called with files.alone() held.

    A file without a row is adopted: its process died between rename and row, or its row was deleted and the unlink did
    not happen; either way it is whole, and eviction decides. Rows without a file are dropped.
    """
    dead = files.dead_owners()
    leftovers = sum(files.bury(token) for token in dead) + files.sweep_orphans()
    with index.transaction() as txn:
        for owner in {*dead, *txn.owners()} - set(files.owners()):
            txn.forget_owner(owner)
        rows = {(row.kind, row.key) for row in txn.rows()}
        seen, adopted, damaged = _walk(files, txn, rows)
        txn.delete(rows - seen)
        txn.count_damaged(damaged)
    return Swept(leftovers, adopted, len(rows - seen), damaged)


def row_of(
    header: Header, *, last_used: float, pinned: bool = False, chance: float = 1.0, session: str = "", uses: int = 0
) -> Row:
    """The index row of a file."""
    prefix = header.fingerprint
    return Row(
        kind=header.kind,
        key=prefix + header.id,
        parent=prefix + header.parent,
        start=header.start,
        end=header.end,
        bytes=entry_cost(header.file_bytes),
        canonical=header.canonical,
        pinned=pinned,
        uses=uses,
        last_used=last_used,
        chance=chance,
        session=session,
        label=header.label,
    )


def entry_cost(file_bytes: int) -> int:
    """What an entry counts against the disk budget: whole disk blocks and its index row."""
    return disk_bytes(file_bytes) + ROW_BYTES


def split_key(key: bytes) -> tuple[bytes, bytes]:
    """(fingerprint, chain id) of a row's key."""
    return key[:16], key[16:]


def _walk(files: Files, txn: Transaction, rows: set[RowKey]) -> tuple[set[RowKey], int, int]:
    seen: set[RowKey] = set()
    adopted = damaged = 0
    for model in files.models():
        for found in files.found(model):
            if isinstance(found, Found) and (found.kind, model + found.id) in rows:
                seen.add((found.kind, model + found.id))
            elif _adopt(files, txn, found):
                adopted += 1
            else:
                damaged += 1
    return seen, adopted, damaged


def _adopt(files: Files, txn: Transaction, found: Found | Path) -> bool:
    """Adds the row of a file that has none; a file that is not one of ours is set aside, once."""
    path = found.path if isinstance(found, Found) else found
    try:
        if not isinstance(found, Found):
            raise DamagedEntry(path.name, "not an entry's name")
        header = files.read_header(path)
        check_name(header, found.kind, found.fingerprint, found.id, path.name)
        txn.put(row_of(header, last_used=path.stat().st_mtime), header.packed)
    except FileNotFoundError:
        return True  # another process removed it meanwhile
    except (DamagedEntry, OSError) as error:
        log.warning("set aside %s: %s", path, error)
        files.set_aside(path)
        return False
    return True


def _open_index(files: Files) -> Index:
    path = files.folder / INDEX_NAME
    try:
        return Index(path)
    except IndexBroken as error:
        log.warning("%s; rebuilding it from the files", error)
        for name in (INDEX_NAME, INDEX_NAME + "-wal", INDEX_NAME + "-shm"):
            files.set_aside(files.folder / name)
        return Index(path)
