"""The engine on llama.cpp: in strict mode logits are those of a cold engine, bit for bit, after any history before it."""

import os
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from engine import catalog
from engine.config import ContextConfig, EngineConfig, ModelConfig
from engine.context import StateKind
from engine.core import Core
from engine.errors import ModelError
from engine.request import Exact, Request
from kvcache.config import CacheConfig
from kvcache.store import Store
from tests.engine.serving import GREEDY, MIB, ROOT, Served

if TYPE_CHECKING:
    from engine.llama import LlamaContext
    from engine.llama_backend import Backend
    from engine.llama_model import Model

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def backend() -> "Iterator[Backend]":
    from engine.llama_backend import Backend

    with Backend() as running:
        yield running


@pytest.fixture(scope="module", params=["synthetic:tiny", "synthetic:tiny-q8"])
def tiny(request: pytest.FixtureRequest, backend: "Backend") -> "Iterator[Model]":
    yield from loaded(request.param, backend)


@pytest.fixture(scope="module", params=["smollm2", "gemma3-270m"])
def trained(request: pytest.FixtureRequest, backend: "Backend") -> "Iterator[Model]":
    yield from loaded(request.param, backend)


def loaded(name: str, backend: "Backend") -> "Iterator[Model]":
    from engine.llama_model import Model

    try:
        path: Path = catalog.resolve(name).path
    except ModelError as error:
        pytest.skip(str(error))
    model = Model(ModelConfig(path, extra_buffers=False), backend)
    yield model
    model.close()


class Recording:
    """Greedy sampling that keeps the logits' bytes of every draw."""

    def __init__(self, context: "LlamaContext") -> None:
        from engine.sampler import LlamaSamplers

        self._context, self._inner = context, LlamaSamplers(context)
        self.seen: list[bytes] = []

    def check(self, params: object) -> None:
        pass

    def make(self, params, prompt):  # type: ignore[no-untyped-def]
        inner, seen, context = self._inner.make(params, prompt), self.seen, self._context

        class Sampler:
            def sample(self, run: int) -> int:
                seen.append(context.logits(run).tobytes())
                return inner.sample(run)

            def sample_from(self, logits) -> int:  # type: ignore[no-untyped-def]
                seen.append(logits.tobytes())
                return inner.sample_from(logits)

            def close(self) -> None:
                inner.close()

        return Sampler()


class Bench:
    """A core on llama.cpp with a store in RAM."""

    def __init__(self, model: "Model", *, slots: int = 1, ram: int = 512 * MIB, ctx: int = 2048) -> None:
        from engine.llama import LlamaContext

        self.context = LlamaContext(model, ContextConfig(ctx=ctx, slots=slots, threads=1))
        self.store = Store(CacheConfig(ram_bytes=ram), ROOT, needs_checkpoint=self.context.kind is not StateKind.ATTENTION)
        self.samplers = Recording(self.context)
        self.core = Core(self.context, self.store, EngineConfig(), model, self.samplers)
        self._ids = count()

    def submit(self, tokens: Sequence[int], most: int, exact: Exact) -> Served:
        served = Served()
        request = Request(f"r{next(self._ids)}", tuple(tokens), GREEDY, most, exact=exact, ignore_eos=True)
        self.core.add(request, served.events.append)
        return served

    def ask(self, tokens: Sequence[int], most: int = 4, exact: Exact = Exact.STRICT) -> tuple[Served, list[bytes]]:
        """The request's events and the logits of its draws."""
        self.samplers.seen.clear()
        served = self.submit(tokens, most, exact)
        while self.core.step():
            pass
        return served, list(self.samplers.seen)

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def bench(tiny: "Model") -> Iterator[Bench]:
    made = Bench(tiny)
    yield made
    made.close()


@pytest.fixture
def cold(tiny: "Model") -> Iterator[Bench]:
    """An engine that keeps nothing and whose slot is cleared before each prompt."""
    made = Bench(tiny, ram=0)
    yield made
    made.close()


def asked_cold(cold: Bench, tokens: Sequence[int], most: int) -> list[bytes]:
    cold.core.fail_all(RuntimeError("forget"))
    served, logits = cold.ask(tokens, most)
    assert served.reread == len(tokens)
    return logits


