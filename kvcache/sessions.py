"""Who parked what: statistics of the conversations that clients named. Never a condition for a hit."""

from dataclasses import replace

from kvcache.facts import EntryKind
from kvcache.ram import Clock
from kvcache.views import SessionStats

MOST = 1024
"""Names remembered; the longest unused is forgotten first, so that a client that invents names costs no memory."""


class Sessions:
    """Counts by session name. Not thread-safe: the Store's lock guards it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, SessionStats] = {}

    def note(self, name: str | None, kind: EntryKind, nbytes: int, position: int) -> None:
        """Counts one parked entry under `name`; None counts nothing."""
        if name is None:
            return
        old = self._known.pop(name, None) or SessionStats(name, 0, 0, 0, 0, 0.0)
        self._known[name] = replace(
            old,
            blocks=old.blocks + (kind is EntryKind.BLOCK),
            checkpoints=old.checkpoints + (kind is EntryKind.CHECKPOINT),
            bytes=old.bytes + nbytes,
            position=max(old.position, position),
            last_used=self._clock(),
        )
        if len(self._known) > MOST:
            del self._known[next(iter(self._known))]

    def all(self) -> tuple[SessionStats, ...]:
        return tuple(self._known.values())
