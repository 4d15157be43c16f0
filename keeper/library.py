"""The archive as people look at it: which conversations there are, how much is kept, and whether all of it is as it was."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from keeper.archive import Archive, Track, chain_id
from keeper.errors import ArchiveFailed, KeeperError, UnknownConversation
from keeper.message import read

CONVERSATIONS = """
SELECT b.id, lower(hex(own.chain)), lower(hex(above.chain)), b.fork, b.session, b.started, last.depth + 1, last.at, last.id
FROM branch b
JOIN node own ON own.branch = b.id AND own.depth = b.fork
JOIN node last ON last.branch = b.id AND last.depth = (SELECT max(depth) FROM node WHERE branch = b.id)
LEFT JOIN branch p ON p.id = b.parent
LEFT JOIN node above ON above.branch = p.id AND above.depth = p.fork
"""
ID_CHARACTERS = 12


@dataclass(frozen=True, slots=True)
class Conversation:
    """A branch as people see it. `id` is the hex of its first own node's chain id, `messages` the length of its whole path;
    where it forked off another, `fork` messages are shared."""

    id: str
    messages: int
    forked_from: str | None
    fork: int
    session: str | None
    started: float
    updated: float
    title: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """Messages stored (each distinct one once) and bytes of the file."""

    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Verified:
    """What verify() looked at and what was wrong, one line each."""

    nodes: int
    messages: int
    problems: tuple[str, ...]


def conversations(archive: Archive, limit: int = 1000) -> tuple[Conversation, ...]:
    """The conversation last changed first."""
    rows = archive.rows(f"{CONVERSATIONS} ORDER BY last.at DESC, b.id DESC LIMIT ?", limit)
    return tuple(_conversation(archive, row) for row in rows)


def conversation(archive: Archive, wanted: str) -> tuple[Conversation, Track]:
    """The conversation whose id begins with `wanted`, or whose session is that, with its whole path; UnknownConversation."""
    prefix = wanted.lower() if all(c in "0123456789abcdef" for c in wanted.lower()) else ""
    rows = archive.rows(
        f"{CONVERSATIONS} WHERE b.session = ? OR (? <> '' AND lower(hex(own.chain)) LIKE ? || '%') ORDER BY last.at DESC LIMIT 1",
        wanted, prefix, prefix,
    )  # fmt: skip
    if not wanted or not rows:
        raise UnknownConversation(wanted)
    found = _conversation(archive, rows[0])
    return found, archive.track(rows[0][8], found.messages)


def _conversation(archive: Archive, row: tuple[Any, ...]) -> Conversation:
    branch, own, above, fork, session, started, messages, updated, _ = row
    return Conversation(
        own[:ID_CHARACTERS], messages, above[:ID_CHARACTERS] or None, fork, session, started, updated, _title(archive, branch)
    )


def _title(archive: Archive, branch: int) -> str:
    """The beginning of its first own user message."""
    bodies = archive.rows(
        "SELECT body FROM node JOIN message ON message.id = node.message WHERE branch = ? ORDER BY depth LIMIT 4", branch
    )
    texts = [message.text for (body,) in bodies if (message := read(json.loads(body))).role == "user"]
    return " ".join(texts[0].split())[:80] if texts else ""


def sizes(archive: Archive) -> Sizes:
    """How much is archived."""
    pages, page = archive.rows("PRAGMA page_count")[0][0], archive.rows("PRAGMA page_size")[0][0]
    last = archive.rows("SELECT max(id) FROM message")[0][0]  # nothing is ever deleted, so the last id is the count
    return Sizes(int(last or 0), int(pages) * int(page))


def verify(archive: Archive) -> Verified:
    """Derives every content hash and every chain id again, and has SQLite check its file and the search index."""
    problems = [
        f"message {id_}: its hash is not that of its body" for id_, hash_, body in _messages(archive) if not _right(hash_, body)
    ]
    nodes = 0
    for id_, chain, parent, hash_ in _nodes(archive):
        nodes += 1
        if chain_id(bytes(parent or b""), bytes(hash_ or b"")) != bytes(chain):
            problems.append(f"node {id_}: its chain id does not follow from its parent and its message")
    problems += [str(text) for (text,) in archive.rows("PRAGMA integrity_check") if text != "ok"]
    try:
        archive.rows("INSERT INTO sentence (sentence, rank) VALUES ('integrity-check', 1)")
    except ArchiveFailed as error:
        problems.append(f"search index: {error}")
    return Verified(nodes, sizes(archive).messages, tuple(problems))


def _messages(archive: Archive) -> Iterator[tuple[Any, ...]]:
    yield from _pages(archive, "SELECT id, hash, body FROM message WHERE id > ? ORDER BY id LIMIT 500")


def _nodes(archive: Archive) -> Iterator[tuple[Any, ...]]:
    yield from _pages(
        archive,
        "SELECT n.id, n.chain, p.chain, m.hash FROM node n LEFT JOIN node p ON p.id = n.parent "
        "LEFT JOIN message m ON m.id = n.message WHERE n.id > ? ORDER BY n.id LIMIT 5000",
    )


def _pages(archive: Archive, sql: str) -> Iterator[tuple[Any, ...]]:
    """The rows of a query that pages by id, a page at a time: memory does not grow with the archive."""
    last = 0
    while rows := archive.rows(sql, last):
        yield from rows
        last = rows[-1][0]


def _right(hash_: bytes, body: str) -> bool:
    try:
        return read(json.loads(body)).hash() == bytes(hash_)
    except (ValueError, KeeperError):
        return False
