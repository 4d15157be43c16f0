"""Several engines over one store that look like one: whoever has most of a conversation answers it, the idle one reads ahead.

All state moves between them through the store. The engines are equal: which of them answers and which reads in the background is
decided request by request, so that they swap roles where the one that has read ahead is the cheaper to go on with.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Protocol

from engine.background import Background, BackgroundStats
from engine.config import Budget
from engine.conversation import Foresee
from engine.engine import Engine
from engine.errors import BadRequest, Cancelled, EngineStopped, QueueFull
from engine.foresight import Ahead, Kind, Prompt, held_of
from engine.request import Done, Event, Exact, Failed, Request, Token
from engine.routing import STRIKES, Quote, room, route
from engine.stats import Counters, EngineStats, SlotView
from engine.turn import Sink
from kvcache import placement
from kvcache.chain import chain_ids
from kvcache.placement import PlacementFacts
from kvcache.store import Store

PATIENCE = 0.2  # on a device that it shares: a fast agent is back sooner
NEWEST = 512  # tokens beyond a slot's content; for more the store is asked whether it has some of them
OWN_PATIENCE = 0.02  # on a device of its own: only the server must get to say what may follow


@dataclass(frozen=True, slots=True)
class PairConfig:
    """`shared`: the engines share a device (or a set of cores), so the background rests while anybody is served. `one_thread`:
    they share its thread too. `placement` as in EngineConfig. `patience`: seconds of silence before the
    background begins."""

    shared: bool
    one_thread: bool
    placement: str
    budget: Budget
    patience: float


@dataclass(frozen=True, slots=True)
class PairStats:
    """`swaps`: requests that another engine answered than the one that answered their conversation before; `rescued`: requests
    that one engine failed and another answered; `alive` and `strikes` by engine."""

    background: BackgroundStats
    swaps: int
    rescued: int
    alive: tuple[bool, ...]
    strikes: tuple[int, ...]


class Serves(Protocol):
    """What a server needs of an engine, or of several."""

    def start(self) -> None: ...
    def submit(self, request: Request, sink: Sink) -> None: ...
    def cancel(self, id: str) -> None: ...
    def resident(self) -> tuple[tuple[int, ...], ...]: ...
    def slots(self) -> tuple[SlotView, ...]: ...
    def stats(self) -> EngineStats: ...
    def close(self, drain_seconds: float = 0.0) -> None: ...


class Pair:
    """Serves requests as an Engine does. It closes its engines, but neither their contexts nor the store."""

    def __init__(self, engines: Sequence[Engine], store: Store, config: PairConfig) -> None:
        self._engines, self._store, self._config = tuple(engines), store, config
        self._lock = threading.Lock()
        self._serves: Counter[int] = Counter()
        self._strikes: Counter[int] = Counter()
        self._where: dict[str, int] = {}
        self._swaps = self._rescued = 0
        self._background = Background(self, config.budget, config.patience)

    def start(self) -> None:
        for engine in self._engines:
            engine.start()
        self._background.start()

    def submit(self, request: Request, sink: Sink) -> None:
        """As Engine.submit, on the engine that is the best for it; a request that nobody waits for on one that is idle, and
        Cancelled is raised where none is."""
        if request.background:
            self._background.lend(request, sink)
            return
        self._send(request, sink, self._choose(request), spare=True)

    def cancel(self, id: str) -> None:
        at = self._where.get(id)
        if at is None:
            self._background.cancel(id)
        else:
            self._engines[at].cancel(id)

    def expect(self, request: str, *ahead: Foresee) -> None:
        """What may be asked after the request of that id, which has ended: read in the background when there is time."""
        self._background.expect(request, ahead)

    def resident(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tokens for engine in self._engines for tokens in engine.resident())

    def slots(self) -> tuple[SlotView, ...]:
        """Every engine's, numbered through."""
        views = [view for engine in self._engines for view in engine.slots()]
        return tuple(replace(view, index=index) for index, view in enumerate(views))

    def stats(self) -> EngineStats:
        """Sums over the engines; what was read in the background is in `pair_stats` alone."""
        return merged([engine.stats() for engine in self._engines])

    def pair_stats(self) -> PairStats:
        alive = tuple(engine.alive for engine in self._engines)
        strikes = tuple(self._strikes[at] for at in range(len(self._engines)))
        return PairStats(self._background.stats(), self._swaps, self._rescued, alive, strikes)

    def close(self, drain_seconds: float = 0.0) -> None:
        """Ends the background, then closes every engine, side by side."""
        self._background.close()
        with ThreadPoolExecutor(len(self._engines)) as pool:
            list(pool.map(lambda engine: engine.close(drain_seconds), self._engines))

    # the foreground

    def _choose(self, request: Request) -> int:
        """An engine that just goes on with its slot is taken as it is; only where none does is the store asked."""
        going_on = self._goes_on(request)
        if going_on is not None:
            return going_on
        match = self._store.match(request.tokens, canonical_only=request.exact is Exact.STRICT, counted=False)
        costs = max(self._engines, key=lambda engine: engine.read_tokens).costs
        return route(
            self._quotes([engine.estimate(request, match, costs) for engine in self._engines]), shared=self._config.one_thread
        )

    def _goes_on(self, request: Request) -> int | None:
        """The free engine that has all but the newest of the prompt in a slot, and nothing else there."""
        if request.exact is Exact.STRICT or request.cold:
            return None
        quotes, tokens = self._quotes([0.0] * len(self._engines)), list(request.tokens)
        ways = [(max(engine.whole_prefixes(tokens), default=0), at) for at, engine in enumerate(self._engines)]
        length, at = max(ways)
        free = quotes[at].alive and quotes[at].serves < quotes[at].slots and quotes[at].strikes < STRIKES
        alone = not self._config.one_thread or all(quote.serves == 0 for quote in quotes)
        return at if free and alone and length and len(tokens) - length < NEWEST else None

    def _quotes(self, ms: Sequence[float]) -> tuple[Quote, ...]:
        with self._lock:
            return tuple(
                Quote(one, self._serves[at], engine.n_slots, engine.alive, self._strikes[at])
                for at, (one, engine) in enumerate(zip(ms, self._engines, strict=True))
            )

    def _send(self, request: Request, sink: Sink, at: int, *, spare: bool) -> None:
        """`spare`: another engine may still be tried."""
        with self._lock:
            self._serves[at] += 1
            self._where[request.id] = at
        home = self._background.began(at, request)
        self._swaps += home is not None and home != at
        try:
            self._engines[at].submit(request, _Carried(self, request, sink, at, spare))
        except Exception as error:
            self._release(at, request)
            self._background.ended(at, request, Failed(request.id, error))
            if not isinstance(error, EngineStopped) or not spare or (other := self._other(at)) is None:
                raise
            self._send(request, sink, other, spare=False)

    def ended(self, at: int, request: Request, event: Done | Failed) -> None:
        """A request has had its last event."""
        self._release(at, request)
        if isinstance(event, Done):
            self._strikes[at] = 0
        elif at_fault(event.error):
            self._strikes[at] += 1
        self._background.ended(at, request, event)

    def rescue(self, at: int, request: Request, sink: Sink) -> bool:
        """Gives a request that failed on engine `at`, before it said anything, to another; False when there is none."""
        other = self._other(at)
        try:
            if other is None:
                return False
            self._send(request, sink, other, spare=False)
        except Exception:  # the client is told of the first failure, not of the second
            return False
        self._release(at, request)
        self._strikes[at] += 1
        self._rescued += 1
        return True

    def _other(self, at: int) -> int | None:
        quotes = self._quotes([0.0] * len(self._engines))
        return min((i for i, quote in enumerate(quotes) if i != at and quote.alive), key=lambda i: quotes[i].serves, default=None)

    def _release(self, at: int, request: Request) -> None:
        with self._lock:
            self._serves[at] -= 1
            if self._where.get(request.id) == at:
                del self._where[request.id]

    # what the background sees (background.Desk)

    @property
    def grid(self) -> int:
        return self._store.config.grid

    @property
    def shared(self) -> bool:
        return self._config.shared

    def free(self, home: int) -> int | None:
        return room(self._quotes([0.0] * len(self._engines)), home, shared=self._config.shared)

    def ahead(self, kind: Kind, prompt: Prompt) -> Ahead:
        store, checkpoints = self._store, self._store.needs_checkpoint
        match = store.match(prompt.tokens, counted=False)
        canonical = store.match(prompt.tokens, canonical_only=True, counted=False)
        tokens = list(prompt.tokens)
        live = max((slot for engine in self._engines for slot in engine.whole_prefixes(tokens)), default=0)
        held = held_of(match, canonical, live, checkpoints=checkpoints)
        return Ahead(kind, prompt, held, self._wanted(prompt) if checkpoints else ())

    def _wanted(self, prompt: Prompt) -> tuple[int, ...]:
        """None while the RAM tier is more than half full: what eviction has dropped is not made again."""
        ram = self._store.stats().ram
        if 2 * ram.used > ram.budget:
            return ()
        anchors = tuple((a.position, a.kind.value, a.pinned) for a in prompt.anchors)
        interval = self._engines[0].stats().checkpoint_interval
        return placement.positions(self._config.placement, PlacementFacts(len(prompt.tokens), 0, self.grid, interval, anchors))

    def ids(self, tokens: Sequence[int]) -> Sequence[bytes]:
        return chain_ids(self._store.root, tokens, self.grid)

    def token_ms(self) -> float:
        return max(self._engines, key=lambda engine: engine.read_tokens).costs.prefill

    def read_tokens(self, engine: int) -> int:
        return self._engines[engine].read_in_background

    def give(self, engine: int, request: Request, sink: Callable[[Event], None]) -> None:
        self._engines[engine].submit(request, sink)

    def take_back(self, engine: int, id: str) -> None:
        self._engines[engine].cancel(id)

    def struck(self, engine: int) -> None:
        self._strikes[engine] += 1


