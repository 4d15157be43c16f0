"""A real model and engine inside this process, asked one request at a time: what rollback and exact are measured on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.overhead import Waiter
from engine.config import ContextConfig, EngineConfig, ModelConfig
from engine.context import StateKind
from engine.engine import Engine
from engine.llama import LlamaContext
from engine.llama_backend import Backend
from engine.llama_model import Model
from engine.probe import may_repack
from engine.request import Done, Failed, Request
from engine.sampler import LlamaSamplers
from engine.sampling import SamplingParams
from kvcache.chain import root_id
from kvcache.config import CacheConfig
from kvcache.store import Store

ROOT = root_id(b"kvalet-bench")
FINGERPRINT = b"kvalet-bench".ljust(16)


@contextmanager
def loaded(path: Path, config: ContextConfig) -> Iterator[tuple[Model, LlamaContext]]:
    """A model and a context over it. Raises ModelError."""
    backend = Backend()
    model = Model(ModelConfig(path, extra_buffers=may_repack().safe), backend)
    try:
        context = LlamaContext(model, config)
        try:
            yield model, context
        finally:
            context.close()
    finally:
        model.close()
        backend.close()


@contextmanager
def answering(model: Model, context: LlamaContext, cache: CacheConfig, config: EngineConfig) -> Iterator["Asked"]:
    """A started engine over a context whose slots are cleared first; what it parked on disk is there afterwards."""
    for slot in range(context.n_slots):
        context.clear(slot)
    store = Store(cache, ROOT, needs_checkpoint=context.kind is not StateKind.ATTENTION)
    if cache.disk_bytes:
        store.identify(FINGERPRINT)
    engine = Engine(context, store, config, model, LlamaSamplers(context))
    engine.start()
    try:
        yield Asked(engine)
    finally:
        engine.close()
        store.close()


class Asked:
    """Asks an engine and waits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._count = 0

    def __call__(self, tokens: Sequence[int], answer: int = 1) -> Done:
        """The end of a greedy request. Raises what made it fail."""
        waiter = Waiter()
        self._count += 1
        request = Request(f"bench-{self._count}", tuple(tokens), SamplingParams(temperature=0.0), answer, ignore_eos=True)
        self._engine.submit(request, waiter)
        waiter.ended.wait()
        if isinstance(waiter.last, Failed):
            raise waiter.last.error
        assert isinstance(waiter.last, Done)
        return waiter.last
