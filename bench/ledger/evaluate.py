"""Exact whole answers on held-out episodes, in the real engine, by kind of answer and size of episode.

An answer counts when greedy decoding gives every token of it and then stops. Reading the true answer token by token and comparing
each argmax says the same without generating: greedy decoding leaves the true answer at the first different argmax. What came
before an answer is the true conversation, so one wrong answer does not spoil the next.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.ledger.episodes import Difficulty, Kind, make_episode
from bench.ledger.rendering import TOOLS, Segment, render
from engine.config import ContextConfig, ModelConfig
from engine.context import Run
from engine.llama import LlamaContext
from engine.llama_backend import Backend
from engine.llama_model import Model

KINDS: tuple[Kind, ...] = ("value", "rule", "unknown", "call", "notes")
CONTEXT = 1536


@dataclass(frozen=True)
class Size:
    """A named kind of held-out episode; episodes of more than `tokens` are passed over.

    Counted are the tokens of the conversation, without the two texts of the keeper that always stand beside it (the tool's
    schema, the notes request). `bars` are the shares of right answers that the model is to reach.
    """

    name: str
    tokens: int
    difficulty: Difficulty
    bars: dict[Kind, float]


SIZES = (
    Size(
        "up to 6 counters, 256 tokens",
        256,
        Difficulty(6, 7, 2, 0.15),
        {"value": 0.97, "rule": 0.95, "unknown": 0.95, "call": 0.95, "notes": 0.90},
    ),
    Size("up to 12 counters, 1,000 tokens", 1000, Difficulty(12, 24, 3), dict.fromkeys(KINDS, 0.85)),
)


@dataclass(frozen=True)
class Miss:
    """A wrong answer: what was right, and what the argmax of each token spells."""

    kind: str
    wanted: str
    got: str


@dataclass(frozen=True)
class Score:
    """Right and asked answers by kind over `episodes` of a size, and the first misses."""

    size: Size
    episodes: int
    right: Counter[str]
    asked: Counter[str]
    misses: tuple[Miss, ...]

    def share(self, kind: Kind) -> float:
        """Right of asked, 0 where nothing was asked."""
        return self.right[kind] / self.asked[kind] if self.asked[kind] else 0.0

    def as_json(self) -> dict[str, Any]:
        kinds = {k: {"right": self.right[k], "asked": self.asked[k], "bar": self.size.bars[k]} for k in KINDS}
        misses = [{"kind": miss.kind, "wanted": miss.wanted, "got": miss.got} for miss in self.misses]
        return {"size": self.size.name, "episodes": self.episodes, "kinds": kinds, "misses": misses}


class Reader:
    """Reads episodes on one slot of a real context."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._backend = Backend()
        self.model = Model(ModelConfig(path, extra_buffers=False), self._backend)
        self.context = LlamaContext(self.model, ContextConfig(ctx=CONTEXT, slots=1, threads=threads))
        self._tools = len(self.tokens(TOOLS))

    def close(self) -> None:
        self.context.close()
        self.model.close()
        self._backend.close()

    def tokens(self, text: str) -> list[int]:
        return self.model.tokenize(text, special=True)

    def length(self, segments: Sequence[Segment]) -> int:
        """Tokens of the conversation, without the tool's schema and the notes request."""
        whole = len(self.tokens("".join(part.text for part in segments)))
        request = next((part.text for part in reversed(segments) if "\nNOTES REQUEST" in part.text), "")
        return whole - len(self.tokens(request)) - (self._tools if TOOLS in segments[0].text else 0)

    def read(self, tokens: Sequence[int]) -> int:
        """Appends tokens to the slot; the argmax after the last."""
        batch = self.context.n_batch
        for start in range(0, len(tokens), batch):
            piece = tuple(tokens[start : start + batch])
            self.context.decode([Run(0, self.context.length(0), piece, start + batch >= len(tokens))])
        return int(np.argmax(self.context.logits(0)))

    def answers(self, segments: Sequence[Segment]) -> Iterator[Miss | Kind]:
        """The kind of each right answer and a Miss for each wrong one, in order."""
        self.context.clear(0)
        pending: list[int] = []
        for part in segments:
            if part.kind is None:
                pending += self.tokens(part.text)
                continue
            wanted = self.tokens(part.text)
            got = [self.read(pending), *(self.read([token]) for token in wanted[:-1])]
            pending = wanted[-1:]
            spelt = self.model.detokenize(got).decode(errors="replace")
            yield part.kind if got == wanted else Miss(part.kind, part.text, spelt)


def held_out(size: Size, reader: Reader, episodes: int, first_seed: int) -> Iterator[list[Segment]]:
    """Rendered episodes that fit, from seeds that training never uses (training starts at 10,000,000)."""
    found, seed = 0, first_seed
    while found < episodes:
        segments = render(make_episode(seed, size.difficulty), random.Random(seed + 1))
        seed += 1
        if reader.length(segments) <= size.tokens:
            found += 1
            yield segments


def evaluate(
    reader: Reader, size: Size, episodes: int, first_seed: int = 0, keep: int = 12, progress: Callable[[], None] = lambda: None
) -> Score:
    """Scores `episodes` held-out episodes of a size; `progress` is called after each."""
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    misses: list[Miss] = []
    for segments in held_out(size, reader, episodes, first_seed):
        for answer in reader.answers(segments):
            missed = isinstance(answer, Miss)
            kind = answer.kind if isinstance(answer, Miss) else answer
            asked[kind] += 1
            right[kind] += not missed
            misses += [answer] if isinstance(answer, Miss) else []
        progress()
    return Score(size, episodes, right, asked, tuple(misses[:keep]))
