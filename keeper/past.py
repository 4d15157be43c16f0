"""One history's path in the archive, as strategies see it: marks, stored messages, search. A bound handle, no state."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from keeper.archive import Archive, Mark, Track
from keeper.errors import NotThere
from keeper.message import Message
from keeper.search import EVERYWHERE, Limits, Matches, numbered, search


@dataclass(frozen=True, slots=True)
class Past:
    """The archive along `track`. All calls are durable when they return and may come from any thread."""

    archive: Archive
    track: Track

    def upto(self, place: int) -> "Past":
        """The same path, its first `place` messages alone."""
        kept = tuple(replace(s, end=min(s.end, place)) for s in self.track.segments if s.first < place)
        return Past(self.archive, replace(self.track, segments=kept, length=min(place, self.track.length)))

    def put(self, kind: str, place: int, body: object) -> None:
        """Remembers JSON after the first `place` messages (at least 1); a later put at the same place is newer."""
        self.archive.put(self.track, kind, place, body)

    def latest(self, kind: str) -> Mark | None:
        """The deepest mark of a kind on this path, the newest of them."""
        found = self.archive.marks(self.track, kind, newest=1)
        return found[0] if found else None

    def marks(self, kind: str, after: int = 0) -> tuple[Mark, ...]:
        """Every mark of a kind beyond place `after` of this path, in its order."""
        return self.archive.marks(self.track, kind, after=after)

    def messages(self, first: int = 0, end: int | None = None) -> Iterator[Message]:
        """The messages as archived (without reasoning), from index `first` up to `end`."""
        return self.archive.messages(self.track, first, end)

    def search(self, query: str, limits: Limits = EVERYWHERE, limit: int = 20) -> Matches:
        """Sentences that match, see keeper.search."""
        return search(self.archive, self.track, query, limits, limit)

    def numbered(self) -> bool:
        """Whether the content carries numbers of its own (Item 12, Ticket 5)."""
        return numbered(self.archive, self.track)


class Glimpse(Past):
    """The path as long as its newest message is only awaited: marks stand on what is there, or nowhere."""

    def put(self, kind: str, place: int, body: object) -> None:
        """Raises NotThere for a place beyond the path."""
        if place > self.track.length:
            raise NotThere(place, self.track.length)
        super().put(kind, place, body)