class _Carried:
    """A client's sink, that may change engines as long as nothing was said."""

    def __init__(self, pair: Pair, request: Request, sink: Sink, at: int, spare: bool) -> None:
        self._pair, self._request, self._sink, self._at, self._spare = pair, request, sink, at, spare

    def __call__(self, event: Event) -> None:
        if isinstance(event, Token):
            self._spare = False
        if self._spare and isinstance(event, Failed) and at_fault(event.error) and self._rescued():
            return
        if isinstance(event, Done | Failed):
            self._pair.ended(self._at, self._request, event)
        self._sink(event)

    def _rescued(self) -> bool:
        return self._pair.rescue(self._at, self._request, self._sink)


def at_fault(error: Exception) -> bool:
    """Whether the engine, and not the request or whoever sent it, is to blame."""
    return not isinstance(error, Cancelled | BadRequest | QueueFull)


def merged(stats: Sequence[EngineStats]) -> EngineStats:
    """Sums, and the worst of what cannot be summed; the interval is the first's."""
    counters = Counters(*(sum(getattr(one.counters, field.name) for one in stats) for field in fields(Counters)))
    errors = [one.last_error for one in stats if one.last_error]
    return EngineStats(
        counters,
        waiting=sum(one.waiting for one in stats),
        running=sum(one.running for one in stats),
        slots=sum(one.slots for one in stats),
        reuse=all(one.reuse for one in stats),
        alive=any(one.alive for one in stats),
        stalled=max(one.stalled for one in stats),
        last_error="; ".join(errors) or None,
        checkpoint_interval=stats[0].checkpoint_interval,
        checkpoints_saved=sum(one.checkpoints_saved for one in stats),
        blocks_saved=sum(one.blocks_saved for one in stats),
        park_ms=sum(one.park_ms for one in stats),
        park_failures=sum(one.park_failures for one in stats),
    )
