"""Looking after a cache folder, with or without a server on it: listing, proving every byte, cleaning up, deleting."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvcache.entry import Tier
from kvcache.errors import DamagedEntry
from kvcache.eviction import by_name
from kvcache.facts import EntryKind
from kvcache.files import Found
from kvcache.folder import Folder, split_key, sweep
from kvcache.format import Header, check_name
from kvcache.index import Row, RowKey
from kvcache.mirror import tree_of
from kvcache.reading import Buffers, read_entry
from kvcache.views import CheckReport, EntryView, Problem

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""
BLOCK, CHECKPOINT = EntryKind.BLOCK, EntryKind.CHECKPOINT
GRACE_SECONDS = 0.5
"""Between a rename and its row, or a file's deletion and its row's, a process at work needs milliseconds."""
LOOKS = 5  # at a row without a file, before it is called one


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What gc or rm deleted."""

    entries: int
    bytes: int
    leftovers: int = 0
    quarantined: int = 0


def listing(folder: Folder, fingerprint: bytes | None = None) -> tuple[Row, ...]:
    """The rows of one model, or of all, parents before children."""
    rows = folder.index.listing()
    return tuple(row for row in rows if fingerprint is None or row.key.startswith(fingerprint))


def view_of(row: Row) -> EntryView:
    """A row as listings show it."""
    id = split_key(row.key)[1]
    return EntryView(
        id, row.kind, Tier.DISK, row.end, row.bytes, row.canonical, row.pinned, row.uses, row.last_used, row.label, row.session
    )


def verify(folder: Folder, *, fix: bool = False, progress: Progress | None = None) -> CheckReport:
    """Reads every byte of every file, proves chains complete, and compares index and folder both ways.

    With `fix`, damaged and foreign files are set aside, rows and files made to agree, and entries that no complete chain
    reaches are deleted. Files that come or go meanwhile (a server at work) are no problem.
    """
    headers, damaged = _read_all(folder, progress)
    for path, _ in damaged if fix else ():
        folder.files.set_aside(path)
    rows = {(row.kind, row.key): row for row in listing(folder)}  # after the files: a server at work adds rows for them
    problems = [Problem(path.name, reason, fix) for path, reason in damaged]
    problems += [Problem(_file_name(key), "a file without a row in the index", fix) for key in _unlisted(folder, headers, rows)]
    problems += [Problem(_file_name(key), "a row without a file", fix) for key in _missing(folder, rows)]
    bad = {path for path, _ in damaged}
    unreached = _unreached(headers, {key: row for key, row in rows.items() if _path(folder, key) not in bad}, folder)
    problems += [Problem(_file_name(key), "no complete chain leads to it", fix) for key in unreached]
    if fix:
        delete(folder, unreached)
        with folder.files.alone():
            sweep(folder.files, folder.index)
    counts = [sum(header.kind is kind for header in headers.values()) for kind in (BLOCK, CHECKPOINT)]
    return CheckReport(counts[0], counts[1], sum(header.file_bytes for header in headers.values()), tuple(problems))


def gc(folder: Folder, keep_bytes: int | None = None) -> Cleaned:
    """Removes what serves nobody: leftovers, quarantine, rows and files that do not agree, entries no chain reaches.

    With `keep_bytes` the least recently used entries go too, the ends of chains first, until that many bytes are left.
    """
    quarantined = _empty_quarantine(folder)
    with folder.files.alone():
        swept = sweep(folder.files, folder.index)
    rows = {(row.kind, row.key): row for row in listing(folder)}
    gone = list(unreachable({key: (row.start, row.end, row.parent) for key, row in rows.items()}))
    if keep_bytes is not None:
        rest = [row for key, row in rows.items() if key not in set(gone)]
        gone += tree_of(rest, by_name("lru"), True).make_room(0, keep_bytes)
    delete(folder, gone)
    folder.index.compact()
    return Cleaned(len(gone), sum(rows[key].bytes for key in gone), swept.leftovers, quarantined)


def delete(folder: Folder, keys: Sequence[RowKey]) -> int:
    """Deletes entries, rows first in one transaction; returns how many rows there were."""
    with folder.index.transaction() as txn:
        there = {(row.kind, row.key) for row in txn.rows()}.intersection(keys)
        txn.delete(there)
        for kind, key in there:
            folder.files.remove(kind, *split_key(key))
    return len(there)


def under(rows: Iterable[Row], keys: Iterable[bytes]) -> tuple[RowKey, ...]:
    """The entries at these keys and all that stands on them, children first."""
    kids: dict[bytes, list[bytes]] = {}
    there = set()
    for row in rows:
        there.add((row.kind, row.key))
        if row.kind is BLOCK:
            kids.setdefault(row.parent, []).append(row.key)
    found, waiting = [], list(keys)
    while waiting:
        key = waiting.pop()
        found += [each for each in ((BLOCK, key), (CHECKPOINT, key)) if each in there]
        waiting += kids.get(key, [])
    return tuple(reversed(found))


