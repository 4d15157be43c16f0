"""The file ledger behind ON DISK: for every path that the history's calls touched, the last operation that succeeded.

Built from tool calls and results alone; nothing looks at a disk. A size is what a result reported, never what we worked out.
"""

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from keeper.fileop import Verb
from keeper.graph import Graph

_SIZE = re.compile(r"\b(\d[\d,_]*(?:\.\d+)?)\s?(bytes?|B|[kKMG]i?B|characters|chars|lines)\b")
_JSON_SIZES = ("bytes_written", "bytes", "size", "size_bytes")


class FileEntry(NamedTuple):
    """`changed`: the history wrote, edited or deleted it; `size`: as last reported ("22 B"), or None."""

    path: str
    verb: Verb
    changed: bool
    size: str | None
    position: int

    def line(self) -> str:
        if self.verb is Verb.DELETE:
            return f"{self.path} (deleted)"
        return f"{self.path} ({self.size or (Verb.READ if not self.changed else self.verb)})"


def file_ledger(graph: Graph) -> tuple[FileEntry, ...]:
    """Every path, changed ones first, newest first within each. Failed operations leave no trace."""
    entries: dict[str, FileEntry] = {}
    for position, done in graph.operations.items():
        node = graph.nodes[position]
        if node.failed:
            continue
        size = _reported_size(node.text) if len(done) == 1 else None
        for operation in done:
            before = entries.get(operation.path)
            entries[operation.path] = _entry(before, operation.path, operation.verb, size, node.position)
    return tuple(sorted(entries.values(), key=lambda entry: (not entry.changed, -entry.position)))


def _entry(before: FileEntry | None, path: str, verb: Verb, size: str | None, position: int) -> FileEntry:
    """A read keeps what is known of the size; a change without a reported size makes the old one untrue."""
    if verb is Verb.READ:
        changed = before is not None and before.changed
        known = before.size if before and before.verb is not Verb.DELETE else None
        return FileEntry(path, before.verb if before and changed else verb, changed, known, position)
    return FileEntry(path, verb, True, None if verb is Verb.DELETE else size, position)


def _reported_size(text: str) -> str | None:
    """A size that the edges of a result state in words or as JSON."""
    if text.startswith("{") and (size := _json_size(text)) is not None:
        return size
    found = _SIZE.search(text[:240])
    return f"{found[1]} {'B' if found[2].startswith('byte') else found[2]}" if found else None


def _json_size(text: str) -> str | None:
    try:
        parsed: Mapping[str, object] = json.loads(text)
    except (ValueError, RecursionError):
        return None
    value = next((parsed[key] for key in _JSON_SIZES if isinstance(parsed.get(key), int)), None)
    return None if value is None else f"{value} B"
