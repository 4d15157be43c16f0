"""Keyword search in the archive along one path: BM25 over sentences, all words first, any word where no sentence has all."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keeper.archive import SENTENCE_BITS, Archive, Track
from keeper.bm25 import scores

WORD = re.compile(r"\w+")
COMMON = """
a an and any are as at be been by did do does for from had has have how i in is it its me now of on or so than that the
their them then there these they this to was were what when where which who whom why will with you your
"""
STOPWORDS = frozenset(COMMON.split())
CANDIDATES = 1000  # newest matching sentences that are ranked
MOST_COUNTED = 1000
SENTENCES_A_MESSAGE = 20  # for the rarity of a word, which needs no better


@dataclass(frozen=True, slots=True)
class Limits:
    """Which part of the archive a search covers, in the content's own numbers; `before` and `after` exclude their number."""

    before: int | None = None
    after: int | None = None
    item: int | None = None


EVERYWHERE = Limits()


@dataclass(frozen=True, slots=True)
class Hit:
    """A matching sentence and the one after it in the same message ('' at its end); `index` is its message's in the path."""

    index: int
    item: int | None
    role: str
    text: str
    following: str
    number: int  # of the sentence in its message


@dataclass(frozen=True, slots=True)
class Matches:
    """The hits shown, in the order of the path, out of `total` that matched; more than MOST_COUNTED are not counted on."""

    hits: tuple[Hit, ...]
    total: int


def terms(query: str) -> tuple[str, ...]:
    """The words of a query, common ones left out where others remain, each once."""
    words = tuple(dict.fromkeys(WORD.findall(query.lower())))
    return tuple(word for word in words if word not in STOPWORDS) or words


def search(archive: Archive, track: Track, query: str, limits: Limits = EVERYWHERE, limit: int = 20) -> Matches:
    """At most `limit` sentences that match. With before or after, the ones nearest to that number; else the best by BM25.

    What it costs is bounded whatever is archived: sentences are taken in the order of the path, the newest CANDIDATES at most.
    """
    words = terms(query)
    if not words or not track.segments:
        return Matches((), 0)
    scope = _scope(archive, track, limits)
    for joiner in (" AND ", " OR "):
        total = scope.count(words, joiner)
        if total or len(words) == 1:
            break
    if limits.before is not None or limits.after is not None:
        chosen = scope.rows(words, joiner, limit, oldest_first=limits.before is None)
    else:
        found = scope.rows(words, joiner, CANDIDATES)
        occurs = {word: scope.count((word,), "") for word in words}
        ranked = scores(words, [str(row[3]) for row in found], occurs, track.length * SENTENCES_A_MESSAGE)
        chosen = [row for _, row in sorted(zip(ranked, found, strict=True), key=lambda pair: (-pair[0], -pair[1][0]))[:limit]]
    return Matches(tuple(_hit(archive, *row) for row in sorted(chosen, key=lambda row: (row[1], row[0]))), total)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where a search looks: the branches of one path, up to where it leaves each, within the limits."""

    archive: Archive
    branches: str  # as an FTS5 expression; a column of the index, so that other conversations' sentences cost nothing
    where: str
    values: tuple[int, ...]

    def count(self, words: tuple[str, ...], joiner: str) -> int:
        """Matching sentences, counted up to MOST_COUNTED + 1."""
        rows = self.archive.rows(
            f"SELECT count(*) FROM (SELECT 1 {self.where} LIMIT {MOST_COUNTED + 1})", *self._asked(words, joiner)
        )
        return int(rows[0][0])

    def rows(self, words: tuple[str, ...], joiner: str, limit: int, oldest_first: bool = False) -> list[tuple[Any, ...]]:
        """(rowid, depth, item, text) of the first `limit` matches in the order of the path, or against it."""
        order = "" if oldest_first else "DESC"
        what = "SELECT sentence.rowid, node.depth, node.item, sentence.text"
        return self.archive.rows(
            f"{what} {self.where} ORDER BY sentence.rowid {order} LIMIT {limit}", *self._asked(words, joiner)
        )

    def _asked(self, words: tuple[str, ...], joiner: str) -> tuple[object, ...]:
        wanted = joiner.join(f'"{word}"' for word in words)
        return (f"branch : ({self.branches}) AND text : ({wanted})", *self.values)


def _scope(archive: Archive, track: Track, limits: Limits) -> _Scope:
    ends = " OR ".join(f"(node.branch = {s.branch} AND node.depth < {s.end})" for s in track.segments)
    asked = [("node.item < ?", limits.before), ("node.item > ?", limits.after), ("node.item = ?", limits.item)]
    clauses = [(clause, value) for clause, value in asked if value is not None]
    where = (
        f"FROM sentence JOIN node ON node.id = sentence.rowid >> {SENTENCE_BITS} "
        f"WHERE sentence MATCH ? AND ({' AND '.join([f'({ends})', *(clause for clause, _ in clauses)])})"
    )
    values = tuple(value for _, value in clauses)
    if clauses:
        first, last = _node_range(archive, track, clauses)
        where += f" AND sentence.rowid >= {first << SENTENCE_BITS} AND sentence.rowid < {(last + 1) << SENTENCE_BITS}"
    return _Scope(archive, " OR ".join(f"b{branch}" for branch in track.branches), where, values)


def _node_range(archive: Archive, track: Track, clauses: Sequence[tuple[str, int]]) -> tuple[int, int]:
    """The first and last node that the limits allow, so that the index is read there and not from its end (0, -1: none)."""
    branches = ", ".join(str(branch) for branch in track.branches)
    condition = " AND ".join(clause for clause, _ in clauses)
    rows = archive.rows(
        f"SELECT min(id), max(id) FROM node WHERE branch IN ({branches}) AND {condition}", *(value for _, value in clauses)
    )
    first, last = rows[0]
    return (0, -1) if first is None else (int(first), int(last))


def _hit(archive: Archive, rowid: int, depth: int, item: int | None, text: str) -> Hit:
    after = archive.rows("SELECT text FROM sentence WHERE rowid = ?", rowid + 1)
    role = archive.rows(
        "SELECT json_extract(body, '$.role') FROM node JOIN message ON message.id = node.message WHERE node.id = ?",
        rowid >> SENTENCE_BITS,
    )[0][0]
    return Hit(depth, item, str(role), text, str(after[0][0]) if after else "", rowid & ((1 << SENTENCE_BITS) - 1))


def numbered(archive: Archive, track: Track) -> bool:
    """Whether this path's content carries numbers of its own, which before, after and item can count in."""
    return any(
        archive.rows("SELECT 1 FROM node WHERE branch = ? AND depth < ? AND item IS NOT NULL LIMIT 1", s.branch, s.end)
        for s in track.segments
    )
