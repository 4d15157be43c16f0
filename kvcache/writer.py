"""Write-behind: one thread that takes keys of parked entries from a queue and has them written in batches."""

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from threading import Condition, Thread

from kvcache.tree import Key

BATCH_ENTRIES = 32
IDLE_SECONDS = 20.0
HOLD_SECONDS = 10.0
log = logging.getLogger(__name__)


class Writer:
    """Owns the queue and the thread; the entries stay where they are parked, so waiting costs no memory.

    `write` gets at most 32 keys at a time, in the order they came; `idle` is called when nothing came for a while. What
    they raise is logged, and the thread goes on. While somebody holds it, it waits: at most `hold_seconds` after a key came
    to an empty queue, and not at all while less than `least_held` or more than `most_held` bytes are queued.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Key]], None],
        idle: Callable[[], None],
        *,
        least_held: int = 0,
        most_held: int = 0,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        self._write = write
        self._idle = idle
        self._least_held = least_held
        self._most_held = most_held
        self._hold_seconds = hold_seconds
        self._changed = Condition()
        self._queue: dict[Key, int] = {}
        self._queued_bytes = 0
        self._due = 0.0  # when what is queued is written although it is held, of time.monotonic()
        self._holders: set[Hashable] = set()
        self._flushing = 0
        self._writing: frozenset[Key] = frozenset()
        self._closing = False
        self._thread = Thread(target=self._run, name="kvalet-write", daemon=True)
        self._thread.start()

    def __contains__(self, key: object) -> bool:
        return key in self._queue or key in self._writing

    def put(self, key: Key, nbytes: int = 0) -> None:
        """Queues a key behind what waits; one that waits already keeps its place. Never blocks."""
        with self._changed:
            if not self._queue:
                self._due = time.monotonic() + self._hold_seconds
            self._queued_bytes += nbytes - self._queue.get(key, 0)
            self._queue[key] = nbytes
            self._changed.notify_all()

    def hold(self, who: Hashable, on: bool) -> None:
        """`who` asks that writing waits, or asks it no more; cheap when nothing changes."""
        if on == (who in self._holders):
            return
        with self._changed:
            self._holders.add(who) if on else self._holders.discard(who)
            self._changed.notify_all()

    def waiting(self) -> tuple[Key, ...]:
        """What is not written yet."""
        with self._changed:
            return (*self._writing, *self._queue)

    def flush(self) -> None:
        """Returns when everything queued before this call was handed to `write`."""
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._queue and not self._writing)
            self._flushing -= 1

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
            while self._is_held() and (left := self._due - time.monotonic()) > 0:
                self._changed.wait(left)
            batch = tuple(self._queue)[:BATCH_ENTRIES]
            self._queued_bytes -= sum(self._queue.pop(key) for key in batch)
            self._writing = frozenset(batch)
            return batch

    def _is_held(self) -> bool:
        may_wait = self._least_held <= self._queued_bytes <= self._most_held and not self._closing and not self._flushing
        return bool(self._queue and self._holders and may_wait)
