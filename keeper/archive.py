"""The archive: every message word for word, on disk, for ever. SQLite alone; the truth of history.

A history is a path of nodes. A node is one message after one parent, and its chain id is
    blake2b-128(parent's chain id + content hash of the message)          (the first node's parent id is empty)
so a client that resends its history adds only what is new, two histories share their common prefix, and an edit in the middle
forks: the new message gets a node of its own under the same parent. A branch is an unforked run of nodes; a path is the last
part of one branch after the first parts of those it forked from, so a path of a million messages is a few (branch, depth) pairs.

Marks are what strategies remember (notes, cuts, summaries, shown searches): JSON on a node, found again by whoever stands
deeper on the same path. Search is FTS5 over sentences, in the branches of one path only.

    message  hash, body       content-addressed, body is the OpenAI JSON without reasoning
    node     chain, parent, message, branch, depth, item
    branch   parent, fork     the first `fork` nodes of its path belong to the parent branch's path
    mark     branch, depth, kind, body
    sentence FTS5 rows; rowid = node * 2^20 + number of the sentence in its message

Every change is one transaction in WAL mode, and a call returns after it: what was acknowledged is there after kill -9. An fsync
for each would cover power loss too, and would take most of the time that the keeper adds (6 ms where this was written); so after
power loss the last seconds may be missing, the archive is whole, and clients send those messages again. One connection behind one
lock: any thread may call. Several processes may open one archive.
"""

import json
import marshal
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

from keeper.errors import ArchiveFailed, BadHistory
from keeper.items import item_number
from keeper.message import HASH_BYTES, History, Message, read, verbatim
from keeper.sentences import split

FORMAT = 1
SENTENCE_BITS = 20
CURSORS = 256  # conversations whose last place is remembered, four places each; a miss costs one content hash a message
SCHEMA = """
CREATE TABLE message (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, body TEXT NOT NULL);
CREATE TABLE branch (id INTEGER PRIMARY KEY, parent INTEGER, fork INTEGER NOT NULL, session TEXT, started REAL NOT NULL);
CREATE TABLE node (id INTEGER PRIMARY KEY, chain BLOB NOT NULL UNIQUE, parent INTEGER, message INTEGER NOT NULL,
    branch INTEGER NOT NULL, depth INTEGER NOT NULL, item INTEGER, at REAL NOT NULL);
CREATE UNIQUE INDEX node_place ON node (branch, depth);
CREATE INDEX node_item ON node (branch, item);
CREATE TABLE mark (id INTEGER PRIMARY KEY, branch INTEGER NOT NULL, depth INTEGER NOT NULL, kind TEXT NOT NULL,
    body TEXT NOT NULL, at REAL NOT NULL);
CREATE INDEX mark_place ON mark (kind, branch, depth);
CREATE VIRTUAL TABLE sentence USING fts5 (text, branch, tokenize = 'unicode61');
"""


@dataclass(frozen=True, slots=True)
class Segment:
    """Nodes of `branch` from depth `first` up to and without depth `end`."""

    branch: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Track:
    """Where one history lies: its segments, first one first; `node` is its last message's (None: an empty history)."""

    segments: tuple[Segment, ...]
    length: int
    node: int | None

    @property
    def branches(self) -> tuple[int, ...]:
        return tuple(segment.branch for segment in self.segments)

    def at(self, index: int) -> Segment:
        """The segment that holds message `index`; IndexError beyond the end."""
        for segment in self.segments:
            if segment.first <= index < segment.end:
                return segment
        raise IndexError(index)


@dataclass(frozen=True, slots=True)
class Mark:
    """Something remembered at `place`: it knows the first `place` messages of the path. `at` is seconds since 1970."""

    id: int
    place: int
    kind: str
    body: Any
    at: float


