"""A RAM budget smaller than one conversation holds its beginning up to a checkpoint, not blocks that nobody can use."""

import pytest

from kvcache.facts import EntryKind
from tests.engine.serving import Desk, text

KIB = 1 << 10


@pytest.mark.parametrize("kib", [64, 128, 160])
def test_the_beginning_that_fits_is_held_up_to_a_checkpoint_and_comes_back(kib: int) -> None:
    desk = Desk(ram=kib * KIB)
    story = text(4000, seed=1)
    desk.ask(story)
    held = desk.store.entries()
    deepest = max(entry.position for entry in held if entry.kind is EntryKind.CHECKPOINT)
    blocks = max(entry.position for entry in held if entry.kind is EntryKind.BLOCK)
    assert blocks * 2 <= deepest * 3
    desk.ask(text(40, seed=2))
    again = desk.ask([*story, *text(20, seed=3)])
    assert again.reread == len(story) + 20 - deepest
    assert desk.store.stats().ram.used <= kib * KIB
