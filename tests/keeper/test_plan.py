"""Choosing an edit: what goes first, what never goes, and that the numbers are those of the view."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keeper.dry_run import dry_run
from keeper.edit import Budget, Costs, EditPlan, Fate, assumed, render_plan
from keeper.graph import STUB_MARK, build
from keeper.message import Message
from keeper.plan import plan_edit
from tests.keeper.spans import reading, result, said, step
from tests.keeper.test_graph import histories

BIG = "line of text that is long enough to be worth a stub\n" * 30


def work(rounds: int, text: str = BIG) -> list[Message]:
    """system, task, then rounds of reading files, each with a result of some 1,500 bytes."""
    messages = [said("system", "Be careful."), said("user", "Read all files.")]
    for i in range(rounds):
        messages += [reading(f"c{i}", f"file_{i:03d}.txt"), result(f"c{i}", f"ident-{i:04d}\n{text}")]
    return messages


def tokens_of(messages: list[Message]) -> list[int]:
    return [len(m.text) // 4 + sum(len(call.arguments) for call in m.tool_calls) // 4 + 4 for m in messages]


def planned(
    messages: list[Message], limit: int, target: int | None = None, costs: Costs | None = None, near: int = 3
) -> EditPlan:
    budget = Budget(limit, target or limit * 2 // 3, continuation=100, near=near)
    return plan_edit(messages, build(messages), costs or assumed(tokens_of(messages)), budget)


def fates(plan: EditPlan) -> str:
    return "".join(decision.fate[0] for decision in plan.decisions)


def test_a_history_that_fits_is_left_alone_and_nothing_is_read_again() -> None:
    plan = planned(work(4), 10_000)
    assert (plan.level, plan.first_edit, plan.reread, plan.before) == (0, None, 0, plan.after)
    assert fates(plan) == "k" * 10


def test_stale_results_go_first_and_the_rest_stays() -> None:
    messages = [*work(2), reading("x", "file_000.txt"), result("x", BIG), said("assistant", "noted"), said("user", "and now?")]
    total = sum(tokens_of(messages))
    plan = planned(messages, total - 10, total - 100)
    assert plan.level == 1
    assert fates(plan) == "kkksk" + "kkkkk"
    assert plan.decisions[3].reason == "superseded by message 7"
    assert plan.decisions[3].text.startswith(STUB_MARK)


def test_a_failed_replacement_makes_nothing_stale_so_the_read_is_not_stubbed_for_it() -> None:
    messages = [*work(2), reading("x", "file_000.txt"), result("x", "error: permission denied"), said("assistant", "noted")]
    total = sum(tokens_of(messages))
    assert "superseded" not in render_plan(planned(messages, total - 10, total - 100, near=0))


def test_parallel_results_that_nobody_used_go_before_the_chain() -> None:
    calls = [(f"p{i}", "read_file", {"path": f"side_{i}.txt"}) for i in range(3)]
    messages = [
        *work(0),
        step(None, *calls),
        result("p0", f"nothing-0000\n{BIG}"),
        result("p1", f"LINKED-0001\n{BIG}"),
        result("p2", f"nothing-0002\n{BIG}"),
        reading("c", "LINKED-0001"),
        result("c", "short"),
        *work(1)[2:],
        said("assistant", "done"),
    ]
    total = sum(tokens_of(messages))
    plan = planned(messages, total - 10, total - 400, near=2)
    assert plan.level == 1
    assert [d.position for d in plan.decisions if d.fate is Fate.STUB] == [3, 5]


def test_on_a_plain_chain_the_farthest_results_are_stubbed_and_the_near_ones_stay() -> None:
    messages = [*work(12), said("assistant", "done")]
    plan = planned(messages, 4_000, 3_400)
    assert plan.level == 2
    assert plan.after <= 3_400
    stubbed = [d.position for d in plan.decisions if d.fate is Fate.STUB]
    assert stubbed
    assert max(stubbed) < 22


def test_among_plans_of_one_level_the_quickest_wins_so_an_edit_behind_a_late_checkpoint_is_preferred() -> None:
    messages = [*work(12), said("assistant", "done")]
    tokens = tokens_of(messages)
    late = sum(tokens[:11])
    plan = planned(messages, sum(tokens) - 10, sum(tokens) - 300, replace(assumed(tokens), checkpoints=(64, late)))
    assert plan.resume == late
    assert min(d.position for d in plan.decisions if d.fate is Fate.STUB) >= 11
    assert plan.ms == pytest.approx(plan.reread)


def test_without_any_checkpoint_everything_is_read_again_and_the_plan_says_so() -> None:
    messages = [*work(12), said("assistant", "done")]
    plan = planned(messages, 4_000, costs=replace(assumed(tokens_of(messages)), checkpoints=()))
    assert (plan.resume, plan.reread) == (0, plan.after)


def test_what_cannot_be_stubbed_enough_is_archived_from_the_oldest_on() -> None:
    messages = [*work(40, text="short\n"), said("assistant", "done")]
    plan = planned(messages, 500)
    assert plan.level == 3
    assert fates(plan).startswith("kkaa")
    assert fates(plan).rstrip("k").endswith("a")
    assert messages[plan.start].role != "tool"
    assert plan.after <= 500


def test_a_view_that_can_never_fit_is_the_smallest_one_and_says_that_it_does_not_fit() -> None:
    messages = [*work(2), said("user", BIG * 20)]
    plan = planned(messages, 300)
    assert not plan.fits
    assert fates(plan) == "kkaaaak"
    assert "DOES NOT FIT" in render_plan(plan)


def test_costs_are_restore_plus_what_is_read_again() -> None:
    costs = Costs((100, 100, 100), 50, (64, 192), restore_ms=5, restore_ms_a_token=0.01, reread_ms_a_token=2)
    assert costs.starts() == (50, 150, 250, 350)
    assert [costs.resume(position) for position in (0, 63, 64, 191, 500)] == [0, 0, 64, 64, 192]
    assert costs.ms(0, 10) == 20
    assert costs.ms(100, 10) == 26
    assert assumed((100, 100), 50).checkpoints == (128, 192)


def test_a_plan_prints_what_goes_what_stays_why_tokens_and_ms() -> None:
    messages = [*work(12), said("assistant", "done")]
    text = render_plan(planned(messages, 4_000, 3_400))
    assert "tokens; re-read" in text.splitlines()[0]
    assert " ms" in text.splitlines()[0]
    assert text.splitlines()[1] == "why: stubs that reach into the critical chain, farthest first"
    assert any(line.startswith("stub    message ") and "on the critical chain" in line for line in text.splitlines())
    assert "newest exchange" in text


def test_counts_that_do_not_match_the_history_are_refused() -> None:
    messages = work(1)
    with pytest.raises(ValueError, match="4 messages, 4 nodes and 1 token counts"):
        plan_edit(messages, build(messages), assumed((1,)), Budget(10, 5, 5))


def test_a_stub_that_stands_is_never_planned_again() -> None:
    messages = [*work(12), said("assistant", "done")]
    first = planned(messages, 4_000, 3_400)
    shown = [result(m.tool_call_id or "", first.stubs()[i]) if i in first.stubs() else m for i, m in enumerate(messages)]
    assert not set(planned(shown, 3_000, 2_500).stubs()) & set(first.stubs())


@settings(max_examples=120, deadline=None)
@given(histories(), st.integers(1, 120), st.integers(0, 6))
def test_on_any_history_the_numbers_add_up_and_the_head_and_the_newest_exchange_stay(
    messages: list[Message], limit: int, near: int
) -> None:
    plan = planned(messages, limit, near=near)
    added = 100 if plan.start else 0
    assert plan.after == sum(decision.tokens for decision in plan.decisions) + added
    assert plan.reread == plan.after - plan.resume
    assert plan.fits == (plan.after <= limit)
    if messages:
        assert plan.decisions[-1].fate is Fate.KEEP
    assert all(
        plan.decisions[i].fate is Fate.KEEP for i, m in enumerate(messages) if m.role == "user" and i == first_user(messages)
    )


def first_user(messages: list[Message]) -> int:
    return next(i for i, m in enumerate(messages) if m.role == "user")


def test_a_dry_run_plans_for_a_window_without_any_model() -> None:
    small, large = dry_run(work(12), 2_048), dry_run(work(12), 1_000_000)
    assert small.first_edit is not None
    assert small.after <= 1_536
    assert (large.first_edit, large.reread) == (None, 0)
