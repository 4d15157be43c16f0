"""The choice of a resume point, on plain values."""

from dataclasses import replace

from engine.context import StateKind
from engine.costs import Costs
from engine.resume import Ask, Base, Live, Plan, choose, plans
from kvcache.entry import BlockRef, CheckpointRef, Match, Tier

GRID = 64
COSTS = Costs(prefill=10.0, ram=1e-6, disk=1e-5)


def match(stored: int = 0, *checkpoints: int, tier: Tier = Tier.RAM) -> Match:
    blocks = tuple(BlockRef(b"b%d" % at, at, at + GRID, tier, 1000) for at in range(0, stored, GRID))
    return Match((), blocks, tuple(CheckpointRef(b"c%d" % at, at, tier, 20_000) for at in checkpoints))


def ask(length: int, kind: StateKind = StateKind.HYBRID, *, strict: bool = False) -> Ask:
    return Ask(length, kind, GRID, strict)


EMPTY = Live(0, 0, 0, 0, idle=True)


def pick(asked: Ask, *lives: Live, found: Match | None = None, victim: int = 0) -> Plan:
    return choose(asked, lives, victim, found or match(), COSTS)


def test_with_nothing_known_a_prompt_starts_cold() -> None:
    assert pick(ask(100), EMPTY).base is Base.CLEAR


def test_an_append_stays_on_the_live_slot() -> None:
    plan = pick(ask(1100), Live(0, 1000, 1000, 960, idle=True))
    assert (plan.base, plan.position) == (Base.STAY, 1000)


def test_the_whole_prompt_is_never_taken_as_read() -> None:
    plan = pick(ask(1024), Live(0, 1024, 1024, 1024, idle=True), found=match(1024, 512, 960, 1024))
    assert (plan.base, plan.position) == (Base.ROLLBACK, 960)


def test_strict_leaves_a_live_state_that_is_off_the_grid() -> None:
    live = Live(0, 1000, 1000, 960, idle=True)
    plan = pick(ask(1100, strict=True), live, found=match(960, 512, 960))
    assert (plan.base, plan.position) == (Base.ROLLBACK, 960)


def test_strict_goes_on_from_an_interrupted_canonical_read() -> None:
    plan = pick(ask(1100, strict=True), Live(0, 640, 640, 640, idle=True))
    assert (plan.base, plan.position) == (Base.STAY, 640)


def test_strict_keeps_no_live_token_that_a_canonical_read_did_not_make() -> None:
    live = Live(0, 1000, 900, 512, idle=True)
    plan = pick(ask(950, strict=True), live, found=match(0, 512, 832))
    assert (plan.base, plan.position) == (Base.ROLLBACK, 512)


def test_a_rollback_takes_the_checkpoint_at_exactly_the_first_difference_but_none_after_it() -> None:
    for common, expected in ((511, 448), (512, 512), (513, 512)):
        plan = pick(ask(2000), Live(0, 1500, common, 1472, idle=True), found=match(0, 448, 512, 576))
        assert (plan.base, plan.position) == (Base.ROLLBACK, expected), common


def test_attention_is_cut_at_the_very_token() -> None:
    plan = pick(ask(2000, StateKind.ATTENTION), Live(0, 1500, 777, 768, idle=True))
    assert (plan.base, plan.position) == (Base.CUT, 777)


def test_attention_in_strict_mode_is_cut_on_the_grid() -> None:
    plan = pick(ask(2000, StateKind.ATTENTION, strict=True), Live(0, 1500, 777, 768, idle=True))
    assert (plan.base, plan.position) == (Base.CUT, 768)


def test_a_window_cut_that_was_refused_is_not_planned_again() -> None:
    live = Live(0, 1500, 777, 768, idle=True)
    found = match(0, 512)
    assert pick(ask(2000, StateKind.WINDOW), live, found=found).base is Base.CUT
    assert pick(ask(2000, StateKind.WINDOW), replace(live, cuts=False), found=found).base is Base.ROLLBACK


def test_a_parked_conversation_comes_back_from_its_deepest_usable_checkpoint() -> None:
    plan = pick(ask(2000), EMPTY, found=match(1024, 512, 960, 1088))
    assert (plan.base, plan.kept, plan.position) == (Base.CLEAR, 0, 960)


def test_live_cells_are_kept_and_only_what_is_missing_is_loaded() -> None:
    plan = pick(ask(5000), Live(0, 3000, 2000, 2944, idle=True), found=match(4096, 1024, 4096))
    assert (plan.base, plan.kept, plan.position) == (Base.TRIM, 1984, 4096)


def test_a_branch_shares_the_cells_of_a_busy_slot() -> None:
    lives = (EMPTY, Live(1, 3000, 2000, 2944, idle=False))
    plan = pick(ask(2500), *lives, found=match(0, 1984))
    assert (plan.slot, plan.base, plan.origin, plan.kept, plan.position) == (0, Base.FORK, 1, 1984, 1984)


def test_a_fork_at_the_very_end_of_its_source_needs_no_checkpoint() -> None:
    plan = pick(ask(2500), EMPTY, Live(1, 1984, 1984, 1984, idle=False))
    assert (plan.base, plan.position, plan.checkpoint) == (Base.FORK, 1984, None)


def test_a_slot_that_is_being_restored_is_not_shared() -> None:
    assert pick(ask(2500), EMPTY, Live(1, 1984, 1984, 1984, idle=False, usable=False)).base is Base.CLEAR


def test_another_conversation_with_the_same_start_takes_an_empty_slot_rather_than_roll_the_first_one_back() -> None:
    other = Live(1, 6000, 2000, 5952, idle=True)
    plan = pick(ask(2500), EMPTY, other, found=match(5952, 1984, 5952))
    assert (plan.slot, plan.base) == (0, Base.FORK)
    assert pick(ask(2500), EMPTY, replace(other, own=True), found=match(5952, 1984)).slot == 1


def test_a_slow_tier_loses_against_reading_a_few_tokens() -> None:
    slow = replace(COSTS, disk=1.0)
    assert choose(ask(200), (EMPTY,), 0, match(128, 128, tier=Tier.DISK), slow).base is Base.CLEAR


def test_every_plan_leaves_a_token_to_read_and_keeps_only_common_tokens() -> None:
    lives = (Live(0, 900, 700, 640, idle=True), Live(1, 1000, 1000, 448, idle=False), Live(2, 64, 0, 0, idle=True))
    for kind in StateKind:
        for strict in (False, True):
            for plan in plans(ask(1000, kind, strict=strict), lives, 2, match(960, 64, 640, 960), COSTS):
                source = next(live for live in lives if live.slot == (plan.slot if plan.origin is None else plan.origin))
                assert plan.position < 1000
                assert plan.kept <= source.common
                assert not strict or plan.position % GRID == 0
                assert not strict or plan.kept <= source.canonical
