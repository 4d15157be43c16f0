"""Everything that lives while a server runs, and the only place that wires it together: build(settings)."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from anyio import CapacityLimiter
from fastapi import Request

from engine import catalog
from engine.chat import ChatTemplate
from engine.config import EngineConfig
from engine.context import StateKind, Tokenizer
from engine.engine import Engine
from engine.pair import OWN_PATIENCE, PATIENCE, Pair, PairConfig, Serves
from engine.selfcheck import Promise, SelfCheck, self_check
from engine.transcript import Transcript
from kvcache.config import CacheConfig
from kvcache.fingerprint import fingerprint, settings_root, settings_text
from kvcache.store import Store
from kvcache.weights import Weights
from server.config import Settings
from server.devices import Layout, budget, layout
from server.errors import ApiError
from server.identity import Identity
from server.loading import ONE, Seat, aside, load_model, meta, template_of
from server.record import recorded

LOG = logging.getLogger("kvalet.server")
ANY_MODEL = "default"  # a name that every server of ours answers to, for scripts that do not care what is served


@dataclass(frozen=True, slots=True)
class Card:
    """The served model as clients see it; `meta` are llama-server's fields of /v1/models."""

    id: str
    path: str
    description: str
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Runtime:
    """The parts of a running server. `closers` run in order, once, when it ends."""

    settings: Settings
    card: Card
    tokenizer: Tokenizer
    template: ChatTemplate
    transcript: Transcript
    engine: Serves
    pair: Pair | None
    store: Store
    kind: StateKind
    n_ctx: int
    check: SelfCheck
    closers: tuple[Callable[[], None], ...] = ()
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    preparing: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(2))  # threads that render and tokenize
    started: int = field(default_factory=lambda: int(time.time()))

    @property
    def names(self) -> tuple[str, ...]:
        """What the model is called in requests; the first is its own name."""
        return tuple(dict.fromkeys((self.card.id, *self.settings.alias)))

    def known(self, model: str | None) -> str:
        """The name of the model a request asks for; none given is ours. Raises ApiError 404 for another."""
        if not model:
            return self.card.id
        if model not in (*self.names, ANY_MODEL):
            served = ", ".join(self.names)
            raise ApiError(
                404,
                f"there is no model {model[:80]!r} here, only {served} (--alias adds names)",
                param="model",
                code="model_not_found",
            )
        return model

    def facts(self) -> dict[str, Any]:
        """What is served and what it promises, for /props and the banner."""
        return {
            "model": self.card.description,
            "kind": self.kind.value,
            "ctx": self.n_ctx,
            "slots": self.settings.parallel,
            "cache_ram": self.settings.cache_ram,
            "cache_disk": self.settings.cache_disk,
            "grid": self.settings.grid,
            "checkpoint_interval": self.engine.stats().checkpoint_interval,
            "exact": self.settings.exact,
            "reuse": self.check.ok,
            "self_check": check_text(self.check),
        }

    def close(self) -> None:
        """Parks what is not parked, stops the engine and frees the model; one part that fails does not keep the others."""
        with ExitStack() as stack:
            for closer in reversed(self.closers):
                stack.callback(closer)


def runtime_of(request: Request) -> Runtime:
    """The Runtime of the app that serves this request."""
    runtime: Runtime = request.app.state.runtime
    return runtime


def assemble(
    settings: Settings,
    card: Card,
    tokenizer: Tokenizer,
    seats: Sequence[Seat],
    template: ChatTemplate,
    check: SelfCheck,
    *,
    root: bytes,
    plan: Layout = ONE,
    frees: tuple[Callable[[], None], ...] = (),
    identity: Callable[[Store], Identity] | None = None,
) -> Runtime:
    """A started Runtime over contexts that are there. `root` is the chain id of the empty prefix under its settings, `frees`
    are called when engine and store are closed; without an `identity` nothing goes to disk."""
    context = seats[0].context
    store = Store(cache_config(settings), root, needs_checkpoint=context.kind is not StateKind.ATTENTION)
    config = EngineConfig(
        grid=settings.grid,
        checkpoint_interval=settings.checkpoint_interval,
        placement=settings.placement,
        max_queue=settings.max_queue,
        reuse=check.ok,
    )
    engines = [Engine(seat.context, store, config, tokenizer, seat.samplers, seat.loop) for seat in seats]
    pair = Pair(engines, store, pair_config(settings, plan)) if len(engines) > 1 else None
    engine: Serves = pair or engines[0]
    if settings.record is not None:
        engine = recorded(engine, settings.record, settings.record_hashes, context, config)
    closers: tuple[Callable[[], None], ...] = (engine.close, store.close, *frees)
    if identity is not None and settings.cache_disk:
        named = identity(store)
        named.start()
        closers = (engine.close, named.close, *closers[1:])
    engine.start()
    return Runtime(
        settings,
        card,
        tokenizer,
        template,
        Transcript(tokenizer),
        engine,
        pair,
        store,
        context.kind,
        context.n_ctx,
        check,
        closers,
    )


def pair_config(settings: Settings, plan: Layout) -> PairConfig:
    patience = PATIENCE if plan.shared else OWN_PATIENCE
    return PairConfig(plan.shared, plan.hosted, settings.placement, budget(settings.background_budget), patience)


def cache_config(settings: Settings) -> CacheConfig:
    return CacheConfig(
        ram_bytes=settings.cache_ram,
        disk_bytes=settings.cache_disk,
        dir=settings.cache_dir or catalog.models_folder().parent / "state",
        grid=settings.grid,
        codec=settings.codec,
        eviction=settings.eviction,
        park_min_tokens=settings.park_min_tokens,
        write_bytes_per_day=settings.write_per_day,
    )


def build(settings: Settings) -> Runtime:
    """Finds or makes the model, loads it, checks what it can do, and starts serving from it. Raises ModelError, ConfigError."""
    plan = layout(settings.devices, settings.background_slots)
    loaded = load_model(settings, plan)
    found, facts = loaded.found, loaded.facts
    card = Card(found.name, str(found.path), found.description, meta(loaded.model.facts))

    def identity(store: Store) -> Identity:
        weights = Weights(catalog.models_folder().parent)
        return Identity(
            weights, found.path, lambda hash: store.identify(fingerprint(hash, facts), found.name, settings_text(facts))
        )

    return assemble(
        settings,
        card,
        loaded.model,
        loaded.seats,
        template_of(settings, loaded.model),
        checked(loaded.seats, settings.grid),
        plan=plan,
        root=settings_root(facts),
        frees=(loaded.close,),
        identity=identity,
    )


def checked(seats: Sequence[Seat], grid: int) -> SelfCheck:
    """The self-check of this model, on every context of it: the first that fails, loudly, else the weakest promise."""
    found = [aside(partial(self_check, seat.context, grid)) for seat in seats]
    worst = min(found, key=lambda check: (check.ok, check.promise is Promise.BITS))
    if not worst.ok:
        LOG.error("SELF-CHECK FAILED, reuse is OFF and every prompt is read whole: %s", check_text(worst))
    return worst


def check_text(check: SelfCheck) -> str:
    """What the self-check found, for /health and the banner."""
    if not check.ok:
        return "; ".join(check.failed)
    return f"restore and rollback gave equal {'logits' if check.promise is Promise.BITS else 'greedy tokens'}"
