"""Adaptive placement: what is learned of rollbacks, and which positions it keeps."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache.adaptive import FLAT, TIP, Rollbacks, Shape, shape_of
from kvcache.optimum import best, offline
from kvcache.placement import PlacementFacts, positions
from kvcache.thinning import THINNERS, chances, expected, spread, thin, worths
from kvcache.watch import Watch, common_steps

GRID = 64
SHAPES = st.builds(
    lambda length, marks: shape_of(length, GRID, marks),
    st.integers(0, 9000),
    st.lists(st.tuples(st.sampled_from(["system_end", "turn", "branch"]), st.integers(0, 9500)), max_size=8),
)


def curves(size: int) -> st.SearchStrategy[np.ndarray]:
    return st.lists(st.floats(0.001, 1.0), min_size=size, max_size=size).map(lambda values: np.array(values) / sum(values))


@given(shapes=st.lists(SHAPES, min_size=1, max_size=6), position=st.integers(0, 9000))
def test_a_density_is_a_probability_over_the_steps_whatever_was_observed(shapes: list[Shape], position: int) -> None:
    rollbacks = Rollbacks()
    for shape in shapes:
        rollbacks.observe(shape, min(position, shape.length))
        curve = rollbacks.density(shape)
        assert len(curve) == shape.length // GRID + 1
        assert curve.sum() == pytest.approx(1.0)
        assert (curve > 0).all()


@given(shapes=st.lists(SHAPES, min_size=1, max_size=8))
def test_what_is_observed_is_shared_out_over_the_parts_without_loss(shapes: list[Shape]) -> None:
    rollbacks = Rollbacks(decay=1.0)
    before = dict.fromkeys(("system_end", "turn", "branch"), 1.0) | rollbacks.weights
    for shape in shapes:
        rollbacks.observe(shape, shape.length // 2)
    after = {**before, **rollbacks.weights}
    assert sum(after.values()) - sum(before.values()) == pytest.approx(len(shapes))


def test_returns_to_the_end_of_the_system_text_are_learned_as_such_and_apply_to_another_conversation() -> None:
    rollbacks = Rollbacks()
    for length in range(20_000, 30_000, 1000):
        rollbacks.observe(shape_of(length, GRID, [("system_end", 15_000)]), 14_900)
    weights = rollbacks.weights
    assert weights["system_end"] > 8 and weights["system_end"] > weights[FLAT]
    curve = rollbacks.density(shape_of(40_000, GRID, [("system_end", 6400)]))
    deep = curve[:500]
    assert abs(int(deep.argmax()) - 98) <= 1


def test_appends_make_the_tip_likely_and_old_habits_fade() -> None:
    rollbacks = Rollbacks(decay=0.9)
    shape = shape_of(6400, GRID, [("system_end", 3200)])
    for _ in range(40):
        rollbacks.observe(shape, 3200)
    assert rollbacks.density(shape)[50] > 0.5
    for _ in range(60):
        rollbacks.observe(shape, 6400)
    assert rollbacks.density(shape)[100] > 0.5
    assert rollbacks.weights[TIP] > rollbacks.weights["system_end"]


def test_a_landmark_beyond_the_conversation_is_left_out() -> None:
    assert shape_of(640, GRID, [("turn", 641), ("turn", 640)]).landmarks == (("turn", (640,)),)


@given(curve=curves(14), positions=st.sets(st.integers(1, 13), min_size=1), keep=st.integers(0, 6))
def test_the_exact_program_finds_the_best_of_all_subsets(curve: np.ndarray, positions: set[int], keep: int) -> None:
    kept = best(curve, positions, keep)
    assert set(kept) <= positions and len(kept) <= keep and list(kept) == sorted(kept)
    subsets = combinations(sorted(positions), min(keep, len(positions)))
    assert expected(curve, kept) == pytest.approx(min(expected(curve, subset) for subset in subsets))


@given(curve=curves(40), keep=st.integers(1, 12))
def test_greedy_thinning_stays_near_the_exact_program(curve: np.ndarray, keep: int) -> None:
    greedy, exact = thin(curve, range(1, 40), keep), best(curve, range(1, 40), keep)
    assert len(greedy) == keep
    assert expected(curve, exact) <= expected(curve, greedy) <= 2 * expected(curve, exact) + 1e-9


@given(curve=curves(40), positions=st.sets(st.integers(0, 39), min_size=1))
def test_chances_of_kept_positions_add_up_to_what_lies_at_or_beyond_the_first(curve: np.ndarray, positions: set[int]) -> None:
    ordered = sorted(positions)
    assert sum(chances(curve, ordered)) == pytest.approx(curve[ordered[0] :].sum())
    assert chances(curve, []) == []


@given(curve=curves(40), positions=st.sets(st.integers(1, 39)), core=st.integers(1, 6))
def test_worths_are_one_for_the_core_and_fall_in_the_order_of_leaving(curve: np.ndarray, positions: set[int], core: int) -> None:
    ordered = sorted(positions)
    found = dict(zip(ordered, worths(curve, ordered, core), strict=True))
    assert {p for p, worth in found.items() if worth == 1.0} == set(thin(curve, ordered, core))
    for keep in range(core, len(ordered)):
        kept = set(thin(curve, ordered, keep))
        assert min((found[p] for p in kept), default=1.0) > max((found[p] for p in positions - kept), default=0.0)


def test_a_checkpoint_that_saves_less_than_the_least_is_spared_but_never_the_last_one() -> None:
    curve = np.full(101, 1e-4)
    curve[100] = 1 - 100e-4
    assert thin(curve, [50, 99, 100], 3, least=0.4) == (100,)
    assert thin(curve, [50, 99, 100], 3, least=1e9) == (100,)
    assert len(thin(curve, [50, 99, 100], 3)) == 3
    assert worths(curve, [50, 99, 100], least=0.4)[-1] == 1.0
    assert max(worths(curve, [50, 99, 100], least=0.4)[:-1]) < 1.0


@pytest.mark.parametrize("name", sorted(THINNERS))
@given(positions=st.sets(st.integers(1, 99)), keep=st.integers(0, 12))
def test_every_thinning_rule_keeps_as_many_as_it_may_of_what_there_is(name: str, positions: set[int], keep: int) -> None:
    kept = THINNERS[name](np.full(100, 0.01), sorted(positions), keep)
    assert set(kept) <= positions and list(kept) == sorted(kept)
    assert len(kept) == min(keep, len(positions))


def test_offered_positions_follow_the_square_root_of_the_curve_and_hold_the_end() -> None:
    curve = np.full(4001, 1e-6)
    curve[1000:1010] = 0.05
    offered = spread(curve, 0, 4000, 64)
    assert set(range(1000, 1010)) <= set(offered)
    assert offered[-1] == 4000 and len(offered) <= 66
    assert spread(curve, 10, 14, 64) == (11, 12, 13, 14)
    assert spread(curve, 14, 14, 64) == ()


def test_the_square_root_rule_beats_equal_gaps_on_a_heavy_tail() -> None:
    curve = 1.0 / np.arange(4000, 0, -1)
    curve /= curve.sum()
    by_root = np.searchsorted(np.cumsum(np.sqrt(curve)), np.sqrt(curve).sum() * np.arange(1, 17) / 17)
    assert expected(curve, by_root.tolist()) < 0.7 * expected(curve, list(range(235, 4000, 235)))


def test_the_offline_optimum_holds_what_is_needed_later_and_nothing_else() -> None:
    main = list(range(10))
    branch = [*range(4), *range(100, 106)]
    chains = [main, branch, [*main, 10], [*branch, 106]]
    assert offline(chains, [9, 10, 11, 11], 2).reread == 1  # one token of `main` must stay unread, so its last step too
    assert offline(chains, [10, 10, 11, 11], 2).reread == 0
    single = offline(chains, [10, 10, 11, 11], 1)
    assert single.exact and single.reread == 10  # the branch is held from its first turn to its last


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=2, max_size=5))
def test_more_checkpoints_never_cost_more_offline(paths: list[list[int]]) -> None:
    chains = [[tuple(path[: i + 1]) for i in range(len(path))] for path in paths]
    costs = [offline(chains, [len(chain) for chain in chains], keep).reread for keep in range(4)]
    assert costs == sorted(costs, reverse=True)
    assert offline(chains, [len(chain) for chain in chains], 99).reread == 0


def test_common_steps_are_found_in_chained_ids() -> None:
    assert common_steps([1, 2, 3], [1, 2, 9, 10]) == 2
    assert common_steps([], [1]) == 0
    assert common_steps([1, 2], [1, 2, 3]) == 2


def test_the_watch_follows_appends_branches_and_new_conversations_that_share_a_prefix() -> None:
    rollbacks = Rollbacks(decay=1.0)
    watch = Watch(GRID, rollbacks)
    watch.note([1, 2, 3, 4], 4 * GRID)
    assert rollbacks.observed == 0
    watch.note([1, 2, 3, 4, 5, 6], 6 * GRID)
    watch.note([1, 2, 30], 3 * GRID, [("system_end", 2 * GRID)])
    watch.note([1, 2, 30, 31], 4 * GRID)
    watch.note([1, 2, 3, 4, 5, 6, 7], 7 * GRID)
    watch.note([90, 91], 2 * GRID)
    assert rollbacks.observed == 4


def test_the_watch_forgets_the_oldest_conversation_and_keeps_shared_prefixes_known() -> None:
    rollbacks = Rollbacks()
    watch = Watch(GRID, rollbacks, conversations=2)
    watch.note([1, 2, 3], 3 * GRID)
    watch.note([1, 2, 4], 3 * GRID)
    watch.note([1, 2, 5], 3 * GRID)
    assert rollbacks.observed == 2
    watch.note([3], GRID)  # of the forgotten one
    assert rollbacks.observed == 2
    watch.note([1, 9], 2 * GRID)
    assert rollbacks.observed == 3


def test_adaptive_placement_adds_learned_positions_to_the_anchors_and_stays_within_its_limit() -> None:
    curve = np.full(101, 1e-6)
    curve[37] = curve[99] = 0.5
    facts = PlacementFacts(6401, 0, GRID, 0, anchors=((640, "system_end", False),), curve=curve / curve.sum(), limit=3)
    placed = positions("adaptive", facts)
    assert {37 * GRID, 99 * GRID, 640, 6400} <= set(placed)
    assert len(placed) <= 3 + 2
    assert positions("adaptive", PlacementFacts(6401, 0, GRID, 512)) == positions("anchors", PlacementFacts(6401, 0, GRID, 512))


def test_adaptive_placement_wants_nothing_where_a_kept_checkpoint_serves_as_well() -> None:
    curve = np.full(101, 1e-9)
    curve[37] = 1.0
    near = PlacementFacts(6401, 36 * GRID, GRID, 0, curve=curve / curve.sum(), kept=(), limit=1)
    assert 37 * GRID in positions("adaptive", near)
    assert 37 * GRID not in positions(
        "adaptive", PlacementFacts(6401, 38 * GRID, GRID, 0, curve=near.curve, kept=(37 * GRID,), limit=1)
    )


def test_prompts_end_where_they_end_and_not_on_the_grid() -> None:
    """An agent that goes back to the end of the prompt before last again and again teaches that."""
    rollbacks = Rollbacks()
    watch = Watch(64, rollbacks)
    for talk in range(12):
        ids = [(talk, step) for step in range(100)]
        for steps in (40, 60, 80):
            watch.note(ids[:steps], steps * 64 + 17)
        back = [*ids[:60], *((talk, "other", step) for step in range(30))]
        curve = watch.note(back, len(back) * 64 + 17)
        assert curve.sum() == pytest.approx(1.0)
    assert rollbacks.weights["turn"] > 5
