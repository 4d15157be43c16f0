"""The engine: a context and the thread that alone touches it. Requests come in from any thread, events go out through sinks."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from engine.config import EngineConfig
from engine.context import Context, Samplers, Tokenizer
from engine.core import Core
from engine.costs import Costs
from engine.errors import Cancelled, ContextTooLong, EngineError, EngineStopped, QueueFull
from engine.loop import Loop
from engine.request import Exact, Request
from engine.resume import Ask
from engine.routing import estimate
from engine.slots import common_prefix
from engine.stats import EngineStats, SlotView, copied
from engine.stream import StopMatcher
from engine.turn import Sink
from kvcache.entry import Match
from kvcache.store import Store

_log = logging.getLogger(__name__)
_BACKOFF = 0.5  # seconds a round waits after one that failed for no known reason, so that a broken context does not spin


class Engine:
    """Serves requests from one context. It closes neither context nor store: whoever made them does, after close().

    The thread cannot die silently: what a round raises ends the running turns with that error, is kept as `last_error` and
    logged; should the loop itself end, `alive` in stats() turns False and every request still here gets Failed.
    """

    def __init__(
        self,
        context: Context,
        store: Store,
        config: EngineConfig,
        tokenizer: Tokenizer,
        samplers: Samplers,
        loop: Loop | None = None,
    ) -> None:
        """`loop`: the thread of its device, where other engines live on it too; its own else."""
        self._core = Core(context, store, config, tokenizer, samplers)
        self._context, self._config, self._samplers = context, config, samplers
        self._inbox: deque[Callable[[], None]] = deque()
        self._loop = loop or Loop()
        self._wake = self._loop.wake
        self._arriving = 0
        self._refused = 0
        self._closing = False
        self._deadline: float | None = None
        self._beat = time.monotonic()
        self._last_error: str | None = None
        self._left = threading.Event()
        self._loop.add(self)

    def start(self) -> None:
        self._loop.start()

    @property
    def alive(self) -> bool:
        """Whether it serves: its thread runs and it was not closed."""
        return self._loop.alive and not self._left.is_set()

    def submit(self, request: Request, sink: Sink) -> None:
        """Queues a request from any thread; `sink` gets its events on the engine's thread and must not block.

        Raises ContextTooLong, BadRequest (stop strings, sampling), QueueFull and EngineStopped, and then nothing is sent.
        """
        if len(request.tokens) >= self._context.n_ctx:
            raise ContextTooLong(len(request.tokens), self._context.n_ctx)
        StopMatcher(request.stop)
        self._samplers.check(request.sampling)
        with self._wake:
            if self._closing or not self.alive:
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

    # for whoever chooses between engines; snapshots, from any thread

    @property
    def n_slots(self) -> int:
        return len(self._core.slots)

    @property
    def costs(self) -> Costs:
        """What reading and restoring cost here, as measured so far."""
        return self._core.meter.costs

    @property
    def read_tokens(self) -> int:
        """Prompt tokens read for clients."""
        return self._core.counters.read_tokens

    @property
    def read_in_background(self) -> int:
        return self._core.background.read_tokens

    def whole_prefixes(self, tokens: list[int]) -> tuple[int, ...]:
        """Lengths of the slots that hold nothing but the beginning of `tokens`."""
        return tuple(slot.length for slot in self._core.slots if 0 < slot.length == common_prefix(slot.tokens, tokens))

    def estimate(self, request: Request, match: Match, costs: Costs) -> float:
        """Milliseconds to the first token of a request of which `match` is stored, if its slots were idle (routing.estimate)."""
        if request.cold or not self._config.reuse:
            return len(request.tokens) * costs.prefill
        strict = request.exact is Exact.STRICT
        ask = Ask(len(request.tokens), self._context.kind, self._config.grid, strict, bool(match.ids))
        return estimate(ask, self._core.slots, list(request.tokens), match, costs, request.session)

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
            alive=self.alive,
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
        if self._loop.alive:
            self._left.wait()

    def _arrive(self, request: Request, sink: Sink) -> None:
        with self._wake:
            self._arriving -= 1
        self._core.add(request, sink)

    # on the loop's thread (loop.Member)

    @property
    def urgent(self) -> bool:
        return self._core.urgent

    def take(self) -> bool:
        self._beat = time.monotonic()
        taken = bool(self._inbox)
        try:
            while self._inbox:
                self._inbox.popleft()()
        except Exception as error:
            self._failed(error)
        return taken

    def work(self) -> bool:
        try:
            return self._core.step()
        except Exception as error:
            self._failed(error)
            return True

    def pending(self) -> bool:
        return bool(self._inbox)

    def patience(self) -> float | None:
        """Until woken, or until the drain is over."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def leave(self) -> bool:
        with self._wake:
            if not self._closing or (time.monotonic() < (self._deadline or 0.0) and self._busy()):
                return False
        self._core.park_all()
        return True

    def died(self, error: BaseException) -> None:
        self._last_error = f"the engine stopped: {error!r}"
        _log.critical("the engine's thread ends", exc_info=error)

    def abandon(self) -> None:
        with self._wake:
            orderly, self._closing = self._closing, True
            while self._inbox:
                self._inbox.popleft()()
        gone: EngineError = Cancelled("the server is stopping") if orderly else EngineStopped(self._last_error or "it stopped")
        self._core.end_all(gone)
        self._left.set()

    def _failed(self, error: Exception) -> None:
        self._last_error = repr(error)
        _log.exception("a round of the engine failed; its requests are ended")
        self._core.fail_all(error)
        time.sleep(_BACKOFF)

    def _busy(self) -> bool:
        return bool(self._core.waiting or self._core.running or self._inbox)
