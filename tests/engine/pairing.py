"""Two engines on fake contexts over one store: what the tests of a pair share."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from engine.config import Budget, EngineConfig
from engine.context import StateKind
from engine.engine import Engine
from engine.fake import FakeContext, FakeSamplers, FakeTokenizer
from engine.foresight import Kind, Prompt
from engine.loop import Loop
from engine.pair import Pair, PairConfig
from engine.request import Done, Event, Exact, Failed, Request, Token
from kvcache.config import CacheConfig
from kvcache.store import Store
from tests.engine.serving import GREEDY, MIB, ROOT

SECONDS = 20.0


class Sink:
    """Keeps the events of one request."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._ended = threading.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Done | Failed):
            self._ended.set()

    @property
    def last(self) -> Done | Failed:
        assert self._ended.wait(SECONDS)
        last = self.events[-1]
        assert isinstance(last, Done | Failed)
        return last

    @property
    def done(self) -> Done:
        last = self.last
        assert isinstance(last, Done), last
        return last

    @property
    def tokens(self) -> list[int]:
        return [event.token for event in self.events if isinstance(event, Token)]


class Duo:
    """See the module. `contexts` are the fakes, in the order of the engines."""

    def __init__(self, *, shared: bool, one_thread: bool, budget: Budget, **fake: object) -> None:
        self.contexts = [FakeContext(StateKind.HYBRID, exact=False, **fake) for _ in range(2)]  # type: ignore[arg-type]
        self.store = Store(CacheConfig(ram_bytes=64 * MIB), ROOT, needs_checkpoint=True)
        loop = Loop()
        self.engines = [
            Engine(c, self.store, EngineConfig(), FakeTokenizer(), FakeSamplers(c), loop if one_thread else None)
            for c in self.contexts
        ]
        self.pair = Pair(self.engines, self.store, PairConfig(shared, one_thread, "anchors", budget, patience=0.0))
        self._ids = count()

    def send(self, tokens: Sequence[int], most: int = 8, exact: Exact = Exact.APPEND, **fields: object) -> Sink:
        sink = Sink()
        id = f"r{next(self._ids)}"
        self.pair.submit(Request(id, tuple(tokens), GREEDY, most, exact=exact, ignore_eos=True, **fields), sink)  # type: ignore[arg-type]
        return sink

    def ask(self, tokens: Sequence[int], most: int = 8, exact: Exact = Exact.APPEND, **fields: object) -> Done:
        return self.send(tokens, most, exact, **fields).done

    def expect(self, done: Done, tokens: Sequence[int], kind: Kind = Kind.ANTICIPATE) -> None:
        """Says what may follow, and waits until all of it that may be read has been."""
        self.pair.expect(done.request, lambda: (kind, Prompt(tuple(tokens))))
        self.settle()

    def settle(self) -> None:
        until(lambda: not self.pair.pair_stats().background.busy)


def until(holds: Callable[[], bool]) -> None:
    """Waits for something another thread does."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@contextmanager
def duo(*, shared: bool = False, one_thread: bool = False, budget: Budget | None = None, **fake: object) -> Iterator[Duo]:
    made = Duo(shared=shared, one_thread=one_thread, budget=budget or Budget(tokens=8192), **fake)
    made.pair.start()
    try:
        yield made
    finally:
        made.pair.close()
