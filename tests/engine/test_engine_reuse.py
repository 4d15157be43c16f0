"""What is read again: the table of shared/facts/llama-state.md and the reports of users of other servers, on the fake context.

Beyond the tail that had to be read, at most 512 tokens; where stock servers read thousands.
"""

from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.context import StateKind
from engine.request import Exact, Source
from tests.engine.serving import END, MIB, Desk, Message, Served, message, render, text

SLACK = 512
PROMPT = len(render([])[0])  # the tokens that ask for an answer
KINDS = [StateKind.HYBRID, StateKind.WINDOW, StateKind.RECURRENT, StateKind.ATTENTION]
BOTH = list(Exact)


def say(desk: Desk, messages: list[Message], most: int = 40, exact: Exact = Exact.APPEND) -> Served:
    tokens, anchors = render(messages)
    return desk.ask(tokens, most, anchors=anchors, exact=exact)


def tail(messages: list[Message], changed: int, at: int = 0) -> int:
    """Tokens of the prompt after token `at` of the body of message number `changed`."""
    opening = len(messages[changed].role) + 2 if at else 0  # <|im_start|>role\n
    return len(render(messages)[0]) - (len(render(messages[:changed])[0]) - PROMPT) - opening - at


def edited(messages: list[Message], number: int, at: int) -> list[Message]:
    old = messages[number]
    return [*messages[:number], replace(old, body=(*old.body[:at], 7, 7, 7, *old.body[at + 3 :])), *messages[number + 1 :]]


def chat(turns: int, size: int) -> list[Message]:
    messages = [message("system", 300, 1)]
    for turn in range(turns):
        messages += [message("user", size, 10 + turn), message("assistant", size, 100 + turn)]
    return [*messages, message("user", 50, 99)]


@pytest.mark.parametrize("exact", BOTH)
@pytest.mark.parametrize("kind", KINDS)
def test_an_edited_early_message_costs_its_tail(kind: StateKind, exact: Exact) -> None:
    desk, messages = Desk(kind), chat(10, 200)
    say(desk, messages, exact=exact)
    changed = edited(messages, 5, 20)
    again = say(desk, changed, exact=exact)
    assert again.reread <= tail(changed, 5, 20) + SLACK
    assert again.done.resume.diverged
    assert again.done.resume.common == len(render(changed)[0]) - tail(changed, 5, 20)


@pytest.mark.parametrize("exact", BOTH)
@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_at_79_percent_of_one_long_message_costs_its_tail(kind: StateKind, exact: Exact) -> None:
    desk, messages = Desk(kind), [message("system", 100, 1), message("user", 6800, 2)]
    say(desk, messages, exact=exact)
    changed = edited(messages, 1, 5372)
    assert say(desk, changed, exact=exact).reread <= tail(changed, 1, 5372) + SLACK


def tool_rounds(rounds: int) -> list[Message]:
    messages = [message("tools", 400, 1), message("system", 100, 2), message("user", 100, 3)]
    for number in range(rounds):
        messages += [message("assistant", 60, 20 + number), message("tool", 120, 200 + number)]
    return messages


@pytest.mark.parametrize("exact", BOTH)
def test_a_tool_result_trimmed_in_an_imported_history_costs_its_tail(exact: Exact) -> None:
    desk, messages = Desk(), tool_rounds(30)
    say(desk, messages, exact=exact)
    changed = edited(messages, 42, 40)
    assert say(desk, changed, exact=exact).reread <= tail(changed, 42, 40) + SLACK


def test_a_tool_result_trimmed_after_many_incremental_rounds_costs_its_tail() -> None:
    desk, messages = Desk(ctx=16384), tool_rounds(60)
    for rounds in range(1, 61):
        say(desk, messages[: 3 + 2 * rounds])
    changed = edited(messages, 64, 40)
    assert say(desk, changed).reread <= tail(changed, 64, 40) + SLACK


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exact", BOTH)
def test_an_identical_request_reads_at_most_one_grid_step(kind: StateKind, exact: Exact) -> None:
    desk, messages = Desk(kind), chat(6, 150)
    first = say(desk, messages, exact=exact)
    for _ in range(3):
        again = say(desk, messages, exact=exact)
        assert again.reread <= 64
        assert again.tokens == first.tokens
        assert not again.done.resume.diverged


