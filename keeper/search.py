"""Keyword search in the archive along one path: BM25 over sentences, all words first, any word where no sentence has all."""

import re
from dataclasses import dataclass
from typing import Any

from keeper.archive import SENTENCE_BITS, Archive, Track

WORD = re.compile(r"\w+")
COMMON = """
a an and any are as at be been by did do does for from had has have how i in is it its me now of on or so than that the
their them then there these they this to was were what when where which who whom why will with you your
"""
STOPWORDS = frozenset(COMMON.split())


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
    """The hits shown, in the order of the path, out of `total` that matched."""

    hits: tuple[Hit, ...]
    total: int


def terms(query: str) -> tuple[str, ...]:
    """The words of a query, common ones left out where others remain, each once."""
    words = tuple(dict.fromkeys(WORD.findall(query.lower())))
    return tuple(word for word in words if word not in STOPWORDS) or words


def search(archive: Archive, track: Track, query: str, limits: Limits = EVERYWHERE, limit: int = 20) -> Matches:
    """At most `limit` sentences that match. With before or after, the ones nearest to that number; else the best by BM25."""
    words = terms(query)
    if not words or not track.segments:
        return Matches((), 0)
    for joiner in (" AND ", " OR "):
        total = _rows(archive, track, words, joiner, limits, "count(*)", "")[0][0]
        if total or len(words) == 1:
            break
    order = {True: "node.item DESC, sentence.rowid DESC", False: "node.item, sentence.rowid"}[limits.before is not None]
    ranked = "bm25(sentence), sentence.rowid DESC" if limits.before is None and limits.after is None else order
    rows = _rows(
        archive,
        track,
        words,
        joiner,
        limits,
        "sentence.rowid, node.depth, node.item, sentence.text",
        f"ORDER BY {ranked} LIMIT {limit}",
    )
    return Matches(tuple(_hit(archive, *row) for row in sorted(rows, key=lambda row: (row[1], row[0]))), int(total))


def _rows(
    archive: Archive, track: Track, words: tuple[str, ...], joiner: str, limits: Limits, what: str, then: str
) -> list[tuple[Any, ...]]:
    """One FTS query; the branches are a column of the index, so that other conversations' sentences cost nothing."""
    wanted = joiner.join(f'"{word}"' for word in words)
    places = " OR ".join(f"b{branch}" for branch in track.branches)
    ends = " OR ".join(f"(node.branch = {s.branch} AND node.depth < {s.end})" for s in track.segments)
    asked = [("node.item < ?", limits.before), ("node.item > ?", limits.after), ("node.item = ?", limits.item)]
    extra = "".join(f" AND {clause}" for clause, value in asked if value is not None)
    return archive.rows(
        f"SELECT {what} FROM sentence JOIN node ON node.id = sentence.rowid >> {SENTENCE_BITS} "
        f"WHERE sentence MATCH ? AND ({ends}){extra} {then}",
        f"branch : ({places}) AND text : ({wanted})",
        *(value for _, value in asked if value is not None),
    )


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
