"""The index of a cache folder, in SQLite (WAL): derived from the files, shared by all processes on the folder.

Every change carries the sequence number of its transaction, so that another process reads only what is new to it.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvcache.errors import DiskTrouble, IndexBroken
from kvcache.facts import EntryKind

SCHEMA = 1
GONE_KEPT = 5_000
"""Deletions remembered for other processes; one that was away longer reads everything again."""
HOUR = 3600.0
DAY_HOURS = 24
_CODES = {EntryKind.BLOCK: 1, EntryKind.CHECKPOINT: 2}
_KINDS = {code: kind for kind, code in _CODES.items()}
_COLUMNS = "key, kind, parent, start, stop, bytes, canonical, pinned, uses, last_used, chance, session, label"
# Pages of 1 KiB: chain ids are random, so each new row touches its own index page, and that page is written twice (WAL).
_SCHEMA_SQL = """
CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries(
  key BLOB NOT NULL, kind INTEGER NOT NULL, parent BLOB NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL,
  bytes INTEGER NOT NULL, canonical INTEGER NOT NULL, pinned INTEGER NOT NULL, uses INTEGER NOT NULL,
  last_used REAL NOT NULL, chance REAL NOT NULL, session TEXT NOT NULL, label TEXT NOT NULL, tokens BLOB NOT NULL,
  seq INTEGER NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS entries_key ON entries(key, kind);
CREATE INDEX IF NOT EXISTS entries_seq ON entries(seq);
CREATE TABLE IF NOT EXISTS gone(seq INTEGER NOT NULL, key BLOB NOT NULL, kind INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS owners(token TEXT PRIMARY KEY, reserved INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS written(hour INTEGER PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS models(fingerprint BLOB PRIMARY KEY, name TEXT NOT NULL, settings TEXT NOT NULL) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS entries_added AFTER INSERT ON entries BEGIN
  UPDATE meta SET value = value + new.bytes WHERE name = 'total'; END;
CREATE TRIGGER IF NOT EXISTS entries_dropped AFTER DELETE ON entries BEGIN
  UPDATE meta SET value = value - old.bytes WHERE name = 'total'; END;
INSERT OR IGNORE INTO meta VALUES('seq', 0), ('total', 0), ('gone_from', 0), ('damaged', 0), ('budget', 0);
"""

RowKey = tuple[EntryKind, bytes]
"""(kind, fingerprint + chain id): what names an entry in a folder of several models."""


@dataclass(frozen=True, slots=True)
class Row:
    """One file. `key` and `parent` are fingerprint + chain id; `bytes` is what the file costs on disk, rounded up."""

    kind: EntryKind
    key: bytes
    parent: bytes
    start: int
    end: int
    bytes: int
    canonical: bool
    pinned: bool = False
    uses: int = 0
    last_used: float = 0.0
    chance: float = 1.0
    session: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """What others (and we) did since a sequence number. With `everything`, `rows` is all there is and `gone` is empty."""

    seq: int
    rows: tuple[Row, ...]
    gone: tuple[RowKey, ...]
    everything: bool


@dataclass(frozen=True, slots=True)
class Model:
    """What a fingerprint stands for, in words."""

    fingerprint: bytes
    name: str
    settings: str


class Index:
    """Two connections: one for reading, which never waits for a writer, and one for transactions.

    Each connection belongs to one caller at a time (the Store's lock, the writer's lock). Every method raises
    IndexBroken when the file is no index, DiskTrouble when the disk is full, read-only or too long locked.
    """

    def __init__(self, path: Path, busy_seconds: float = 10.0) -> None:
        """Opens or creates the index; its write-ahead log gets the same mode from SQLite."""
        self.path = path
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        with _translated():
            self._writer = _connect(path, busy_seconds)
            try:
                self._prepare()
                self._reader = _connect(path, 0.05)
                self._inode = path.stat().st_ino
            except BaseException:
                self._writer.close()
                raise
        self._seen_version = -1

    def _prepare(self) -> None:
        for setting in ("page_size = 1024", "journal_mode = WAL", "wal_autocheckpoint = 256"):
            self._writer.execute(f"PRAGMA {setting}")
        self._writer.executescript(f"BEGIN IMMEDIATE; {_SCHEMA_SQL} COMMIT;")
        found = self._writer.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, SCHEMA):
            raise IndexBroken(f"index version {found}, this is {SCHEMA}")
        if found == 0:
            self._writer.execute(f"PRAGMA user_version = {SCHEMA}")

    def close(self) -> None:
        with _translated():
            self._reader.close()
            self._writer.close()

    def is_replaced(self) -> bool:
        """Whether another process set this index aside and made a new one."""
        try:
            return self.path.stat().st_ino != self._inode
        except FileNotFoundError:
            return True

    def is_changed(self) -> bool:
        """Whether anyone committed since this was last asked (about 2 µs)."""
        with _translated():
            version = self._reader.execute("PRAGMA data_version").fetchone()[0]
        changed = version != self._seen_version
        self._seen_version = version
        return bool(changed)

    def changes(self, since: int) -> Changes:
        """What happened after sequence number `since` (0: everything there is)."""
        with _translated():
            return _changes(self._reader, since)

    def tokens(self, keys: Iterable[bytes]) -> tuple[bytes | None, ...]:
        """Packed token ids of blocks, None where one is gone."""
        with _translated():
            sql = "SELECT tokens FROM entries WHERE key = ? AND kind = 1"
            rows = [self._reader.execute(sql, (key,)).fetchone() for key in keys]
        return tuple(row[0] if row else None for row in rows)

    def written_since(self, now: float) -> int:
        """Bytes all processes wrote in the 24 hours before `now` (seconds since the epoch)."""
        with _translated():
            oldest = int(now / HOUR) - DAY_HOURS + 1
            sql = "SELECT COALESCE(SUM(bytes), 0) FROM written WHERE hour >= ?"
            return int(self._reader.execute(sql, (oldest,)).fetchone()[0])

    def meta(self, name: str) -> int:
        """A counter: seq, total (bytes of all entries), damaged, budget (of the last server)."""
        with _translated():
            return _meta(self._reader, name)

    def listing(self) -> tuple[Row, ...]:
        """All rows, parents before children, over a connection of its own: it may take long and disturbs nobody."""
        with _translated():
            db = _connect(self.path, 5.0)
            try:
                return _rows(db, 0)
            finally:
                db.close()

    def file_bytes(self) -> int:
        """What the index and its write-ahead log take on disk now."""
        files = [self.path.with_name(self.path.name + suffix) for suffix in ("", "-wal", "-shm")]
        return sum(file.stat().st_size for file in files if file.exists())

    def compact(self) -> None:
        """Gives back what deleted rows left free in the file; takes as long as writing it anew."""
        with _translated():
            self._writer.execute("VACUUM")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def models(self) -> tuple[Model, ...]:
        with _translated():
            return tuple(Model(*row) for row in self._reader.execute("SELECT fingerprint, name, settings FROM models"))

    @contextmanager
    def transaction(self) -> Iterator["Transaction"]:
        """The one write lock over all processes; commits at the end, rolls back on any error."""
        with _translated():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield Transaction(self._writer)
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise


class Transaction:
    """Changes that become visible together."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        db.execute("UPDATE meta SET value = value + 1 WHERE name = 'seq'")
        self._seq = _meta(db, "seq")

    def changes(self, since: int) -> Changes:
        """As Index.changes, with the certainty that nobody changes anything until this transaction ends."""
        return _changes(self._db, since)

    def put(self, row: Row, packed: bytes) -> None:
        """Inserts a row, replacing one of the same key and kind."""
        self._db.execute("DELETE FROM entries WHERE key = ? AND kind = ?", (row.key, _CODES[row.kind]))
        values = (row.key, _CODES[row.kind], row.parent, row.start, row.end, row.bytes, row.canonical, row.pinned, row.uses)
        rest = (row.last_used, row.chance, row.session, row.label, packed, self._seq)
        self._db.execute(f"INSERT INTO entries VALUES({', '.join('?' * 15)})", values + rest)

    def delete(self, keys: Iterable[RowKey]) -> None:
        for kind, key in keys:
            self._db.execute("DELETE FROM entries WHERE key = ? AND kind = ?", (key, _CODES[kind]))
            self._db.execute("INSERT INTO gone VALUES(?, ?, ?)", (self._seq, key, _CODES[kind]))
        self._trim_gone()

    def update(self, kind: EntryKind, key: bytes, *, uses: int, last_used: float, pinned: bool) -> None:
        """Notes use and pin of an entry; nothing happens when it is gone."""
        self._db.execute(
            "UPDATE entries SET uses = max(uses, ?), last_used = max(last_used, ?), pinned = ?, seq = ?"
            " WHERE key = ? AND kind = ?",
            (uses, last_used, pinned, self._seq, key, _CODES[kind]),
        )

    def rows(self) -> tuple[Row, ...]:
        return _rows(self._db, 0)

    def total(self) -> int:
        """Bytes of all entries."""
        return _meta(self._db, "total")

    def reserve(self, owner: str, nbytes: int) -> None:
        """Sets what `owner` is about to write; the sum over all owners counts against the budget."""
        self._db.execute("INSERT OR REPLACE INTO owners VALUES(?, ?)", (owner, nbytes))

    def reserved(self, besides: str) -> int:
        """Bytes that all other owners are about to write."""
        sql = "SELECT COALESCE(SUM(reserved), 0) FROM owners WHERE token != ?"
        return int(self._db.execute(sql, (besides,)).fetchone()[0])

    def owners(self) -> tuple[str, ...]:
        return tuple(row[0] for row in self._db.execute("SELECT token FROM owners"))

    def forget_owner(self, owner: str) -> None:
        self._db.execute("DELETE FROM owners WHERE token = ?", (owner,))

    def count_written(self, now: float, nbytes: int) -> None:
        hour = int(now / HOUR)
        self._db.execute("INSERT OR IGNORE INTO written VALUES(?, 0)", (hour,))
        self._db.execute("UPDATE written SET bytes = bytes + ? WHERE hour = ?", (nbytes, hour))
        self._db.execute("DELETE FROM written WHERE hour <= ?", (hour - 2 * DAY_HOURS,))

    def set_meta(self, name: str, value: int) -> None:
        self._db.execute("UPDATE meta SET value = ? WHERE name = ?", (value, name))

    def count_damaged(self, n: int) -> None:
        self._db.execute("UPDATE meta SET value = value + ? WHERE name = 'damaged'", (n,))

    def describe(self, model: Model) -> None:
        self._db.execute("INSERT OR REPLACE INTO models VALUES(?, ?, ?)", (model.fingerprint, model.name, model.settings))

    def _trim_gone(self) -> None:
        first = self._db.execute("SELECT seq FROM gone ORDER BY rowid DESC LIMIT 1 OFFSET ?", (GONE_KEPT,)).fetchone()
        if first is not None:
            self._db.execute("DELETE FROM gone WHERE seq <= ?", (first[0],))
            self.set_meta("gone_from", first[0])


def _connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA synchronous = NORMAL")  # files are the truth: a lost last transaction is found by the sweep
    return db


def _meta(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()[0])


def _changes(db: sqlite3.Connection, since: int) -> Changes:
    if not db.in_transaction:
        db.execute("BEGIN")  # one snapshot for the three queries
        try:
            return _changes(db, since)
        finally:
            db.execute("COMMIT")
    seq, everything = _meta(db, "seq"), since == 0 or since < _meta(db, "gone_from")
    if everything:
        return Changes(seq, _rows(db, 0), (), True)
    gone = db.execute("SELECT kind, key FROM gone WHERE seq > ?", (since,)).fetchall()
    return Changes(seq, _rows(db, since), tuple((_KINDS[kind], key) for kind, key in gone), False)


def _rows(db: sqlite3.Connection, since: int) -> tuple[Row, ...]:
    found = db.execute(f"SELECT {_COLUMNS} FROM entries WHERE seq > ? ORDER BY stop, kind", (since,))
    return tuple(
        Row(_KINDS[kind], key, parent, start, stop, nbytes, bool(canonical), bool(pinned), *rest)
        for key, kind, parent, start, stop, nbytes, canonical, pinned, *rest in found
    )


@contextmanager
def _translated() -> Iterator[None]:
    """sqlite3's errors as ours, so that nobody else has to know it."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in _TROUBLE:  # the low byte is the primary code
            raise DiskTrouble(f"cache index: {error}") from error
        raise IndexBroken(f"cache index: {error}") from error
    except sqlite3.DatabaseError as error:
        raise IndexBroken(f"cache index: {error}") from error


_TROUBLE = frozenset(
    (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
)
