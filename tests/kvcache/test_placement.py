"""Placement: positions a prompt's checkpoints go to, by name."""

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache.placement import DEFAULT, POLICIES, PlacementFacts, UnknownPolicy, derive_interval, positions, tip_position

GIB = 1 << 30


def facts(length: int, start: int = 0, interval: int = 512, **more: tuple[object, ...]) -> PlacementFacts:
    return PlacementFacts(length=length, start=start, grid=64, interval=interval, **more)  # type: ignore[arg-type]


@given(
    policy=st.sampled_from(sorted(POLICIES)),
    length=st.integers(1, 5000),
    start=st.integers(0, 5000),
    grid=st.sampled_from([1, 16, 48, 64, 256]),
    interval=st.integers(0, 3000),
    anchors=st.lists(st.integers(0, 6000), max_size=6),
)
def test_every_policy_gives_ascending_grid_multiples_between_start_and_the_last_token(
    policy: str, length: int, start: int, grid: int, interval: int, anchors: list[int]
) -> None:
    marks = tuple((a, "user_end", False) for a in anchors)
    got = positions(policy, PlacementFacts(length, start, grid, interval, marks, branches=tuple(anchors[:2])))
    assert list(got) == sorted(set(got))
    assert all(p % grid == 0 and start < p <= length - 1 for p in got)


@given(length=st.integers(1, 9000), edit=st.integers(0, 9000))
def test_the_default_leaves_at_most_one_interval_to_re_read_before_any_edit(length: int, edit: int) -> None:
    got = positions(DEFAULT, facts(length, interval=512))
    reached = min(edit, length - 1)
    assert reached - max((p for p in got if p <= reached), default=0) < 512


def test_the_default_rounds_anchors_down_adds_the_interval_and_ends_before_the_last_token() -> None:
    got = positions(DEFAULT, facts(1345, anchors=((1000, "last_user_end", True), (130, "system_end", False))))
    assert got == (128, 512, 960, 1024, 1344)


def test_a_prompt_that_ends_on_the_grid_keeps_its_last_block_to_read() -> None:
    assert positions("newest", facts(1280)) == (1216,)


def test_geometric_placement_bounds_the_re_read_by_the_rollback_distance() -> None:
    end = 6400
    got = positions("geometric", facts(end + 1))
    for distance in range(64, end, 64):
        best = max((p for p in got if p <= end - distance), default=0)
        assert end - distance - best <= distance
    assert len(got) <= 9


def test_turn_ends_ignore_anchors_that_are_no_turn() -> None:
    got = positions("turn-ends", facts(700, anchors=((100, "tools_end", False), (300, "user_end", False))))
    assert got == (256, 640)


def test_an_unknown_policy_names_those_that_exist() -> None:
    with pytest.raises(UnknownPolicy, match="adaptive, anchors") as caught:
        positions("magic", facts(100))
    assert caught.value.name == "magic"


def test_small_checkpoints_get_the_finest_interval() -> None:
    assert derive_interval(GIB, 233_644, 8192, 64) == 256


def test_the_interval_doubles_until_half_of_the_budget_holds_one_context() -> None:
    checkpoint = 156_893_184
    for gib in (2, 4, 8, 16, 64):
        interval = derive_interval(gib * GIB, checkpoint, 32_768, 64)
        assert 2 * checkpoint * (32_768 // interval) <= gib * GIB
        assert interval == 256 or 2 * checkpoint * (32_768 // (interval // 2)) > gib * GIB


def test_no_budget_leaves_no_regular_checkpoint_inside_the_context() -> None:
    interval = derive_interval(0, 20_201_932, 8192, 64)
    assert interval == 8192
    assert positions("interval", facts(8192, interval=interval)) == (8128,)


@pytest.mark.parametrize("grid", [1, 48, 64, 1024])
def test_a_derived_interval_is_a_positive_grid_multiple(grid: int) -> None:
    for budget in (0, 1, GIB, 1 << 40):
        interval = derive_interval(budget, 20_201_932, 5000, grid)
        assert interval > 0 and interval % grid == 0


def test_the_tip_is_behind_the_header_of_the_answer_and_leaves_a_token_to_read() -> None:
    assert tip_position([100, 626], 632) == 629
    assert tip_position([626, 632, 700], 628) == 627
    assert tip_position([], 632) == tip_position([632], 632) == 0


def test_fill_ends_each_batch_at_the_last_anchor_that_it_reaches() -> None:
    anchors = tuple((at, "tool_results_end", False) for at in range(200, 3000, 200))
    every = positions("anchors", PlacementFacts(3001, 0, 64, 0, anchors))
    filled = positions("anchors", PlacementFacts(3001, 0, 64, 0, anchors, fill=512))
    assert every == tuple(at // 64 * 64 for at in range(200, 3001, 200))
    assert set(filled) < set(every)
    assert all(b - a <= 512 for a, b in pairwise((0, *filled)))
    assert all(c - a > 512 for a, c in zip((0, *filled), filled[1:], strict=False))


def test_fill_passes_over_nothing_that_is_pinned_asked_for_or_learned_and_not_the_end() -> None:
    anchors = ((100, "tools_end", False), (200, "system_end", False), (300, "client", False), (500, "last_user_end", True))
    for fill in (0, 64, 512, 4096):
        facts = PlacementFacts(1000, 0, 64, 128, anchors, branches=(700,), fill=fill)
        assert {64, 192, 256, 448, 640, 960} <= set(positions("anchors", facts))


def test_a_fill_below_two_grid_steps_changes_nothing() -> None:
    anchors = tuple((at, "user_end", False) for at in (70, 130, 200, 900, 2000))
    for fill in (0, 1, 63, 64):
        assert positions("anchors", PlacementFacts(2500, 0, 64, 256, anchors, fill=fill)) == positions(
            "anchors", PlacementFacts(2500, 0, 64, 256, anchors)
        )


def test_with_fill_every_cut_is_one_without_and_the_reach_is_kept() -> None:
    rng = random.Random(3)
    for _ in range(300):
        length, start = rng.randrange(1, 5000), rng.randrange(2000)
        anchors = tuple((rng.randrange(6000), rng.choice(["user_end", "client"]), rng.random() < 0.1) for _ in range(20))
        facts = PlacementFacts(length, start, 64, rng.choice([0, 256]), anchors)
        every = positions("anchors", facts)
        for fill in (100, 512):
            some = positions("anchors", replace(facts, fill=fill))
            assert set(some) <= set(every)
            for at in every:  # what was passed over is followed by a cut in the same batch
                assert at in some or any(at < other <= at + fill for other in some)


def test_a_tip_spares_the_cut_right_before_it_where_the_state_would_not_be_canonical_and_one_is_stored_near_by() -> None:
    def last(**more: int | tuple[int, ...]) -> bool:
        asked = {"start": 4723, "fill": 256, "tip": 4857, "kept": (4608, 4672), **more}
        anchors = ((4719, "assistant_start", False), (4856, "last_user_end", True))
        facts = PlacementFacts(4861, grid=64, interval=0, anchors=anchors, **asked)  # type: ignore[arg-type]
        curved = replace(facts, curve=np.ones(76) / 76, least=0)
        assert (4800 in positions("anchors", facts)) == (4800 in positions("adaptive", curved))
        return 4800 in positions("anchors", facts)

    assert not last()
    assert last(start=4736)  # canonical
    assert last(fill=0)  # batches are cheap
    assert last(kept=(4480,)) and last(kept=())  # too far back for whoever has lost the slot
    assert last(tip=0)
