"""Training batches: episodes and drills encoded, cut to a length, with a weight for each token to predict."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bench.ledger.drills import SHORT_TOOLS, asking, noting
from bench.ledger.episodes import NAMES, Difficulty, Kind, make_episode
from bench.ledger.rendering import END, Segment, render

SMALL_TALK = 0.1  # weight of other assistant text, an answer's being 1; what users say cannot be predicted and weighs nothing
DECISION = 4.0
TRIES = 20  # seeds a row may take to find an episode that fits: a cut one would lose its notes, which come last
FITTING = 3
ROWS = 100  # seeds of a batch


@dataclass(frozen=True)
class Grade:
    """One kind of batch: `rows` texts of `tokens` tokens, made by `make` from a seed and the row's number. `share` is its part of
    the steps where all grades fail alike; `whole`: a text that is too long is not cut but another taken."""

    name: str
    rows: int
    tokens: int
    share: float
    make: Callable[[int, int], list[Segment]]
    whole: bool = True


def _episodes(size: Difficulty, noted: float = 0.6) -> Callable[[int, int], list[Segment]]:
    return lambda seed, row: render(make_episode(seed, size, noted), random.Random(seed + 1))


def _pair(seed: int, row: int) -> list[Segment]:
    """Neighbouring rows tell one story, with the tool and without."""
    return asking(seed - row % 2 * TRIES, 8, 1.0, float(row % 2 == 0))


GRADES = (
    Grade("asks", 20, 224, 0.25, lambda seed, row: asking(seed, 5, 0.7, 0.5, SHORT_TOOLS), whole=False),
    Grade("calls", 8, 576, 0.2, _pair, whole=False),
    Grade("notes", 12, 384, 0.25, lambda seed, row: noting(seed, 2 + row % 9, 4)),
    Grade("short", 9, 512, 0.12, _episodes(Difficulty(6, 7, 2, 0.15, tools=0.4))),
    Grade("long", 4, 1152, 0.18, _episodes(Difficulty(12, 24, 3))),
    Grade("deltas", 4, 1152, 0.3, _episodes(Difficulty(12, 20, 3, 0.1, tools=0.2), noted=1.0)),
)
LEAST = 0.15  # of a grade's share, however well it goes: what is no longer practised is lost


@dataclass(frozen=True)
class Batch:
    """Inputs, targets and weights (rows, tokens); `answers` numbers the targets of each whole answer from 0, -1 elsewhere, and
    `kinds` are those answers' kinds."""

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]
    answers: NDArray[np.int64]
    kinds: tuple[Kind, ...]


@dataclass
class Skill:
    """How often answers of a kind in a grade were wrong lately; `wrong` begins at one half."""

    errors: dict[str, float] = field(default_factory=dict)

    def note(self, grade: str, kind: str, right: bool) -> None:
        """Takes in a whole answer, with a weight of 1 %."""
        key = f"{grade} {kind}"
        self.errors[key] = 0.99 * self.errors.get(key, 0.5) + 0.01 * (not right)

    def worst(self, grade: str) -> float:
        """The worst of a grade's kinds; their mean would hide the one that lags behind."""
        return max((error for key, error in self.errors.items() if key.split()[0] == grade), default=0.5)


def shares(skill: Skill) -> tuple[float, ...]:
    """The chances of the grades: more for what goes wrong, a little for the rest."""
    return tuple(grade.share * (LEAST + skill.worst(grade.name)) for grade in GRADES)


def make_batch(tokenizer: Tokenizer, grade: Grade, seed: int) -> Batch:
    """A batch of the grade; rows shorter than its length are filled with weight 0."""
    end = tokenizer.token_to_id("<|endoftext|>")
    inputs = np.full((grade.rows, grade.tokens), end, np.int64)
    targets, weights = inputs.copy(), np.zeros(inputs.shape, np.float32)
    answers = np.full(inputs.shape, -1, np.int64)
    kinds: list[Kind] = []
    for row in range(grade.rows):
        text = _fitting(tokenizer, grade, seed, row)
        n = min(len(text.tokens), grade.tokens + 1) - 1
        inputs[row, :n], targets[row, :n], weights[row, :n] = text.tokens[:n], text.tokens[1 : n + 1], text.weights[1 : n + 1]
        for start, stop, kind in text.answers:
            if stop <= n + 1:
                answers[row, start - 1 : stop - 1] = len(kinds)
                kinds.append(kind)
    weights[(weights == 1) & np.isin(targets, deciding(tokenizer))] = DECISION
    return Batch(inputs, targets, weights, answers, tuple(kinds))


def deciding(tokenizer: Tokenizer) -> list[int]:
    """The tokens that decide an answer: value, unknown or protected; search or not; which name is next, or no more."""
    texts = ("\u0120", "\u0120unknown", "\u0120protected", "<tool_call>", "+", END, "\u010a", *NAMES)
    return [tokenizer.token_to_id(text) for text in texts]


@dataclass(frozen=True)
class _Text:
    """Token ids, the weight of each as a target, and (start, stop, kind) of each answer."""

    tokens: list[int]
    weights: list[float]
    answers: list[tuple[int, int, Kind]]


def encode(tokenizer: Tokenizer, segments: Sequence[Segment]) -> _Text:
    text = _Text([], [], [])
    for part in segments:
        ids = tokenizer.encode(part.text).ids
        if part.kind:
            text.answers.append((len(text.tokens), len(text.tokens) + len(ids), part.kind))
        text.tokens.extend(ids)
        text.weights.extend([1.0 if part.kind else SMALL_TALK if part.spoken else 0.0] * len(ids))
    return text


def _fitting(tokenizer: Tokenizer, grade: Grade, seed: int, row: int) -> _Text:
    """The row's text: the longest of those that fit among FITTING, which leaves less of the row empty; after TRIES any, cut."""
    first, found = (seed * ROWS + row) * TRIES, []
    text = _Text([], [], [])
    for attempt in range(TRIES):
        text = encode(tokenizer, grade.make(first + attempt, row))
        if not grade.whole:
            return text
        found += [text] if len(text.tokens) <= grade.tokens + 1 else []
        if found and attempt + 1 >= FITTING:
            return max(found, key=lambda one: len(one.tokens))
    return text
