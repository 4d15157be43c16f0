"""Training batches: episodes encoded, cut to a length, with a weight for each token to predict."""

import itertools
import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bench.ledger.episodes import NAMES, Difficulty, drawn, entry, make_episode, setting
from bench.ledger.rendering import render

SMALL_TALK, PROMPT = 0.1, 0.02  # weight of other assistant text and of everything else, an answer's being 1


@dataclass(frozen=True)
class Grade:
    """One kind of batch: `rows` episodes of `tokens` tokens; without a size, drills."""

    name: str
    rows: int
    tokens: int
    size: Difficulty | None


GRADES = (
    Grade("easy", 24, 192, Difficulty(4, 8, 2, 0.1, extras=0.0)),
    Grade("short", 9, 512, Difficulty(6, 7, 2, 0.15, tools=0.4)),
    Grade("long", 4, 1152, Difficulty(16, 20, 3, tools=0.6)),
    Grade("drill", 24, 192, None),
)
TRIES = 20  # seeds a row may take to find an episode that fits: a cut one would lose its notes, which come last
# From which step on which shares of the grades; easy episodes and drills stay in, since dropping them lost what was learnt.
SCHEDULE = (
    (0, (0.25, 0.25, 0.1, 0.4)),
    (100, (0.15, 0.45, 0.2, 0.2)),
    (200, (0.1, 0.5, 0.35, 0.05)),
    (5000, (0.05, 0.5, 0.4, 0.05)),
)


def shares(step: int) -> tuple[float, ...]:
    """Shares of the grades at a step, linear between the points of SCHEDULE."""
    for (start, low), (end, high) in itertools.pairwise(SCHEDULE):
        if start <= step < end:
            t = (step - start) / (end - start)
            return tuple(a + t * (b - a) for a, b in zip(low, high, strict=True))
    return SCHEDULE[-1][1]


@dataclass(frozen=True)
class Batch:
    """Inputs and targets (rows, tokens) and the weight of each target."""

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]


def drill(tokenizer: Tokenizer, seed: int, length: int) -> tuple[list[int], list[float]]:
    """Settings told once, then again and again in any order: nothing to learn but which value a name has.

    Fifteen times as many such lookups a token as episodes have.
    """
    rng = random.Random(seed)
    values = {name: drawn(rng) for name in rng.sample(NAMES, rng.randint(4, 12))}
    tokens: list[int] = []
    weights: list[float] = []
    first = list(values)
    while len(tokens) <= length:
        known = not first
        name = rng.choice(list(values)) if known else first.pop()
        told = entry(name, *values[name]) + "\n" if rng.random() < 0.5 else setting(rng, name, values[name]) + rng.choice(" \n")
        head, _, tail = told.partition(" =")
        for text, weight in ((head, 0.0), (" =" + tail, float(known))):
            ids = tokenizer.encode(text).ids
            tokens += ids
            weights += [weight or PROMPT] * len(ids)
    return tokens[: length + 1], weights[: length + 1]


def encode(tokenizer: Tokenizer, seed: int, size: Difficulty) -> tuple[list[int], list[float]]:
    """Token ids of one episode and the weight of each as a target."""
    tokens: list[int] = []
    weights: list[float] = []
    for part in render(make_episode(seed, size), random.Random(seed + 1)):
        ids = tokenizer.encode(part.text).ids
        tokens += ids
        weights += [1.0 if part.kind else SMALL_TALK if part.spoken else PROMPT] * len(ids)
    return tokens, weights


def make_batch(tokenizer: Tokenizer, grade: Grade, seed: int) -> Batch:
    """A batch of the grade; rows shorter than its length are filled with weight 0."""
    end = tokenizer.token_to_id("<|endoftext|>")
    inputs = np.full((grade.rows, grade.tokens), end, np.int64)
    targets, weights = inputs.copy(), np.zeros(inputs.shape, np.float32)
    for row in range(grade.rows):
        tokens, weight = fitting(tokenizer, (seed * 100 + row) * TRIES, grade)
        n = len(tokens) - 1
        inputs[row, :n], targets[row, :n], weights[row, :n] = tokens[:-1], tokens[1:], weight[1:]
    return Batch(inputs, targets, weights)


def fitting(tokenizer: Tokenizer, seed: int, grade: Grade) -> tuple[list[int], list[float]]:
    """The first episode from `seed` on that fits the grade's length; after TRIES the last one, cut."""
    if grade.size is None:
        return drill(tokenizer, seed, grade.tokens)
    tokens: list[int] = []
    weights: list[float] = []
    for step in range(TRIES):
        tokens, weights = encode(tokenizer, seed + step, grade.size)
        if len(tokens) <= grade.tokens + 1:
            break
    return tokens[: grade.tokens + 1], weights[: grade.tokens + 1]