def test_thinking_turns_whose_reasoning_is_not_echoed_read_from_the_last_user_message() -> None:
    desk, messages = Desk(), [message("system", 800, 1), message("user", 200, 2)]
    say(desk, messages, 300)
    for turn in range(3):
        last_user = len(messages) - 1
        messages = [*messages, message("assistant", 80, 30 + turn), message("user", 60, 60 + turn)]
        assert say(desk, messages, 300).reread <= tail(messages, last_user + 1) + 64


def test_a_thinking_turn_that_is_echoed_in_full_goes_on_live() -> None:
    desk, messages = Desk(), [message("system", 800, 1), message("user", 200, 2)]
    tokens, anchors = render(messages)
    first = desk.ask(tokens, 100, anchors=anchors)
    again = desk.ask([*tokens, *first.tokens, END, 10, *text(40, 5)])
    assert (again.done.resume.source, again.reread) == (Source.LIVE, 43)


def test_a_tool_chain_is_left_at_the_last_real_user_message_when_it_is_rendered_anew() -> None:
    desk, messages = Desk(), tool_rounds(10)
    for rounds in range(1, 11):
        say(desk, messages[: 3 + 2 * rounds])
    stripped = [m if m.role != "assistant" else replace(m, body=m.body[30:]) for m in messages]
    final = [*stripped, message("user", 50, 77)]
    assert say(desk, final).reread <= tail(final, 3) + 64


def test_fifty_tokens_inserted_in_the_middle_cost_the_tail() -> None:
    desk, prompt = Desk(), text(4000)
    desk.ask(prompt)
    changed = [*prompt[:2000], *text(50, 2), *prompt[2000:]]
    assert desk.ask(changed).reread <= 2050 + SLACK


@pytest.mark.parametrize("slots", [1, 4])
def test_tools_then_one_more_then_the_first_again_resumes_the_first(slots: int) -> None:
    desk = Desk(slots=slots)
    plain = [message("tools", 700, 1), message("system", 300, 2), message("user", 100, 3)]
    more = [replace(plain[0], body=(*plain[0].body, *text(150, 9))), *plain[1:]]
    first = say(desk, plain)
    say(desk, more)
    third = say(desk, plain)
    assert third.reread <= 64
    assert third.tokens == first.tokens


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_checkpoints_around_the_difference_are_chosen_rightly_and_later_ones_survive(offset: int) -> None:
    desk, prompt = Desk(n_batch=64, config=EngineConfig(checkpoint_interval=128)), text(1500)
    desk.ask(prompt)
    at = 640 + offset
    branch = desk.ask([*prompt[:at], *text(500, 2)])
    assert branch.done.resume.position == (640 if offset >= 0 else 512)
    assert desk.ask(prompt).reread <= 64


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [0, 1])
def test_a_prompt_that_is_all_cached_is_answered(kind: StateKind, most: int) -> None:
    desk, prompt = Desk(kind), text(1024)
    first = desk.ask(prompt, 8)
    live = [*prompt, *first.tokens[:7]]
    for again in (prompt, live, live[:-1]):
        done = desk.ask(again, most).done
        assert (done.completion_tokens, done.timings.prompt_n <= 64) == (most, True)


def test_the_same_requests_in_other_batches_and_with_room_for_one_checkpoint_end() -> None:
    desk = Desk(slots=2, ram=4000, n_batch=64)
    for seed in range(3):
        served = [desk.submit(text(64 * 5, seed)), desk.submit(text(64 * 5, seed + 50))]
        desk.run()
        assert all(one.ended for one in served)
    assert desk.store.stats().ram.used <= 4000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slots", [1, 2])
def test_two_conversations_with_one_long_start_never_mix(kind: StateKind, slots: int) -> None:
    desk, system = Desk(kind, slots=slots, exact=False), message("system", 2000, 1)
    secrets = [message("user", 60, 1000), message("user", 60, 2000)]
    alone = [say(Desk(kind, exact=False), [system, secret], 10, Exact.STRICT) for secret in secrets]
    for number in range(50):
        which = number % 2
        mine = say(desk, [system, secrets[which]], 10, Exact.STRICT)
        assert mine.tokens == alone[which].tokens
        assert number < 2 or mine.reread <= 64


