"""The simulator: what counts as a hit, as re-reading, and what its memory is bounded by."""

import gc
import random
import tracemalloc

import pytest

from kvcache.adaptive import Rollbacks
from kvcache.eviction import POLICIES as ORDERS
from kvcache.kept import RULES
from kvcache.placement import UnknownPolicy
from kvcache.simulate import Known, Outcome, Policy, Returns, Simulator, Turn
from kvcache.thinning import THINNERS

GRID = 64


def prompt(*steps: int, rest: int = 1, conversation: str = "a") -> Turn:
    """A prompt whose grid steps are named by numbers; ids are chained, so each is the whole path."""
    ids = [tuple(steps[: i + 1]) for i in range(len(steps))]
    return Turn(conversation, len(steps) * GRID + rest, ids)


def replay(policy: Policy, turns: list[Turn]) -> list[Outcome]:
    simulator = Simulator(policy)
    return [simulator.turn(turn) for turn in turns]


def test_an_append_is_known_up_to_the_last_prompt_and_resumes_there_with_one_checkpoint() -> None:
    first, second = replay(Policy("newest", "newest", 1, GRID), [prompt(1, 2, 3), prompt(1, 2, 3, 4, 5)])
    assert first == Outcome(193, 0, 0, None)
    assert second == Outcome(321, 192, 192, 0)
    assert second.reread == 0 and second.unavoidable == 129


def test_a_known_block_without_a_checkpoint_at_its_end_is_no_hit() -> None:
    turns = [prompt(1, 2, 3, 4), prompt(1, 2, 9)]
    assert replay(Policy("newest", "newest", 4, GRID), turns)[1] == Outcome(193, 128, 0, 128)
    assert replay(Policy("grid", "newest", 4, GRID), turns)[1] == Outcome(193, 128, 128, 128)


def test_a_prompt_that_ends_on_the_grid_never_resumes_after_its_last_token() -> None:
    turns = [prompt(1, 2, 3), prompt(1, 2, 3, rest=0)]
    assert replay(Policy("grid", "newest", 9, GRID), turns)[1].resumed == 128


def test_conversations_do_not_share_checkpoints_but_the_ceiling_knows_every_block() -> None:
    turns = [prompt(1, 2), prompt(1, 2, conversation="b")]
    assert replay(Policy("grid", "newest", 9, GRID), turns)[1] == Outcome(129, 128, 0, None)


def test_the_count_bounds_what_a_conversation_holds_whatever_the_policy() -> None:
    for evict in sorted({*RULES, *ORDERS}):
        simulator = Simulator(Policy("grid", evict, 3, GRID))
        for turn in (prompt(*range(20)), prompt(*range(5), 77, 78), prompt(*range(20), 21)):
            simulator.turn(turn)
            assert simulator.held == 3, evict


def test_an_abandoned_branch_is_resumed_when_there_was_room_to_keep_it() -> None:
    turns = [prompt(1, 2, 3, 4), prompt(1, 2, 7, 8), prompt(1, 2, 3, 4, 5)]
    roomy = replay(Policy("newest", "newest", 4, GRID), turns)
    assert roomy[2].resumed == 4 * GRID
    assert replay(Policy("newest", "newest", 1, GRID), turns)[2].resumed == 0


def edited(seed: int, requests: int = 120) -> list[Turn]:
    """A conversation that mostly appends, sometimes changes its last step, sometimes goes back to the end of its head."""
    rng = random.Random(seed)
    path = list(range(60))
    turns = []
    for number in range(requests):
        draw = rng.random()
        if draw < 0.3:
            path = path[:-1]
        elif draw < 0.36:
            path = path[: 40 + rng.randrange(3)]
        path = [*path, *(1000 * number + i for i in range(rng.randrange(1, 12)))]
        turns.append(prompt(*path))
    return turns


