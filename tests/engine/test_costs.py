"""What is learned from batches as they are read."""

import random

import pytest

from engine.costs import CostMeter
from engine.request import Anchor, AnchorKind
from tests.engine.serving import Desk, text


def meter(*batches: tuple[int, float]) -> CostMeter:
    made = CostMeter()
    for tokens, ms in batches:
        made.read(tokens, ms)
    return made


def test_what_a_batch_costs_beside_its_tokens_is_told_in_tokens() -> None:
    lengths = (512, 64, 128, 512, 256, 64, 512)
    assert meter(*((n, 0.2 * (n + 24)) for n in lengths)).costs.batch == pytest.approx(24)
    assert meter(*((n, 10.0 * n) for n in lengths)).costs.batch == pytest.approx(0, abs=1e-6)


def test_it_is_found_in_noise_and_follows_when_it_changes() -> None:
    rng = random.Random(1)
    made = CostMeter()
    for cost in (24, 200):
        for _ in range(400):
            n = rng.choice([64, 128, 256, 512])
            made.read(n, 0.2 * (n + cost) * rng.uniform(0.8, 1.2))
        assert made.costs.batch == pytest.approx(cost, rel=0.3, abs=10)


def test_nothing_is_claimed_from_few_or_equal_batches_or_from_such_as_make_no_sense() -> None:
    assert meter((512, 100.0), (64, 20.0)).costs.batch == 0
    assert meter(*[(512, 100.0)] * 50).costs.batch == 0
    assert meter(*[(64, 100.0), (512, 50.0)] * 10).costs.batch == 0


@pytest.mark.parametrize(("overhead", "batches"), [(0, 28), (100, 20)])
def test_where_batches_are_dear_a_prompt_is_read_in_fewer(overhead: int, batches: int) -> None:
    """4,000 tokens with an anchor every 200: a tool loop that comes in one piece."""
    desk = Desk(n_batch=512)
    for n in (64, 128, 256, 512) * 4:
        desk.core.meter.read(n, 10.0 * (n + overhead))
    anchors = tuple(Anchor(at, AnchorKind.TOOL_RESULTS_END) for at in range(200, 4000, 200))
    desk.ask(text(4000), 0, anchors=anchors)
    read = [len(batch[0].tokens) for batch in desk.context.batches]
    assert sum(read) == 4000
    assert len(read) <= batches if overhead else len(read) >= batches