def test_several_branches_resume_from_one_parked_prefix() -> None:
    desk, prefix = Desk(exact=False), text(3000)
    desk.ask(prefix)
    desk.ask(text(500, 77))
    for branch in range(4):
        prompt = [*prefix, *text(100, 100 + branch)]
        served = desk.ask(prompt, exact=Exact.STRICT)
        assert served.reread <= 100 + 64
        assert served.tokens == Desk(exact=False).ask(prompt, exact=Exact.STRICT).tokens
        desk.ask(text(500, 300 + branch))


def test_a_conversation_that_loses_its_slot_is_parked_and_comes_back_from_ram() -> None:
    desk, messages = Desk(), chat(5, 200)
    first = say(desk, messages)
    say(desk, [message("user", 700, 55)])
    again = say(desk, messages)
    assert (again.done.resume.source, again.tokens) == (Source.RAM, first.tokens)
    assert again.reread <= 64


def test_a_long_generation_is_rolled_back_into_its_middle() -> None:
    desk, prompt = Desk(), text(200)
    said = desk.ask(prompt, 2000).tokens
    branch = desk.ask([*prompt, *said[:1500], *text(30, 2)])
    assert branch.reread <= 30 + SLACK


def test_a_finished_turn_is_resumable_less_than_a_grid_step_before_its_end() -> None:
    desk, prompt = Desk(), text(200)
    said = desk.ask(prompt, 150).tokens
    desk.ask(text(300, 5))
    again = desk.ask([*prompt, *said, *text(20, 6)])
    assert (again.done.resume.source, again.done.resume.position) == (Source.RAM, 320)


def test_with_no_budget_nothing_is_kept_anywhere_but_a_live_append_still_goes_on() -> None:
    desk, prompt = Desk(ram=0), text(1000)
    first = desk.ask(prompt)
    assert desk.ask([*prompt, *first.tokens, *text(20, 3)]).reread == 21
    assert desk.ask(prompt).done.resume.source is Source.NONE
    assert desk.context.calls["save_checkpoint"] == desk.context.calls["save_block"] == 0


@pytest.mark.parametrize("ram", [64 * MIB, 0])
@pytest.mark.parametrize("kind", KINDS)
def test_several_choices_read_their_prompt_once(kind: StateKind, ram: int) -> None:
    desk, prompt = Desk(kind, slots=4, ram=ram), text(1000)
    served = [desk.submit(prompt, 8) for _ in range(4)]
    desk.run()
    assert sum(one.reread for one in served) <= 1000 + 3 * 64
    assert len({tuple(one.tokens) for one in served}) == 1


def test_waiting_for_shared_state_does_not_hold_up_other_requests() -> None:
    desk, prompt = Desk(slots=3), text(4000)
    served = [desk.submit(prompt), desk.submit(prompt), desk.submit(text(100, 9))]
    desk.core.step()
    assert [turn.request.id for turn in desk.core.waiting] == ["r1"]
    desk.run()
    assert all(one.ended for one in served)


def test_a_prompt_shorter_than_the_grid_is_served_and_never_parked() -> None:
    desk = Desk()
    assert desk.ask(text(20), 5).reread == 20
    assert desk.store.stats().ram.used == 0


@pytest.mark.parametrize("exact", BOTH)
def test_a_prefill_cut_off_at_60_percent_resumes_there(exact: Exact) -> None:
    desk, prompt = Desk(), text(5120)
    cut = desk.submit(prompt, exact=exact)
    while desk.core.slots[0].length < 3072:
        desk.core.step()
    desk.core.cancel("r0")
    assert cut.ended
    assert desk.ask(prompt, exact=exact).done.resume.position >= 3072


def test_a_prefill_cut_off_comes_back_from_ram_too() -> None:
    desk, prompt = Desk(), text(5120)
    desk.submit(prompt)
    while desk.core.slots[0].length < 3072:
        desk.core.step()
    desk.core.cancel("r0")
    desk.ask(text(200, 3))
    again = desk.ask(prompt)
    assert (again.done.resume.source, again.done.resume.position >= 3072) == (Source.RAM, True)