def cost(policy: Policy, turns: list[Turn], rollbacks: Rollbacks | None = None) -> int:
    simulator = Simulator(policy, rollbacks)
    return sum(simulator.turn(turn).reread for turn in turns)


def test_the_adaptive_policy_beats_every_fixed_rule_on_bimodal_rollbacks_it_was_not_tuned_on() -> None:
    turns = edited(1, 400)
    fixed = sorted(set(THINNERS) - {"adaptive"} | {"lru"})
    others = [cost(Policy("interval+newest+before-end+branches", evict, 6, GRID, 1024), turns) for evict in fixed]
    assert cost(Policy("adaptive", "adaptive", 6, GRID), turns) < 0.5 * min(others)


def test_what_was_learned_on_one_conversation_helps_on_another() -> None:
    learned = Rollbacks()
    cost(Policy("adaptive", "adaptive", 4, GRID), edited(2, 300), learned)
    fresh = cost(Policy("adaptive", "adaptive", 4, GRID), edited(3, 60))
    assert cost(Policy("adaptive", "adaptive", 4, GRID), edited(3, 60), learned) <= fresh


def test_a_replay_gives_the_same_outcomes_every_time() -> None:
    policy = Policy("adaptive", "adaptive", 8, GRID)
    assert replay(policy, edited(5)) == replay(policy, edited(5))


def test_known_ids_are_bounded_and_the_recent_ones_stay_known() -> None:
    known = Known(limit=100)
    for number in range(50):
        ids = [(number, i) for i in range(20)]
        assert known(ids) == 0
        assert known(ids) == 20
        assert known.size <= 240
    assert known([(0, i) for i in range(20)]) == 0


def bytes_after(conversations: int) -> int:
    """Memory that is held after so many conversations of ten turns were replayed with small limits."""
    simulator = Simulator(Policy("adaptive", "adaptive", 4, GRID), known=Known(500), remember=4)
    tracemalloc.start()
    try:
        for number in range(conversations):
            path: list[int] = []
            for turn in range(10):
                path = [*path, *(10_000 * number + 100 * turn + i for i in range(8))]
                simulator.turn(Turn(str(number), len(path) * GRID + 1, path))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_trace() -> None:
    assert bytes_after(200) < 1.2 * bytes_after(40)


def test_a_conversation_that_comes_back_again_and_again_remembers_no_end_twice() -> None:
    simulator = Simulator(Policy("anchors", "lru", 4, GRID), known=Known(500))
    for number in range(60):
        simulator.turn(prompt(1, 2, 3, 1000 + number))
        simulator.turn(prompt(1, 2, rest=1 + number))
    assert simulator._conversations["a"].ends == (2,)


def test_an_unknown_policy_is_named_before_anything_is_replayed() -> None:
    with pytest.raises(UnknownPolicy):
        Simulator(Policy("magic", "lru", 4, GRID))
    with pytest.raises(UnknownPolicy):
        Simulator(Policy("newest", "magic", 4, GRID))


def test_returns_are_counted_by_how_long_ago_a_branch_was_left() -> None:
    returns = Returns()
    assert returns(1) > returns(2) > returns(8) > 0
    for _ in range(50):
        returns.note(1, True)
        returns.note(5, False)
    assert returns(1) > 0.9 and returns(5) < 0.02


def test_a_conversation_that_alternates_keeps_both_of_its_branches() -> None:
    """A long prompt and a side question in turn, as some agents have it: after the first time neither is read again."""
    simulator = Simulator(Policy("adaptive", "adaptive", 8, 64))
    long, side = list(range(100)), [*range(20), *range(1000, 1020)]
    reread = []
    for turn in range(20):
        long.append(2000 + turn)
        reread.append(simulator.turn(Turn("c", len(long) * 64 + 1, list(long))).reread)
        side.append(3000 + turn)
        reread.append(simulator.turn(Turn("c", len(side) * 64 + 1, list(side))).reread)
    assert sum(reread[2:]) == 0, reread
