"""Exact whole answers on held-out episodes, in the real engine, by kind of question.

An answer counts when greedy decoding gives every token of it and then stops. Reading the true answer token by token and comparing
each argmax says the same without generating: greedy decoding leaves the true answer at the first different argmax.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.ledger.episodes import Difficulty, make_episode
from bench.ledger.rendering import Segment, render
from engine.config import ContextConfig, ModelConfig
from engine.context import Run
from engine.llama import LlamaContext
from engine.llama_backend import Backend
from engine.llama_model import Model


@dataclass(frozen=True)
class Size:
    """A named kind of held-out episode; episodes longer than `tokens` are passed over."""

    name: str
    tokens: int
    difficulty: Difficulty


SIZES = (
    Size("up to 6 counters, 256 tokens", 256, Difficulty(6, 6, 2, 0.15)),
    Size("up to 12 counters, 1,000 tokens", 1000, Difficulty(12, 24, 3)),
)
CONTEXT = 1536


@dataclass(frozen=True)
class Miss:
    """A wrong answer: what was asked for, and what the argmax of each token spells."""

    kind: str
    wanted: str
    got: str


@dataclass(frozen=True)
class Score:
    """Right and asked answers by kind, and the first misses."""

    size: str
    right: Counter[str]
    asked: Counter[str]
    misses: tuple[Miss, ...]


class Reader:
    """Reads episodes on one slot of a real context."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self.model = Model(ModelConfig(path, extra_buffers=False), Backend())
        self.context = LlamaContext(self.model, ContextConfig(ctx=CONTEXT, slots=1, threads=threads))

    def tokens(self, text: str) -> list[int]:
        return self.model.tokenize(text, special=True)

    def read(self, tokens: Sequence[int], logits: bool = False) -> int:
        """Appends tokens to the slot; with `logits` returns the argmax after the last."""
        batch = self.context.n_batch
        for start in range(0, len(tokens), batch):
            piece = tuple(tokens[start : start + batch])
            last = start + batch >= len(tokens)
            self.context.decode([Run(0, self.context.length(0), piece, logits and last)])
        return int(np.argmax(self.context.logits(0))) if logits else -1

    def answers(self, segments: Sequence[Segment]) -> Iterator[Miss | str]:
        """The kind of each right answer and a Miss for each wrong one, in order."""
        self.context.clear(0)
        pending: list[int] = []
        for part in segments:
            if part.kind is None:
                pending += self.tokens(part.text)
                continue
            wanted = self.tokens(part.text)
            got = [self.read(pending, logits=True)]
            got += [self.read([token], logits=True) for token in wanted[:-1]]
            pending = wanted[-1:]
            right = got == wanted
            yield part.kind if right else Miss(part.kind, part.text, self.model.detokenize(got).decode(errors="replace"))


def held_out(size: Size, reader: Reader, episodes: int, first_seed: int) -> Iterator[Sequence[Segment]]:
    """Rendered episodes that fit, from seeds that training never uses (training starts at 10,000,000)."""
    found, seed = 0, first_seed
    while found < episodes:
        segments = render(make_episode(seed, size.difficulty), random.Random(seed + 1))
        seed += 1
        if len(reader.tokens("".join(part.text for part in segments))) <= size.tokens:
            found += 1
            yield segments


def evaluate(reader: Reader, size: Size, episodes: int, first_seed: int = 0, keep: int = 12) -> Score:
    """Scores `episodes` held-out episodes of a size."""
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    misses: list[Miss] = []
    for segments in held_out(size, reader, episodes, first_seed):
        for answer in reader.answers(segments):
            kind = answer.kind if isinstance(answer, Miss) else answer
            asked[kind] += 1
            right[kind] += not isinstance(answer, Miss)
            if isinstance(answer, Miss):
                misses.append(answer)
    return Score(size.name, right, asked, tuple(misses[:keep]))