def test_with_reuse_off_every_prompt_is_read_from_its_first_token() -> None:
    desk, prompt = Desk(config=EngineConfig(reuse=False)), text(1000)
    for _ in range(2):
        done = desk.ask(prompt).done
        assert (done.timings.prompt_n, done.resume.source) == (1000, Source.NONE)
    assert "self-check" in done.resume.reason
    assert desk.store.stats().ram.used == 0


def test_what_is_read_again_is_told_apart_from_what_is_new() -> None:
    desk, prompt = Desk(), text(1000)
    desk.ask(prompt)
    resume = desk.ask([*prompt[:900], *text(300, 2)]).done.resume
    assert (resume.common, resume.position, resume.reread, resume.diverged) == (900, 768, 132, True)
    assert "768" in resume.reason
    assert "900" in resume.reason


def test_a_difference_is_found_in_parked_blocks_too() -> None:
    desk, prompt = Desk(), text(1000)
    desk.ask(prompt)
    desk.ask(text(300, 5))
    resume = desk.ask([*prompt[:900], *text(300, 2)]).done.resume
    assert (resume.source, resume.common, resume.diverged) == (Source.RAM, 900, True)


@pytest.mark.parametrize("exact", BOTH)
def test_a_tail_that_is_tokenized_differently_costs_itself_alone(exact: Exact) -> None:
    desk, prompt = Desk(), text(2000)
    said = desk.ask(prompt, 30, exact=exact).tokens
    desk.ask(text(300, 5))
    again = desk.ask([*prompt, *said[:-3], 1, 2, 3], exact=exact)
    assert again.reread <= 30 + 64


@pytest.mark.parametrize("kind", KINDS)
def test_twenty_rollbacks_to_one_point_give_the_same_answer_each_time(kind: StateKind) -> None:
    desk, prompt = Desk(kind, exact=False), text(700)
    first = desk.ask(prompt, 200, exact=Exact.STRICT)
    for _ in range(20):
        assert desk.ask(prompt, 200, exact=Exact.STRICT).tokens == first.tokens


@pytest.mark.parametrize("kind", KINDS)
def test_a_slot_that_is_used_again_holds_nothing_of_the_one_before(kind: StateKind) -> None:
    desk = Desk(kind, exact=False, ram=0)
    desk.ask(text(1500), 100)
    assert desk.ask(text(300, 2), 50).tokens == Desk(kind, exact=False).ask(text(300, 2), 50).tokens


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_prompt_that_shares_80_percent_is_answered_as_if_it_were_the_first(kind: StateKind) -> None:
    desk, prompt = Desk(kind, exact=False), text(1000)
    desk.ask(prompt, exact=Exact.STRICT)
    second = [*prompt[:800], *text(200, 2)]
    mine = desk.ask(second, 20, exact=Exact.STRICT)
    assert mine.tokens == Desk(kind, exact=False).ask(second, 20, exact=Exact.STRICT).tokens
    assert mine.reread <= 200 + SLACK


def test_a_conversation_pins_one_checkpoint_of_a_kind_however_long_it_grows() -> None:
    desk, messages = Desk(), [message("system", 300, 1)]
    for turn in range(6):
        messages = [*messages, message("user", 150, 10 + turn)]
        say(desk, messages)
        messages = [*messages, message("assistant", 100, 50 + turn)]
    assert sum(entry.pinned for entry in desk.store.entries()) == 1


def test_the_interval_follows_the_budget_and_is_fine_where_there_is_room() -> None:
    assert Desk().core.placer.interval == 256
    assert Desk(ram=20_000).core.placer.interval > 512
    assert Desk(StateKind.ATTENTION).core.placer.interval == 0
    assert Desk(config=EngineConfig(checkpoint_interval=192)).core.placer.interval == 192


def test_counters_agree_with_what_the_context_decoded() -> None:
    desk, prompt = Desk(), text(1000)
    served = [desk.ask(prompt), desk.ask(prompt), desk.ask(text(300, 2)), desk.ask(prompt)]
    counters = desk.core.counters
    assert counters.read_tokens == sum(one.reread for one in served)
    assert counters.prompt_tokens == 1000 * 3 + 300
    cached = counters.cached_live + counters.cached_ram + counters.cached_disk
    assert cached + counters.read_tokens == counters.prompt_tokens
    assert desk.decoded() == counters.read_tokens + counters.generated_tokens - len(served)
