"""Which engine a request goes to."""

from dataclasses import replace

from engine.context import StateKind
from engine.costs import Costs
from engine.resume import Ask
from engine.routing import STRIKES, Quote, estimate, room, route
from engine.slots import SlotTable
from kvcache.entry import Match
from tests.engine.serving import ROOT, text

IDLE = Quote(ms=10, serves=0, slots=1)


def test_the_engine_that_is_soonest_is_taken() -> None:
    assert route([IDLE, replace(IDLE, ms=5)], shared=False) == 1


def test_a_free_engine_goes_before_one_with_the_better_state_that_is_full() -> None:
    assert route([replace(IDLE, ms=1, serves=1), replace(IDLE, ms=900)], shared=False) == 1


def test_an_engine_with_a_free_slot_counts_as_slower_by_those_it_serves() -> None:
    busy = Quote(ms=10, serves=2, slots=4)
    assert route([busy, replace(busy, ms=25, serves=0)], shared=False) == 1
    assert route([busy, replace(busy, ms=35, serves=0)], shared=False) == 0


def test_on_one_thread_the_engine_that_serves_goes_on() -> None:
    assert route([replace(IDLE, serves=1), replace(IDLE, ms=1)], shared=True) == 0


def test_a_dead_or_failing_engine_is_asked_last() -> None:
    assert route([replace(IDLE, ms=0, alive=False), IDLE], shared=False) == 1
    assert route([replace(IDLE, ms=0, strikes=STRIKES), IDLE], shared=True) == 1
    assert route([replace(IDLE, alive=False), replace(IDLE, alive=False, ms=1)], shared=False) == 1


def test_the_background_reads_beside_the_conversations_own_engine() -> None:
    assert room([IDLE, IDLE], home=0, shared=False) == 1
    assert room([IDLE, IDLE], home=1, shared=False) == 0


def test_the_background_takes_the_conversations_own_engine_where_the_other_is_busy() -> None:
    assert room([IDLE, replace(IDLE, serves=1)], home=0, shared=False) == 0


def test_on_a_shared_device_the_background_rests_while_anybody_is_served() -> None:
    assert room([IDLE, replace(IDLE, serves=1)], home=0, shared=True) is None
    assert room([IDLE, IDLE], home=0, shared=True) == 1


def test_the_background_leaves_dead_and_failing_engines_alone() -> None:
    assert room([replace(IDLE, alive=False), replace(IDLE, strikes=STRIKES)], home=0, shared=False) is None


def test_the_estimate_is_of_what_must_be_read_behind_the_best_slot() -> None:
    slots = SlotTable(1, 64, ROOT)
    slots.append(slots[0], text(640), prefill=True)
    ask = Ask(700, StateKind.HYBRID, 64, strict=False)
    costs = Costs(prefill=1.0)
    nothing = Match((), (), ())
    assert estimate(ask, slots, text(700), nothing, costs) == 60
    assert estimate(ask, slots, text(700, 2), nothing, costs) >= 700