def chain_of(rows: Iterable[Row], keys: Iterable[bytes]) -> tuple[RowKey, ...]:
    """The entries at these keys and the blocks they stand on, parents first."""
    by_key = {(row.kind, row.key): row for row in rows}
    found: dict[RowKey, int] = {}
    for key in keys:
        if (CHECKPOINT, key) in by_key:
            found[CHECKPOINT, key] = by_key[CHECKPOINT, key].end
        while (BLOCK, key) in by_key and (BLOCK, key) not in found:
            found[BLOCK, key] = by_key[BLOCK, key].end
            key = by_key[BLOCK, key].parent
    return tuple(sorted(found, key=lambda each: (found[each], each[0] is CHECKPOINT)))


def unreachable(entries: dict[RowKey, tuple[int, int, bytes]]) -> tuple[RowKey, ...]:
    """Entries, given as key -> (start, end, parent), that no complete chain of blocks from position 0 leads to."""
    good: set[bytes] = set()
    blocks = sorted((key for key in entries if key[0] is BLOCK), key=lambda key: entries[key][1])
    for key in blocks:
        start, _, parent = entries[key]
        if start == 0 or (parent in good and entries[BLOCK, parent][1] == start):
            good.add(key[1])
    return tuple(key for key in entries if key[1] not in good)


def _read_all(folder: Folder, progress: Progress | None) -> tuple[dict[RowKey, Header], list[tuple[Path, str]]]:
    """The headers of all sound files, and the others with what is wrong with them."""
    buffers, done, total = Buffers(spare=8 << 20), 0, folder.index.meta("total")
    headers: dict[RowKey, Header] = {}
    damaged: list[tuple[Path, str]] = []
    for found in _all_files(folder):
        try:
            header = _prove(found, buffers)
        except FileNotFoundError:
            continue  # evicted meanwhile
        except (DamagedEntry, OSError) as error:
            damaged.append((found.path if isinstance(found, Found) else found, str(error)))
            continue
        headers[header.kind, header.fingerprint + header.id] = header
        done += header.file_bytes
        if progress is not None:
            progress(done, max(total, done))
    return headers, damaged


def _prove(found: Found | Path, buffers: Buffers) -> Header:
    if not isinstance(found, Found):
        raise DamagedEntry(found.name, "not an entry's name")
    header = read_entry(found.path, buffers)[0]
    check_name(header, found.kind, found.fingerprint, found.id, found.path.name)
    return header


def _all_files(folder: Folder) -> Iterator[Found | Path]:
    for model in folder.files.models():
        yield from folder.files.found(model)


def _path(folder: Folder, key: RowKey) -> Path:
    return folder.files.path(key[0], *split_key(key[1]))


def _is_there(folder: Folder, key: RowKey) -> bool:
    return _path(folder, key).exists()


def _file_name(key: RowKey) -> str:
    return f"{split_key(key[1])[1].hex()}.{key[0].value}"


def _unlisted(folder: Folder, headers: dict[RowKey, Header], rows: dict[RowKey, Row]) -> list[RowKey]:
    """Files that are there and have no row. What was renamed into place a moment ago gets its row in the next."""
    seen = [key for key in headers if key not in rows and _is_there(folder, key)]
    if seen:
        time.sleep(GRACE_SECONDS)
        rows = {(row.kind, row.key): row for row in listing(folder)}
    return [key for key in seen if key not in rows and _is_there(folder, key)]


def _missing(folder: Folder, rows: dict[RowKey, Row]) -> list[RowKey]:
    """Rows whose file is not there, however often one looks. Who evicts deletes the file first and the row with the commit, which
    on a busy disk takes its time; and what is evicted may be stored and evicted again between two looks."""
    gone = [key for key in rows if not _is_there(folder, key)]
    for _ in range(LOOKS if gone else 0):
        time.sleep(GRACE_SECONDS)
        still = {(row.kind, row.key) for row in listing(folder)}
        gone = [key for key in gone if key in still and not _is_there(folder, key)]
        if not gone:
            break
    return gone


def _unreached(headers: dict[RowKey, Header], rows: dict[RowKey, Row], folder: Folder) -> tuple[RowKey, ...]:
    """Entries that are there and that no chain leads to, with what was added while the files were read taken in."""
    entries = {key: (row.start, row.end, row.parent) for key, row in rows.items() if key in headers or _is_there(folder, key)}
    entries |= {key: (h.start, h.end, h.fingerprint + h.parent) for key, h in headers.items()}
    return tuple(key for key in unreachable(entries) if _is_there(folder, key))


def _empty_quarantine(folder: Folder) -> int:
    paths = [path for path in (folder.files.folder / "quarantine").iterdir() if path.is_file()]
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)
