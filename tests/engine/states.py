"""Reading, parking and restoring on a context, as an engine does it: what the context's tests share."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.context import Context, Run, StateKind
from engine.selfcheck import canonical_read
from kvcache.entry import Payload
from tests.engine.conftest import Subject

GRID = 64

Logits = NDArray[np.float32]


def read(context: Context, tokens: Sequence[int], start: int = 0, slot: int = 0) -> Logits:
    return canonical_read(context, slot, tokens, start, GRID)


def cold(context: Context, tokens: Sequence[int], slot: int = 0) -> Logits:
    context.clear(slot)
    return read(context, tokens, 0, slot)


@dataclass
class State:
    """What was copied out of a slot: blocks from 0, and a checkpoint at each position where one was saved."""

    blocks: list[Payload] = field(default_factory=list)
    checkpoints: dict[int, Payload] = field(default_factory=dict)

    def save(self, context: Context, slot: int = 0) -> None:
        """Everything up to the slot's length, which is a multiple of the grid."""
        length = context.length(slot)
        for start in range(len(self.blocks) * GRID, length, GRID):
            self.blocks.append(context.save_block(slot, start, start + GRID))
        if context.kind is not StateKind.ATTENTION:
            self.checkpoints[length] = context.save_checkpoint(slot)

    def restore(self, context: Context, position: int, slot: int = 0, keep: int = 0) -> None:
        """Into a slot whose first `keep` tokens' cells stay."""
        context.trim(slot, keep)
        for start in range(keep, position, GRID):
            context.load_block(slot, start, start + GRID, self.blocks[start // GRID])
        if self.checkpoints:
            context.load_checkpoint(slot, position, self.checkpoints[position])

    def roll_back(self, context: Context, position: int, slot: int = 0) -> None:
        if self.checkpoints:
            context.load_checkpoint(slot, position, self.checkpoints[position])
        else:
            assert context.cut(slot, position)


def parked(context: Context, tokens: Sequence[int], *stops: int) -> State:
    """Reads tokens up to the last stop, saving the state at each."""
    state, at = State(), 0
    context.clear(0)
    for stop in stops:
        read(context, tokens[:stop], at)
        state.save(context)
        at = stop
    return state


def generate(context: Context, count: int, logits: Logits, slot: int = 0) -> tuple[int, ...]:
    """Greedy tokens; all but the last are decoded, one by one."""
    said: list[int] = []
    for _ in range(count):
        if said:
            context.decode([Run(slot, context.length(slot), (said[-1],), True)])
            logits = context.logits(0)
        said.append(int(np.argmax(logits)))
    return tuple(said)


def assert_same(subject: Subject, context: Context, got: Logits, want: Logits, want_tokens: tuple[int, ...]) -> None:
    """Equal bits where that is promised, equal greedy tokens everywhere."""
    if subject.bits:
        np.testing.assert_array_equal(got, want)
    assert generate(context, len(want_tokens), got) == want_tokens