class Archive:
    """All histories, in `root`/keeper.db or in memory. Raises ArchiveFailed where SQLite does; nothing is half written."""

    def __init__(self, root: Path | None = None) -> None:
        self.path = root / "keeper.db" if root else None
        self._lock = threading.RLock()
        self._cursors: OrderedDict[bytes, list[tuple[int, bytes, int]]] = OrderedDict()
        with self._failing():
            if root:
                root.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path or ":memory:", check_same_thread=False, isolation_level=None, timeout=10)
            self._open()

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        with self._writing() as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                for statement in SCHEMA.split(";\n"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {FORMAT}")
            elif version != FORMAT:
                raise ArchiveFailed(
                    f"{self.path} has format {version} and this kvalet reads format {FORMAT}; use another --archive folder"
                )

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise ArchiveFailed(f"the archive {self.path or 'in memory'} failed: {error}") from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is on disk after the block, or none of it where the block raises."""
        with self._lock, self._failing():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of one read, for the modules that know the tables above."""
        with self._lock, self._failing():
            return self._db.execute(sql, values).fetchall()

    def close(self) -> None:
        """Ends the connection; the archive is complete on disk at any time, so nothing is owed here."""
        with self._lock:
            self._db.close()

    # --- entering a history -------------------------------------------------------------------------------------------

    def enter(self, history: History, session: str | None = None) -> Track:
        """Archives what is new of `history` and returns its path. BadHistory where a new message cannot be read.

        Only the messages after the place that the last request of this conversation reached are looked at one by one; up to
        there one checksum of the raw messages is compared.
        """
        first = _checksums(history.raw[:3], [min(3, len(history))]).get(min(3, len(history)), b"")
        with self._lock:
            places = sorted(self._cursors.get(first, ()), reverse=True)
        sums = _checksums(history.raw, [len(history), *(length for length, _, _ in places if length < len(history))])
        known, node = next(((n, at) for n, checksum, at in places if sums.get(n) == checksum), (0, None))
        chain = self._chain_of(node) if node else b""
        new: list[tuple[bytes, Message]] = []
        for index, message in enumerate(history[known:], known):
            if _has_surrogates(message):
                raise BadHistory("is not valid Unicode (a lone surrogate), so it cannot be archived", f"messages[{index}]")
            chain = chain_id(chain, message.hash())
            new.append((chain, message))
        head = self._add(node, known, new, session)
        if head is not None and len(history) in sums:
            self._remember(first, (len(history), sums[len(history)], head))
        return self.track(head, len(history))

    def _remember(self, first: bytes, place: tuple[int, bytes, int]) -> None:
        """Files a place that a conversation has reached under its first messages; the last four are kept."""
        with self._lock:
            self._cursors[first] = [place, *(p for p in self._cursors.pop(first, []) if p[0] != place[0])][:4]
            while len(self._cursors) > CURSORS:
                self._cursors.popitem(last=False)

    def _chain_of(self, node: int) -> bytes:
        return bytes(self.rows("SELECT chain FROM node WHERE id = ?", node)[0][0])

    def _add(self, node: int | None, depth: int, new: Sequence[tuple[bytes, Message]], session: str | None) -> int | None:
        """Walks on from `node` over messages that are there, then adds the others; returns the last node."""
        node, place = self._walk(node, new, 0)
        if place == len(new):
            return node
        with self._writing() as db:
            node, place = self._walk(node, new, place)  # another process may have added some since
            branch = self._branch_for(db, node, depth + place, session) if place < len(new) else 0
            for i in range(place, len(new)):
                node = self._insert(db, node, branch, depth + i, *new[i])
        return node

    def _walk(self, node: int | None, new: Sequence[tuple[bytes, Message]], place: int) -> tuple[int | None, int]:
        while place < len(new) and (found := self.rows("SELECT id FROM node WHERE chain = ?", new[place][0])):
            node = int(found[0][0])
            place += 1
        return node, place

    def _branch_for(self, db: sqlite3.Connection, node: int | None, depth: int, session: str | None) -> int:
        """The branch that the next node belongs to: the parent's own where the parent is its end, else a new one."""
        if node is not None:
            own = int(db.execute("SELECT branch FROM node WHERE id = ?", (node,)).fetchone()[0])
            if not db.execute("SELECT 1 FROM node WHERE branch = ? AND depth = ?", (own, depth)).fetchone():
                return own
            made = db.execute(
                "INSERT INTO branch (parent, fork, session, started) VALUES (?, ?, ?, ?)", (own, depth, session, time.time())
            )
        else:
            made = db.execute(
                "INSERT INTO branch (parent, fork, session, started) VALUES (NULL, 0, ?, ?)", (session, time.time())
            )
        return int(made.lastrowid or 0)

    def _insert(self, db: sqlite3.Connection, parent: int | None, branch: int, depth: int, chain: bytes, message: Message) -> int:
        kept = message.without_reasoning()
        db.execute("INSERT OR IGNORE INTO message (hash, body) VALUES (?, ?)", (kept.hash(), verbatim(kept.as_dict())))
        body = db.execute("SELECT id FROM message WHERE hash = ?", (kept.hash(),)).fetchone()[0]
        text = searchable(kept)
        item = item_number(text)
        if item is None and parent is not None:
            item = db.execute("SELECT item FROM node WHERE id = ?", (parent,)).fetchone()[0]
        made = db.execute(
            "INSERT INTO node (chain, parent, message, branch, depth, item, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (chain, parent, body, branch, depth, item, time.time()),
        )
        node = int(made.lastrowid or 0)
        rows = (
            (node << SENTENCE_BITS | i, sentence, f"b{branch}") for i, sentence in enumerate(split(text)[: 1 << SENTENCE_BITS])
        )
        db.executemany("INSERT INTO sentence (rowid, text, branch) VALUES (?, ?, ?)", rows)
        return node

    def track(self, node: int | None, length: int) -> Track:
        """The path that ends in `node`."""
        if node is None:
            return Track((), length, None)
        branch, depth = self.rows("SELECT branch, depth FROM node WHERE id = ?", node)[0]
        end, found = depth + 1, []
        while branch is not None:
            parent, fork = self.rows("SELECT parent, fork FROM branch WHERE id = ?", branch)[0]
            if fork < end:
                found.append(Segment(branch, fork, end))
            branch, end = parent, min(fork, end)
        return Track(tuple(reversed(found)), length, node)

    def append(self, track: Track, messages: Sequence[Message]) -> Track:
        """Adds messages after the end of a path: a reply is on disk before the client has all of it."""
        chain = self._chain_of(track.node) if track.node else b""
        new = []
        for message in messages:
            chain = chain_id(chain, message.hash())
            new.append((chain, message))
        node = self._add(track.node, track.length, new, None)
        return self.track(node, track.length + len(new))

    # --- marks and messages of a path ----------------------------------------------------------------------------------

    def put(self, track: Track, kind: str, place: int, body: object) -> None:
        """Remembers JSON at `place` of a path: whoever stands at least that deep on it finds it."""
        branch = track.at(place - 1).branch
        with self._writing() as db:
            db.execute(
                "INSERT INTO mark (branch, depth, kind, body, at) VALUES (?, ?, ?, ?, ?)",
                (branch, place - 1, kind, verbatim(body), time.time()),
            )

    def marks(self, track: Track, kind: str, newest: int = 0, after: int = 0) -> tuple[Mark, ...]:
        """The marks of one kind beyond place `after` of a path, deepest and newest last; the `newest` few where it is not 0."""
        found: list[tuple[Any, ...]] = []
        for segment in reversed(track.segments):
            found += self.rows(
                "SELECT id, depth + 1, kind, body, at FROM mark WHERE kind = ? AND branch = ? AND depth < ? AND depth >= ? "
                "ORDER BY depth DESC, id DESC LIMIT ?",
                kind, segment.branch, segment.end, after, newest - len(found) if newest else -1,
            )  # fmt: skip
            if newest and len(found) >= newest:
                break
        return tuple(Mark(id_, place, kind, json.loads(body), at) for id_, place, kind, body, at in reversed(found))

    def each_mark(self, track: Track, kind: str) -> Iterator[Mark]:
        """Every mark of one kind on a path, in its order, a few in memory at a time: they may be many and large."""
        for segment in track.segments:
            last = (-1, 0)
            while rows := self.rows(
                "SELECT id, depth, body, at FROM mark WHERE kind = ? AND branch = ? AND depth < ? AND (depth, id) > (?, ?) "
                "ORDER BY depth, id LIMIT 16",
                kind, segment.branch, segment.end, *last,
            ):  # fmt: skip
                yield from (Mark(id_, depth + 1, kind, json.loads(body), at) for id_, depth, body, at in rows)
                last = (rows[-1][1], rows[-1][0])

    def messages(self, track: Track, first: int = 0, end: int | None = None) -> Iterator[Message]:
        """The stored messages of a path from `first` up to `end`, read in small pieces."""
        for place in range(first, track.length if end is None else end):
            segment = track.at(place)
            row = self.rows(
                "SELECT body FROM node JOIN message ON message.id = node.message WHERE branch = ? AND depth = ?",
                segment.branch,
                place,
            )
            yield read(json.loads(row[0][0]), place)


def chain_id(parent: bytes, content: bytes) -> bytes:
    """blake2b-128 over the parent's chain id (empty for the first message) and the content hash."""
    return blake2b(parent + content, digest_size=HASH_BYTES).digest()


def searchable(message: Message) -> str:
    """What search sees of a message: its text, then the name and arguments of each call."""
    return "\n".join([message.text, *(f"{call.name} {call.arguments}" for call in message.tool_calls)]).strip()


def _has_surrogates(message: Message) -> bool:
    try:
        verbatim(message.as_dict()).encode()
    except UnicodeEncodeError:
        return True
    return False


def _checksums(raw: Sequence[Any], lengths: Iterable[int]) -> dict[int, bytes]:
    """SHA-256 of the first so many messages, in one pass; {} where a value is no JSON.

    marshal is the fastest way from objects to bytes, and SHA-256 the fastest hash here that nobody can find two histories for.
    """
    wanted, found, so_far = set(lengths), {}, sha256()
    try:
        for length, message in enumerate(raw, 1):
            so_far.update(marshal.dumps(message, 2))
            if length in wanted:
                found[length] = so_far.digest()
    except ValueError:
        return {}
    return found
