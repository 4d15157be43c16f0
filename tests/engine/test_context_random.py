"""A strict engine in small, driven at random, against a context that reads everything cold: logits must be equal bit by bit."""

import random

import numpy as np
import pytest

from engine.context import Context, StateKind
from kvcache.entry import Payload
from tests.engine.conftest import BIT_EXACT, Subject, random_words, subjects
from tests.engine.states import GRID, Logits, cold, generate, read


@pytest.mark.parametrize(
    "subject", subjects("fake-hybrid", "fake-window", "fake-attention", "fake-recurrent", *BIT_EXACT), indirect=True
)
def test_500_random_steps_in_strict_mode_agree_with_a_cold_context_to_the_last_bit(subject: Subject) -> None:
    hot, reference, rng = subject.make(), subject.make(), random.Random(7)
    table = _Table(hot)
    for step in range(500):
        action = rng.choice(("read", "read", "generate", "clear"))
        if action == "clear":
            table.clear()
        elif action == "generate" and table.logits is not None:
            table.generate(rng.randrange(1, 8))
        else:
            prompt = table.next_prompt(rng)
            np.testing.assert_array_equal(table.answer(prompt, rng), cold(reference, prompt), err_msg=f"step {step}")


class _Table:
    """A strict engine in small: the slot's tokens, everything parked by token prefix, canonical reads only."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.live: tuple[int, ...] = ()
        self.canonical = 0  # leading tokens of the slot that came from a canonical read
        self.logits: Logits | None = None
        self.blocks: dict[tuple[int, ...], Payload] = {}
        self.checkpoints: dict[tuple[int, ...], Payload] = {}
        self.known: list[tuple[int, ...]] = []

    def next_prompt(self, rng: random.Random) -> tuple[int, ...]:
        """A new one, or an earlier one: again, cut, edited, or longer."""
        fresh = random_words(rng.randrange(1, 330), seed=rng.randrange(1000))
        if not self.known or rng.random() < 0.1:
            return fresh
        old = rng.choice(self.known[-8:])
        keep = rng.choice((len(old), rng.randrange(len(old) + 1)))
        return (old[:keep] + fresh[: rng.choice((0, 1, 40, 150))])[:400] or fresh

    def answer(self, prompt: tuple[int, ...], rng: random.Random) -> Logits:
        start = self._resume(prompt, rng)
        stops = [p for p in range(start + GRID, len(prompt), GRID) if rng.random() < 0.4]
        for stop in stops:
            read(self.context, prompt[:stop], start)
            self._park(prompt, stop)
            start = stop
        self.logits = read(self.context, prompt, start)
        self.live, self.canonical = prompt, len(prompt) // GRID * GRID
        self.known.append(prompt)
        return self.logits

    def _resume(self, prompt: tuple[int, ...], rng: random.Random) -> int:
        """To the deepest parked position, by rollback where the live slot reaches so far, else by restore with what can stay."""
        position = max((p for p in range(0, len(prompt), GRID) if self._stored(prompt[:p])), default=0)
        common = next(
            (i for i, (a, b) in enumerate(zip(self.live, prompt, strict=False)) if a != b), min(len(self.live), len(prompt))
        )
        common = min(common, self.canonical) // GRID * GRID
        if position == 0:
            self.context.clear(0)
        elif common >= position and rng.random() < 0.7:
            self._put_back(prompt, position)
        else:
            keep = rng.choice((0, min(common, position)))
            self.context.trim(0, keep)
            for at in range(keep, position, GRID):
                self.context.load_block(0, at, at + GRID, self.blocks[prompt[: at + GRID]])
            self._put_back(prompt, position)
        return position

    def _put_back(self, prompt: tuple[int, ...], position: int) -> None:
        if self.context.kind is StateKind.ATTENTION:
            assert self.context.cut(0, position)
        else:
            self.context.load_checkpoint(0, position, self.checkpoints[prompt[:position]])

    def _stored(self, prefix: tuple[int, ...]) -> bool:
        blocks = all(prefix[:end] in self.blocks for end in range(GRID, len(prefix) + 1, GRID))
        return blocks and (self.context.kind is StateKind.ATTENTION or prefix in self.checkpoints)

    def _park(self, prompt: tuple[int, ...], stop: int) -> None:
        for at in range(0, stop, GRID):
            self.blocks.setdefault(prompt[: at + GRID], self.context.save_block(0, at, at + GRID))
        if self.context.kind is not StateKind.ATTENTION:
            self.checkpoints[prompt[:stop]] = self.context.save_checkpoint(0)

    def generate(self, count: int) -> None:
        assert self.logits is not None
        said = generate(self.context, count + 1, self.logits)
        self.live += said[:-1]
        self.logits = None

    def clear(self) -> None:
        self.context.clear(0)
        self.live, self.canonical, self.logits = (), 0, None
