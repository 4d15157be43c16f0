"""The engine: one thread that owns a context. Requests come in from any thread, events go out through their sinks."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from engine.config import EngineConfig
from engine.context import Context, Samplers, Tokenizer
from engine.core import Core
from engine.errors import Cancelled, ContextTooLong, EngineStopped, QueueFull
from engine.request import Request
from engine.stats import EngineStats, SlotView, copied
from engine.stream import StopMatcher
from engine.turn import Sink
from kvcache.store import Store

_log = logging.getLogger(__name__)
_BACKOFF = 0.5  # seconds a round waits after one that failed for no known reason, so that a broken context does not spin


class Engine:
    """Serves requests from one context. It closes neither context nor store: whoever made them does, after close().

    The thread cannot die silently: what a round raises ends the running turns with that error, is kept as `last_error` and
    logged; should the loop itself end, `alive` in stats() turns False and every request still here gets Failed.
    """

    def __init__(self, context: Context, store: Store, config: EngineConfig, tokenizer: Tokenizer, samplers: Samplers) -> None:
        self._core = Core(context, store, config, tokenizer, samplers)
        self._context, self._config, self._samplers = context, config, samplers
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._arriving = 0
        self._refused = 0
        self._closing = False
        self._deadline: float | None = None
        self._beat = time.monotonic()
        self._last_error: str | None = None
        self._thread = threading.Thread(target=self._run, name="kvalet-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request, sink: Sink) -> None:
        """Queues a request from any thread; `sink` gets its events on the engine's thread and must not block.

        Raises ContextTooLong, BadRequest (stop strings, sampling), QueueFull and EngineStopped, and then nothing is sent.
        """
        if len(request.tokens) >= self._context.n_ctx:
            raise ContextTooLong(len(request.tokens), self._context.n_ctx)
        StopMatcher(request.stop)
        self._samplers.check(request.sampling)
        with self._wake:
            if self._closing or not self._thread.is_alive():
                raise EngineStopped("the server is stopping")
            if len(self._core.waiting) + self._arriving >= self._config.max_queue:
                self._refused += 1
                raise QueueFull(self._config.max_queue)
            self._arriving += 1
            self._inbox.append(lambda: self._arrive(request, sink))
            self._wake.notify()

    def cancel(self, id: str) -> None:
        """Ends a request from any thread: Failed(Cancelled) is its last event, unless it has ended before."""
        with self._wake:
            self._inbox.append(lambda: self._core.cancel(id))
            self._wake.notify()

    def resident(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of every slot now; a copy that any thread may take (copying a list is one step of the interpreter)."""
        return tuple(tuple(slot.tokens) for slot in self._core.slots)

    def slots(self) -> tuple[SlotView, ...]:
        """What every slot does now."""
        return self._core.views()

    def stats(self) -> EngineStats:
        core = self._core
        counters = copied(core.counters)
        counters.refused = self._refused
        busy = bool(core.waiting or core.running)
        return EngineStats(
            counters,
            waiting=len(core.waiting) + self._arriving,
            running=len(core.running),
            slots=len(core.slots),
            reuse=self._config.reuse,
            alive=self._thread.is_alive(),
            stalled=time.monotonic() - self._beat if busy else 0.0,
            last_error=self._last_error,
            checkpoint_interval=core.placer.interval,
            checkpoints_saved=core.parker.checkpoints_saved,
            blocks_saved=core.parker.blocks_saved,
            park_ms=1e3 * core.parker.seconds,
            park_failures=core.parker.failures,
        )

    def close(self, drain_seconds: float = 0.0) -> None:
        """Takes nothing more, lets running requests finish for so long, fails the rest, and parks what every slot holds."""
        with self._wake:
            self._closing = True
            self._deadline = time.monotonic() + drain_seconds
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _arrive(self, request: Request, sink: Sink) -> None:
        with self._wake:
            self._arriving -= 1
        self._core.add(request, sink)

    def _run(self) -> None:
        try:
            while self._round():
                pass
            self._core.park_all()
        except BaseException as error:
            self._last_error = f"the engine stopped: {error!r}"
            _log.critical("the engine's thread ends", exc_info=error)
            raise
        finally:
            self._abandon()

    def _round(self) -> bool:
        """Takes what came in and does one step; False once the engine is to stop."""
        self._beat = time.monotonic()
        try:
            while self._inbox:
                self._inbox.popleft()()
            worked = self._core.step()
        except Exception as error:
            self._last_error = repr(error)
            _log.exception("a round of the engine failed; its requests are ended")
            self._core.fail_all(error)
            time.sleep(_BACKOFF)
            worked = True
        with self._wake:
            if self._closing and (time.monotonic() >= (self._deadline or 0.0) or not self._busy()):
                return False
            if not worked and not self._inbox:
                self._wake.wait(self._patience())
        return True

    def _patience(self) -> float | None:
        """How long an idle round sleeps: until woken, or until the drain is over."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _busy(self) -> bool:
        return bool(self._core.waiting or self._core.running or self._inbox)

    def _abandon(self) -> None:
        """Nobody is left without a last event."""
        with self._wake:
            self._closing = True
            while self._inbox:
                self._inbox.popleft()()
        self._core.end_all(Cancelled("the server is stopping"))
