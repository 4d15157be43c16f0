"""What the engine adds to llama.cpp's own time, measured around the context inside a running engine."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import ContextConfig, EngineConfig, ModelConfig
from engine.context import Run
from engine.engine import Engine
from engine.llama import LlamaContext
from engine.llama_backend import Backend
from engine.llama_model import Model
from engine.request import Done, Event, Failed, Request
from engine.sampler import LlamaSamplers
from engine.sampling import SamplingParams
from kvcache.config import CacheConfig
from kvcache.store import Store

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Overhead:
    """`checkpoint_share`: time in save_checkpoint over prefill time. `python_ms`: CPU time of the engine's thread a generated
    token, outside llama.cpp; CPU time, because wall time would count whatever else the machine does.
    """

    checkpoint_share: float
    checkpoints: int
    prompt_tokens: int
    python_ms: float
    generated: int


@dataclass
class Clock:
    """What was spent: seconds of checkpoints, and CPU seconds between a generating batch's end and the next one's start."""

    saving: float = 0.0
    saves: int = 0
    between: float = 0.0
    steps: int = 0
    left: float | None = None  # thread CPU time when the last generating batch ended

    def enter(self, generating: bool) -> None:
        if generating and self.left is not None:
            self.between += time.thread_time() - self.left
            self.steps += 1

    def leave(self, generating: bool) -> None:
        self.left = time.thread_time() if generating else None

    def skip(self, seconds: float) -> None:
        """CPU seconds that llama.cpp spent between two batches."""
        if self.left is not None:
            self.left += seconds


class TimedContext(LlamaContext):
    """A context that notes how long its calls into llama.cpp take."""

    def __init__(self, model: Model, config: ContextConfig) -> None:
        self.clock = Clock()
        super().__init__(model, config)

    def decode(self, runs: Sequence[Run]) -> None:
        generating = all(len(run.tokens) == 1 for run in runs)
        self.clock.enter(generating)
        super().decode(runs)
        self.clock.leave(generating)

    def sample(self, chain: Any, run: int) -> int:
        start = time.thread_time()
        token = super().sample(chain, run)
        self.clock.skip(time.thread_time() - start)
        return token

    def save_checkpoint(self, slot: int) -> Any:
        start, cpu = time.perf_counter(), time.thread_time()
        payload = super().save_checkpoint(slot)
        self.clock.saving += time.perf_counter() - start
        self.clock.saves += 1
        self.clock.skip(time.thread_time() - cpu)
        return payload


class Waiter:
    """A sink that waits for the end of one request."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.last: Event | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Done | Failed):
            self.last = event
            self.ended.set()


def measure_overhead(path: Path, threads: int, prompt: int, answer: int) -> Overhead:
    """Reads a prompt of `prompt` tokens and generates `answer` tokens, twice; the second time is counted (warm buffers)."""
    backend = Backend()
    model = Model(ModelConfig(path, extra_buffers=False), backend)
    context = TimedContext(model, ContextConfig(ctx=2 * prompt + answer, slots=1, threads=threads))
    store = Store(CacheConfig(ram_bytes=GIB, disk_bytes=0), b"overhead" * 2, needs_checkpoint=True)
    engine = Engine(context, store, EngineConfig(), model, LlamaSamplers(context))
    engine.start()
    try:
        run(engine, 0, prompt, answer)
        context.clock = Clock()
        done = run(engine, 1, prompt, answer)
    finally:
        engine.close()
        store.close()
        context.close()
        model.close()
        backend.close()
    return summary(context.clock, done, prompt)


def run(engine: Engine, number: int, prompt: int, answer: int) -> Done:
    """One request of tokens that no other request has; raises what made it fail."""
    waiter = Waiter()
    tokens = tuple(320 + (7 * i + 13 * number) % 1000 for i in range(prompt))
    sampling = SamplingParams(temperature=0.0)
    engine.submit(Request(f"overhead-{number}", tokens, sampling, answer, ignore_eos=True), waiter)
    waiter.ended.wait()
    if isinstance(waiter.last, Failed):
        raise waiter.last.error
    if not isinstance(waiter.last, Done):
        raise RuntimeError("the engine ended a request without an end event")
    return waiter.last


def summary(clock: Clock, done: Done, prompt: int) -> Overhead:
    """Checkpoints saved while generating are counted in as well: they are made for the next prompt."""
    return Overhead(
        checkpoint_share=clock.saving * 1000 / done.timings.prompt_ms,
        checkpoints=clock.saves,
        prompt_tokens=prompt,
        python_ms=clock.between * 1000 / max(1, clock.steps),
        generated=clock.steps,
    )
