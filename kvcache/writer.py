"""Write-behind: one thread that takes keys of parked entries from a queue and has them written in batches."""

import logging
from collections.abc import Callable, Sequence
from threading import Condition, Thread

from kvcache.tree import Key

BATCH_ENTRIES = 32
IDLE_SECONDS = 20.0
log = logging.getLogger(__name__)


class Writer:
    """Owns the queue and the thread; the entries stay where they are parked, so waiting costs no memory.

    `write` gets at most 32 keys at a time, in the order they came; `idle` is called when nothing came for a while. What
    they raise is logged, and the thread goes on.
    """

    def __init__(self, write: Callable[[Sequence[Key]], None], idle: Callable[[], None]) -> None:
        self._write = write
        self._idle = idle
        self._changed = Condition()
        self._queue: dict[Key, None] = {}
        self._writing: frozenset[Key] = frozenset()
        self._closing = False
        self._thread = Thread(target=self._run, name="kvalet-write", daemon=True)
        self._thread.start()

    def __contains__(self, key: object) -> bool:
        return key in self._queue or key in self._writing

    def put(self, key: Key) -> None:
        """Queues a key behind what waits; one that waits already keeps its place. Never blocks."""
        with self._changed:
            self._queue[key] = None
            self._changed.notify_all()

    def waiting(self) -> tuple[Key, ...]:
        """What is not written yet."""
        with self._changed:
            return (*self._writing, *self._queue)

    def flush(self) -> None:
        """Returns when everything queued before this call was handed to `write`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue and not self._writing)

    def close(self) -> None:
        """Writes what is queued and ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                self._write(batch) if batch else self._idle()
            except Exception:
                log.exception("parking failed for %d entries", len(batch))
            with self._changed:
                self._writing = frozenset()
                self._changed.notify_all()

    def _next(self) -> tuple[Key, ...] | None:
        """The next batch; empty after a quiet while, None when closing and done."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing, timeout=IDLE_SECONDS)
            if self._closing and not self._queue:
                return None
            batch = tuple(self._queue)[:BATCH_ENTRIES]
            for key in batch:
                del self._queue[key]
            self._writing = frozenset(batch)
            return batch
