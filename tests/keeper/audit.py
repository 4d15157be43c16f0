"""Every saved version of the notes against the true ledger at the place that it covers."""

from collections.abc import Sequence
from typing import Any

from keeper.archive import Archive, Track
from keeper.notes import from_json
from keeper.noting import MARK
from tests.keeper.stories import Ledger


def wrong_values(
    archive: Archive, track: Track, history: Sequence[dict[str, Any]], ledger: Ledger
) -> list[tuple[int, str, str, str]]:
    """(item covered, name, noted, true) for each noted value that was not true then, over all versions."""
    found = []
    for mark in archive.each_mark(track, MARK):
        items = [m["content"] for m in history[: mark.place] if m["role"] == "user" and m["content"].startswith("Item ")]
        item = len(items)
        for entry in from_json(mark.body["notes"]).state:
            true = ledger.value(entry.name, item)
            if entry.value != str(true):
                found.append((item, entry.name, entry.value, str(true)))
    return found


def missing_names(archive: Archive, track: Track, history: Sequence[dict[str, Any]], ledger: Ledger) -> list[tuple[int, str]]:
    """(item covered, name) of counters that had changed by then and have no line."""
    found = []
    for mark in archive.each_mark(track, MARK):
        item = sum(m["role"] == "user" and m["content"].startswith("Item ") for m in history[: mark.place])
        noted = {entry.name for entry in from_json(mark.body["notes"]).state}
        found += [(item, c.name) for c in ledger.changes if c.item <= item and c.name not in noted]
    return found
