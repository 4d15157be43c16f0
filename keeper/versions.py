"""Every saved version of a conversation's notes, with what changed in each and how it came about: the audit trail."""

import difflib
from collections.abc import Iterator
from typing import Any

from keeper.archive import Archive, Track
from keeper.notes import from_json
from keeper.noting import MARK


def versions(archive: Archive, track: Track) -> Iterator[dict[str, Any]]:
    """The saved notes along a path, oldest first: `covers_messages` of the history, `taken` as Taken.as_json() gives it."""
    before: list[str] = []
    for mark in archive.each_mark(track, MARK):
        lines = from_json(mark.body["notes"]).render().split("\n")
        diff = [
            line for line in difflib.unified_diff(before, lines, n=0, lineterm="") if not line.startswith(("---", "+++", "@@"))
        ]
        yield {
            "id": mark.id,
            "at": mark.at,
            "covers_messages": mark.place,
            "notes": "\n".join(lines),
            "diff": diff,
            "taken": mark.body.get("taken"),
        }
        before = lines