def random_tokens(random: Random, length: int) -> list[int]:
    return [random.randrange(256) for _ in range(length)]


@pytest.mark.parametrize("seed", range(3))
def test_strict_logits_are_those_of_a_cold_context_after_any_history(bench: Bench, cold: Bench, seed: int) -> None:
    random, known = Random(seed), []
    for _ in range(12):
        prompt = random_tokens(random, random.randrange(1, 400))
        if known and random.random() < 0.8:
            earlier = random.choice(known)
            prompt = [*earlier[: random.randrange(len(earlier) + 1)], *prompt][:1500]
        exact = random.choice([Exact.STRICT, Exact.STRICT, Exact.APPEND])
        most = random.randrange(1, 80)
        if random.random() < 0.2:
            bench.submit(prompt, most, exact)
            for _ in range(random.randrange(4)):
                bench.core.step()
            bench.core.end_all(RuntimeError("cancelled"))
            continue
        served, logits = bench.ask(prompt, most, exact)
        if exact is Exact.STRICT:
            assert logits == asked_cold(cold, prompt, most)
        known.append([*prompt, *served.tokens])
    counters = bench.core.counters
    assert counters.cached_live > 0
    assert counters.cached_ram > 0


def test_several_branches_of_one_parked_prefix_have_the_logits_of_a_cold_read(bench: Bench, cold: Bench) -> None:
    random = Random(7)
    prefix = random_tokens(random, 900)
    bench.ask(prefix)
    for _ in range(4):
        prompt = [*prefix, *random_tokens(random, 70)]
        served, logits = bench.ask(prompt)
        assert served.reread <= 70 + 64
        assert logits == asked_cold(cold, prompt, 4)
        bench.ask(random_tokens(random, 300))


def test_the_same_prompt_again_has_the_logits_of_a_cold_read_and_reads_nothing(bench: Bench, cold: Bench) -> None:
    random = Random(11)
    for length in (700, 704):
        prompt = random_tokens(random, length)
        alone = asked_cold(cold, prompt, 70)
        assert bench.ask(prompt, 70)[1] == alone
        for _ in range(2):
            served, logits = bench.ask(prompt, 70)
            assert served.reread == 0
            assert logits == alone


def test_two_conversations_with_one_long_start_have_their_own_logits(bench: Bench, cold: Bench) -> None:
    random = Random(3)
    system = random_tokens(random, 1200)
    prompts = [[*system, *random_tokens(random, 50)] for _ in range(2)]
    alone = [asked_cold(cold, prompt, 4) for prompt in prompts]
    for number in range(12):
        served, logits = bench.ask(prompts[number % 2])
        assert logits == alone[number % 2]
        assert number < 2 or served.reread <= 64


def test_four_choices_read_their_prompt_once_and_say_the_same(tiny: "Model") -> None:
    bench, prompt = Bench(tiny, slots=4), random_tokens(Random(5), 700)
    served = [bench.submit(prompt, 16, Exact.APPEND) for _ in range(4)]
    while bench.core.step():
        pass
    assert sum(one.reread for one in served) <= 700 + 3 * 64
    assert len({tuple(one.tokens) for one in served}) == 1
    bench.close()


PROMPT = "The quick brown fox jumps over the lazy dog. Once upon a time there was a small town by the sea. "


def test_trained_models_say_the_same_after_rollback_and_restore(trained: "Model") -> None:
    bench, cold = Bench(trained), Bench(trained, ram=0)
    text = trained.tokenize(PROMPT * 30, special=True, add_bos=trained.adds_bos)[:600]
    edited = [*text[:400], *trained.tokenize("But nobody knew. ", special=True), *text[405:]]
    other = trained.tokenize("List the planets in order. " * 8, special=True, add_bos=trained.adds_bos)
    for prompt in (text, edited, other, text, other, edited, text[:450]):
        served, _ = bench.ask(prompt, 12)
        cold.core.fail_all(RuntimeError("forget"))
        assert served.tokens == cold.ask(prompt, 12)[0].tokens
    assert bench.core.counters.read_tokens < cold.core.counters.read_tokens / 2
    bench.close()
    cold.close()
