"""kvalet-bench keeper: what the keeper adds to a request, and what a search costs, as the archive grows.

A history of ledger stories is sent as an agent sends it, whole at every request, in steps up to the largest size; then single
requests are timed at each size, with the archive on disk. Added is all of Keeper.prepare() and take() with a model that answers
at once: archiving, recognising the history, laying out the view, counting its tokens (by a counter that costs what a remembered
tokenizer result costs), recording the reply. Heap is Python memory that requests leave behind, without the history itself.
"""

import asyncio
import random
import tempfile
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from bench.report import Column, Report, number, publish, size
from keeper.config import KeeperConfig
from keeper.keeper import Keeper
from keeper.message import History, Message
from keeper.model import Body, Reply
from keeper.past import Past
from keeper.search import Limits

SIZES = (10_000, 100_000, 300_000, 1_000_000)
QUICK_SIZES = (10_000, 50_000)
TIMED = 20
SEARCHES = ("rare name", "common words", "name before an item", "question as asked")
PEOPLE = ("Ada", "Bo", "Cleo", "Dov", "Esme", "Finn", "Gia", "Hugo", "Ines", "Jon")
FILLER = (
    "It rained over the harbour all morning.",
    "Nobody was at the mill before noon.",
    "A cart stopped at the bakery for an hour.",
    "The lamps at the old bridge were lit early.",
)


@dataclass(frozen=True)
class Measured:
    """One size: tokens archived, messages sent, and milliseconds (median, most) of what was timed."""

    tokens: int
    messages: int
    added_ms: float
    added_most_ms: float
    searches_ms: Mapping[str, float]
    heap_bytes: int
    archive_bytes: int
    first_ms: float


def command(
    quick: Annotated[bool, typer.Option("--quick", help="Two small sizes, in seconds.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the result there as JSON.")] = None,
) -> None:
    """What the keeper adds to a request and what a search costs, up to 1,000,000 archived tokens."""
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(Path(folder), QUICK_SIZES if quick else SIZES))
    publish(report(rows), json_path=json_path)


def report(rows: Sequence[Measured]) -> Report:
    columns = (
        Column("tokens", "archived tokens", number()),
        Column("messages", "messages", number()),
        Column("added_ms", "added, median ms", number(2)),
        Column("added_most_ms", "added, most ms", number(2)),
        *(Column(name, f"search: {name}, ms", number(2)) for name in SEARCHES),
        Column("heap", "heap", size),
        Column("archive", "archive on disk", size),
        Column("first_ms", "first after restart, ms", number(0)),
    )
    notes = (
        "added: everything the keeper does for one request of a running conversation, its two commits included",
        "heap: Python memory after a request, without the request's own history; it must not grow with the archive",
        "first after restart: nothing is remembered, every message of the history is hashed once",
    )
    return Report("What the keeper adds", columns, document_rows(rows), notes)


def document_rows(rows: Sequence[Measured]) -> list[dict[str, Any]]:
    """The rows as the table and the JSON show them."""
    return [
        {
            "tokens": row.tokens,
            "messages": row.messages,
            "added_ms": row.added_ms,
            "added_most_ms": row.added_most_ms,
            **row.searches_ms,
            "heap": row.heap_bytes,
            "archive": row.archive_bytes,
            "first_ms": row.first_ms,
        }
        for row in rows
    ]


async def measure(folder: Path, sizes: Sequence[int]) -> list[Measured]:
    """One growing conversation, measured at each size."""
    keeper = make_keeper(folder)
    history, rows, drawn = [{"role": "system", "content": "You keep the books."}], [], random.Random(7)
    archived = 0
    for wanted in sizes:
        while archived < wanted:
            story = make_story(drawn, len(history))
            archived += tokens(story)
            history.append({"role": "user", "content": story})
            if len(history) % 40 == 0:
                await request(keeper, history)
            history.append({"role": "assistant", "content": "Noted."})
        rows.append(await measure_one(keeper, folder, history, archived, drawn))
    keeper.close()
    return rows


async def measure_one(
    keeper: Keeper, folder: Path, history: list[dict[str, Any]], archived: int, drawn: random.Random
) -> Measured:
    times = []
    for turn in range(TIMED + 1):
        history.append({"role": "user", "content": make_story(drawn, len(history))})
        took = await request(keeper, history)
        times += [took] if turn else []  # the first archives what was sent in between
        history.append({"role": "assistant", "content": "Noted."})
    searches = {name: search_ms(keeper, history, name) for name in SEARCHES}
    heap = await heap_after(keeper, history)
    again = make_keeper(folder)
    first = await request(again, [*history, {"role": "user", "content": "Item 1: nothing."}])
    again.close()
    disk = on_disk(folder)
    return Measured(archived, len(history), median(times), max(times), searches, heap, disk, first)


def on_disk(folder: Path) -> int:
    """Bytes of the archive's files."""
    return sum(path.stat().st_size for path in folder.iterdir())


def make_keeper(folder: Path) -> Keeper:
    async def complete(_: Body) -> Reply:
        return Reply(Message("assistant").with_text("NONE"))

    return Keeper(KeeperConfig(window=32768, root=folder), complete, count)


async def request(keeper: Keeper, history: Sequence[dict[str, Any]]) -> float:
    """Milliseconds that the keeper adds to one request of this history."""
    body = {"model": "m", "messages": list(history)}
    started = time.perf_counter()
    turn = await keeper.prepare(body)
    turn.take(Reply(Message("assistant").with_text("Noted.")))
    return (time.perf_counter() - started) * 1000


def search_ms(keeper: Keeper, history: Sequence[dict[str, Any]], name: str) -> float:
    """Median milliseconds of one kind of search along the whole history."""
    past = Past(keeper.archive, keeper.archive.enter(History(history)))
    last = len(history) // 2
    queries = {
        "rare name": ("counter17 counter18", Limits(), 20),
        "common words": ("harbour mill bakery morning", Limits(), 20),
        "name before an item": ("counter5", Limits(before=last // 2), 40),
        "question as asked": ("What value does counter42 hold now, and who changed it last at the harbour?", Limits(), 20),
    }
    text, limits, limit = queries[name]
    times = []
    for _ in range(7):
        started = time.perf_counter()
        past.search(text, limits, limit)
        times.append((time.perf_counter() - started) * 1000)
    return median(times)


async def heap_after(keeper: Keeper, history: Sequence[dict[str, Any]]) -> int:
    """Python memory that one more request leaves behind."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(3):
        await request(keeper, [*history, {"role": "user", "content": "Item 1: nothing."}])
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return max(0, after - before)


def make_story(drawn: random.Random, place: int) -> str:
    """A batch of about 1,600 tokens, as in the keeper's source."""
    lines = []
    for _ in range(60):
        who, name, amount = drawn.choice(PEOPLE), f"counter{drawn.randrange(100)}", drawn.randrange(1, 500)
        change = drawn.choice((f"{who} recorded {name} at {amount}.", f"{who} added {amount} to {name}.", ""))
        lines += [change, *drawn.choices(FILLER, k=2)]
    return f"Item {place // 2}: " + " ".join(line for line in lines if line)


@lru_cache(maxsize=4096)
def tokens(text: str) -> int:
    """Tokens of a text, roughly; remembered, as the server remembers what its tokenizer said of a turn."""
    return len(text) // 4


def count(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> int:
    return sum(tokens(message.get("content") or "") + 4 for message in messages) + 200 * len(tools)
