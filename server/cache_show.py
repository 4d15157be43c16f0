"""How `kvalet cache` shows things: rows as tables and JSON, progress on stderr, errors in one line."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from kvcache import admin
from kvcache.errors import DamagedEntry
from kvcache.facts import EntryKind
from kvcache.folder import Folder, split_key
from kvcache.index import Model, Row
from kvcache.reading import Buffers, read_entry
from server.sizes import show_size

BLOCK, CHECKPOINT = EntryKind.BLOCK, EntryKind.CHECKPOINT
COLUMNS = ("id", "kind", "tokens", "size", "used", "uses", "flags", "session", "kept for")


@contextmanager
def bar(what: str, quiet: bool) -> Iterator[admin.Progress | None]:
    """A progress bar on stderr, so that stdout stays clean; none for scripts."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def wrong(message: str) -> NoReturn:
    """Bad input: one line on stderr, exit code 2."""
    fail(message, 2)


def fail(message: str, code: int) -> NoReturn:
    typer.echo(f"kvalet cache: {message}", err=True)
    raise typer.Exit(code)


def out(*parts: Any) -> None:
    """Prints to stdout; tables are as wide as the terminal, or as they need to be where there is none."""
    console = Console(soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 200)
    for part in parts:
        console.print(part, highlight=False)


def say_json(body: Any) -> None:
    typer.echo(json.dumps(body, indent=2, default=str))


def model_body(fingerprint: bytes, rows: tuple[Row, ...], names: Mapping[bytes, Model]) -> dict[str, Any]:
    mine = [row for row in rows if row.key.startswith(fingerprint)]
    known = names.get(fingerprint)
    return {
        "fingerprint": fingerprint.hex(),
        "name": known.name if known else "",
        "settings": known.settings if known else "",
        "blocks": sum(row.kind is BLOCK for row in mine),
        "checkpoints": sum(row.kind is CHECKPOINT for row in mine),
        "bytes": sum(row.bytes for row in mine),
        "deepest_tokens": max(row.end for row in mine),
        "sessions": len({row.session for row in mine if row.session}),
    }


def row_body(row: Row) -> dict[str, Any]:
    fingerprint, id = split_key(row.key)
    return {
        "id": id.hex(),
        "kind": row.kind.value,
        "fingerprint": fingerprint.hex(),
        "parent": split_key(row.parent)[1].hex() if row.kind is BLOCK else None,
        "start": row.start,
        "end": row.end,
        "bytes": row.bytes,
        "canonical": row.canonical,
        "pinned": row.pinned,
        "uses": row.uses,
        "last_used": row.last_used,
        "session": row.session,
        "label": row.label,
    }


def plain(text: str) -> str:
    """Text that clients chose, harmless in a table: no markup, no control characters."""
    return escape("".join(c if c.isprintable() else "?" for c in text))


def cells(row: Row) -> tuple[str, ...]:
    flags = ", ".join(name for name, is_set in (("canonical", row.canonical), ("pinned", row.pinned)) if is_set)
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.last_used))
    span = str(row.end) if row.kind is CHECKPOINT else f"{row.start}–{row.end}"
    return (
        split_key(row.key)[1].hex()[:16],
        row.kind.value,
        span,
        show_size(row.bytes),
        used,
        str(row.uses),
        flags,
        plain(row.session),
        plain(row.label),
    )


def proof(folder: Folder, row: Row) -> str:
    path = folder.files.path(row.kind, *split_key(row.key))
    try:
        header, _ = read_entry(path, Buffers(spare=0))
    except FileNotFoundError:
        return "missing"
    except (DamagedEntry, OSError) as error:
        return str(error)
    return f"sound ({header.codec.name.lower()}, {show_size(header.stored_bytes)} for {show_size(header.raw_bytes)})"
