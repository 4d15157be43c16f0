"""Contexts for the engine's tests: fakes of every kind, and real ones over models that are made or joined once a session."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine.config import ContextConfig, ModelConfig
from engine.context import Context, StateKind, Tokenizer
from engine.fake import FakeContext
from tests.engine.mamba import write_mamba

if TYPE_CHECKING:
    from engine.llama import LlamaContext
    from engine.llama_model import Model

MakeContext = Callable[..., Context]
FAKES = {f"fake-{kind}": kind for kind in StateKind}
BIT_EXACT = ("tiny", "tiny-q8", "mamba")  # where logits must be equal to the last bit
TOKEN_EXACT = ("smollm2", "gemma3-270m")  # where greedy tokens must be equal
NAMES = {"tiny": "synthetic:tiny", "tiny-q8": "synthetic:tiny-q8", "smollm2": "smollm2", "gemma3-270m": "gemma3-270m"}


Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Subject:
    """A kind of context under test. `make(slots=…, ctx=…, batch=…)` gives a fresh one, closed when the test ends.

    `words(count, seed=0)` are tokens for it; for a trained model English, so that greedy choices are no coin tosses between
    nearly equal logits.
    """

    name: str
    make: MakeContext
    words: Callable[..., Tokens]
    bits: bool


def random_words(count: int, seed: int = 0) -> Tokens:
    """Token ids that every vocabulary here has, and that end nothing."""
    return tuple(random.Random(seed).choices(range(5, 250), k=count))


def english(tokenizer: Tokenizer, count: int, seed: int = 0) -> Tokens:
    rng = random.Random(seed)
    tokens: list[int] = []
    while len(tokens) < count:
        who, what, where = (rng.choice(part) for part in (WHO, WHAT, WHERE))
        tokens += tokenizer.tokenize(f"{who} {what} {where}. ", special=False)
    return tuple(tokens[:count])


WHO = (
    "The old captain",
    "My sister",
    "A young engineer",
    "The tired teacher",
    "Nobody in town",
    "The river guide",
    "An honest baker",
)
WHAT = ("repaired the bridge", "lost a blue umbrella", "wrote a long letter", "planted three apple trees", "told the same story")
WHERE = ("before the storm", "near the railway station", "in the quiet library", "on the last day of March", "without any help")


def subjects(*names: str) -> list[object]:
    """Parameters for the `subject` fixture; real models carry the marker."""
    return [pytest.param(name, marks=[] if name in FAKES else pytest.mark.model) for name in names]


@pytest.fixture(scope="session")
def load_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], "Model"]]:
    """Models by the names above, loaded once. llama.cpp is imported here, so that the fast lane never pays for it."""
    from engine import catalog
    from engine.llama_backend import Backend
    from engine.llama_model import Model

    loaded: dict[str, Model] = {}

    def mamba() -> Path:
        path = tmp_path_factory.mktemp("models") / "mamba.gguf"
        write_mamba(path)
        return path

    with Backend() as backend:

        def load(name: str) -> Model:
            if name not in loaded:
                path = mamba() if name == "mamba" else catalog.resolve(NAMES[name]).path
                loaded[name] = Model(ModelConfig(path, extra_buffers=False), backend)
            return loaded[name]

        yield load
        for model in loaded.values():
            model.close()


@pytest.fixture
def make_real(request: pytest.FixtureRequest) -> Iterator[Callable[..., "LlamaContext"]]:
    """Makes real contexts of a model by name; one thread, because the machine is shared."""
    made = []

    def make(name: str, **changes: object) -> "LlamaContext":
        from engine.llama import LlamaContext

        load = request.getfixturevalue("load_model")
        config = replace(ContextConfig(ctx=1024, slots=1, batch=256, threads=1), **changes)  # type: ignore[arg-type]
        made.append(LlamaContext(load(name), config))
        return made[-1]

    yield make
    for context in made:
        context.close()


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Subject:
    name: str = request.param
    if name in FAKES:

        def fake(slots: int = 1, ctx: int = 1024, batch: int = 256) -> Context:
            return FakeContext(FAKES[name], n_slots=slots, n_ctx=ctx, n_batch=batch, exact=False)

        return Subject(name, fake, random_words, bits=True)
    make = request.getfixturevalue("make_real")
    if name in BIT_EXACT:
        return Subject(name, lambda **changes: make(name, **changes), random_words, bits=True)
    model = request.getfixturevalue("load_model")(name)
    return Subject(name, lambda **changes: make(name, **changes), lambda count, seed=0: english(model, count, seed), bits=False)
