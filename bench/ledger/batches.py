"""Training batches: episodes encoded, cut to a length, with a weight for each token to predict."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bench.ledger.episodes import NAMES, STATED, Difficulty, drawn, entry, make_episode, rule_of, setting
from bench.ledger.rendering import END, START, render
from keeper.window import ACKNOWLEDGED

USER, ASSISTANT, CLOSE = f"{START}user\n", f"{START}assistant\n", f"{END}\n"
SMALL_TALK, PROMPT = 0.1, 0.02
DECISION = 4.0
# weight of other assistant text and of everything else, an answer's being 1


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
    (350, (0.1, 0.5, 0.35, 0.05)),
    (351, (0.0, 0.3, 0.2, 0.5)),
    (500, (0.0, 0.3, 0.2, 0.5)),
    (550, (0.0, 0.45, 0.35, 0.2)),
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
    """What episodes hold too little of, a row long: mostly short ones with every skill, else lookups alone."""
    rng = random.Random(seed)
    pieces = brief(rng) if rng.random() < 0.8 else lookups(rng)
    tokens: list[int] = []
    weights: list[float] = []
    while len(tokens) <= length:
        text, weight = next(pieces)
        ids = tokenizer.encode(text).ids
        tokens += ids
        weights += [weight] * len(ids)
    return tokens[: length + 1], weights[: length + 1]


def lookups(rng: random.Random) -> Iterator[tuple[str, float]]:
    """Settings told once, then again and again in any order: fifteen times as many lookups a token as episodes have."""
    values = {name: drawn(rng) for name in rng.sample(NAMES, rng.randint(4, 12))}
    first = list(values)
    while True:
        known = not first
        name = rng.choice(list(values)) if known else first.pop()
        told = entry(name, *values[name]) + "\n" if rng.random() < 0.5 else setting(rng, name, values[name]) + rng.choice(" \n")
        head, _, tail = told.partition(" =")
        yield head, PROMPT
        yield " =" + tail, 1.0 if known else PROMPT


def brief(rng: random.Random) -> Iterator[tuple[str, float]]:
    """Conversations of a story, three of the shortest questions and a notes request of two words; no name is in two of them."""
    names = rng.sample(NAMES, len(NAMES))
    while True:
        chosen, names = names[:12], names[12:]
        values = {name: drawn(rng) for name in chosen[: rng.randint(2, 5)]}
        secret = chosen[rng.choice((0, 6)) : 7][:1] if rng.random() < 0.5 else []
        story = [STATED.format(rule=rule_of(name)) for name in secret] + [setting(rng, name, v) for name, v in values.items()]
        yield f"{USER}{' '.join(story)}{CLOSE}{ASSISTANT}", PROMPT
        yield f"{ACKNOWLEDGED}{CLOSE}", SMALL_TALK
        for _ in range(3):
            name = rng.choice(rng.choice((list(values), list(values), chosen[7:], secret or chosen[7:])))
            known = entry(name, *values[name]) if name in values else f"{name} = unknown"
            yield f"{USER}{name}?{CLOSE}{ASSISTANT}", PROMPT
            yield f"{name} = protected{CLOSE}" if name in secret else f"{known}{CLOSE}", 1.0
        lines = [f"+ RULE {rule_of(name)}" for name in secret] + [entry(name, *v) for name, v in values.items()]
        yield f"{USER}NOTES REQUEST.{CLOSE}{ASSISTANT}", PROMPT
        yield "\n".join(lines) + END, 1.0
        yield "<|endoftext|>", PROMPT


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
    weights[(weights == 1) & np.isin(targets, deciding(tokenizer))] = DECISION
    return Batch(inputs, targets, weights)


def deciding(tokenizer: Tokenizer) -> list[int]:
    """The tokens that decide an answer: value, unknown or protected; search or not; which name is next, or no more."""
    texts = ("\u0120", "\u0120unknown", "\u0120protected", "<tool_call>", "+", END, "\u010a", *NAMES)
    return [tokenizer.token_to_id(text) for text in texts]


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
