"""One conformance suite for every way to manage a window, and what each does in particular."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keeper.archive import Archive
from keeper.errors import MessageTooLarge, UnknownStrategy, UpstreamFailed, WindowTooSmall
from keeper.message import Message
from keeper.noting import MARK
from keeper.strategies.base import Situation
from keeper.strategies.registry import make, names
from keeper.window import cut_from_json
from tests.keeper.counting import count
from tests.keeper.helpers import a, called, run, s, situation_of, t, u

MANAGED = [name for name in names() if name != "pass_through"]


def view(name: str, situation: Situation) -> Any:
    return run(make(name).view(situation))


def dicts(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    return [message.as_dict() for message in messages]


def long_chat(exchanges: int = 40) -> list[dict[str, Any]]:
    turns = [m for i in range(exchanges) for m in (u(f"Item {i}: It rained over the mill. " * 4), a(f"Noted {i}."))]
    return [s(), u("Read the items."), a("Yes."), *turns, u("Item 99: nothing.")]


def tool_agent(rounds: int = 40) -> list[dict[str, Any]]:
    turns = [
        m
        for i in range(rounds)
        for m in (called(str(i), "read", f'{{"path": "f{i}.py"}}'), t(str(i), f"line {i} of the file. " * 12))
    ]
    return [s(), u("Fix the parser."), *turns]


def test_the_registry_makes_every_strategy_by_name_and_lists_them_for_an_unknown_one() -> None:
    for name in names():
        assert make(name).name == name and make(name.replace("_", "-")).name == name
    with pytest.raises(UnknownStrategy, match="in_place"):
        make("sliding")


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize(
    "history", [long_chat(2), tool_agent(2), [u("hello")], [s(), u("hello")]], ids=["chat", "tools", "one", "two"]
)
def test_what_fits_is_shown_whole(name: str, history: list[dict[str, Any]]) -> None:
    assert dicts(view(name, situation_of(history)).messages) == history


@pytest.mark.parametrize("name", MANAGED)
@pytest.mark.parametrize("history", [long_chat(), tool_agent()], ids=["chat", "tools"])
def test_what_does_not_fit_is_cut_and_the_newest_message_stays(name: str, history: list[dict[str, Any]]) -> None:
    situation = situation_of(history, window=2048)
    found = view(name, situation)
    assert count(dicts(found.messages)) <= situation.limit
    assert found.cut and found.reason
    assert dicts(found.messages)[-1]["content"].startswith(history[-1]["content"])
    assert dicts(found.messages)[0]["content"].startswith(history[0]["content"]), "the system message stays first"
    assert dicts(found.messages)[1]["role"] != "tool", "no result without its call"


@pytest.mark.parametrize("name", MANAGED)
@pytest.mark.parametrize("history", [long_chat(), tool_agent()], ids=["chat", "tools"])
def test_asked_again_it_gives_the_same_view_and_does_nothing_anew(name: str, history: list[dict[str, Any]]) -> None:
    archive = Archive()
    first = view(name, situation_of(history, window=2048, archive=archive))
    again = situation_of(history, window=2048, archive=archive)
    second = view(name, again)
    assert second.messages == first.messages
    assert not second.cut and again.counters == {}


@pytest.mark.parametrize("name", MANAGED)
@pytest.mark.parametrize("kind", ["chat", "tools"])
def test_between_cuts_a_view_only_grows_at_its_end(name: str, kind: str) -> None:
    archive, before = Archive(), ()
    whole = long_chat() if kind == "chat" else tool_agent()
    step = 2
    grown = 0
    for end in range(4 if kind == "chat" else 2, len(whole) + 1, step):
        found = view(name, situation_of(whole[:end], window=2048, archive=archive))
        if before and not found.cut:
            assert found.messages[: len(before)] == before, f"{name} at {end}"
            grown += 1
        before = found.messages
    assert grown > len(whole) // step // 2


@pytest.mark.parametrize("name", MANAGED)
def test_a_message_larger_than_the_window_is_an_error_that_names_it(name: str) -> None:
    history = [*long_chat(3), a("Noted."), u("word " * 3000)]
    with pytest.raises((MessageTooLarge, WindowTooSmall), match="window") as error:
        view(name, situation_of(history, window=2048))
    assert error.value.limit <= 1536
    if isinstance(error.value, MessageTooLarge):
        assert error.value.param == f"messages[{len(history) - 1}]" and error.value.tokens > 3000


@pytest.mark.parametrize("name", MANAGED)
def test_an_upstream_that_fails_costs_no_history(name: str) -> None:
    """Either the request fails with the upstream's word, or it is answered with what fits; the next one goes on."""

    def dead(_: list[dict[str, Any]]) -> str:
        raise UpstreamFailed("gone", 503)

    archive = Archive()
    history = long_chat()
    try:
        found = view(name, situation_of(history, dead, window=2048, archive=archive))
        assert count(dicts(found.messages)) <= 1536
    except UpstreamFailed as error:
        assert error.status == 503
    found = view(name, situation_of(history, window=2048, archive=archive))
    assert count(dicts(found.messages)) <= 1536


ROLE_TEXT = st.tuples(st.sampled_from(["user", "assistant", "tool", "system", "call"]), st.integers(0, 150))


def wild(parts: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """Any roles in any order: not alternating, results without calls, system messages anywhere, empty content."""
    made = []
    for i, (role, words) in enumerate(parts):
        text = "Is it so? " * (words // 3) if i % 5 == 0 else f"word{i} " * words
        found = {"role": role, "content": text}
        if role == "call":
            found = called(str(i), "read", "{}", text or None)
        elif role == "tool":
            found = t(str(i - 1), text)
        made.append(found)
    return made


@pytest.mark.parametrize("name", MANAGED)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts=st.lists(ROLE_TEXT, min_size=1, max_size=40),
    answers=st.sampled_from(["NONE", "doma86 = 5", "+ RULE " + "long " * 60, ""]),
)
def test_a_view_never_exceeds_the_window_whatever_the_history(name: str, parts: list[tuple[str, int]], answers: str) -> None:
    archive, history = Archive(), wild(parts)
    for end in {max(1, len(history) // 2), len(history)}:
        situation = situation_of(history[:end], lambda _: answers, window=1024, archive=archive)
        try:
            found = view(name, situation)
        except (MessageTooLarge, WindowTooSmall) as error:
            assert error.tokens >= error.limit
            continue
        assert count(dicts(found.messages)) <= situation.limit
        newest = (history[end - 1]["content"] or "").strip()
        assert any(newest in message.text for message in found.messages), "system messages are merged, the rest stands as it is"


# --- in particular ------------------------------------------------------------------------------------------------------


def last_cut(situation: Situation) -> Any:
    mark = situation.past.latest(MARK)
    assert mark is not None
    return cut_from_json(mark.body)


def test_notes_are_due_by_tokens_or_by_batches_before_the_window_is_full() -> None:
    history = long_chat(12)
    by_tokens = situation_of(history, window=8192, notes_every_tokens=300)
    assert view("in_place", by_tokens).cut and by_tokens.counters["note_calls"] == 1
    by_batches = situation_of(history, window=8192, notes_every_batches=10)
    assert view("in_place", by_batches).cut
    neither = situation_of(history, window=8192)
    assert not view("in_place", neither).cut and neither.counters == {}


def test_a_failed_notes_call_is_let_pass_while_the_request_fits() -> None:
    def dead(_: list[dict[str, Any]]) -> str:
        raise UpstreamFailed("gone", 503)

    history = long_chat(12)
    found = view("in_place", situation_of(history, dead, window=8192, notes_every_tokens=300))
    assert not found.cut and dicts(found.messages) == history


def test_the_notes_request_is_the_view_of_the_earlier_turns_and_one_message_more() -> None:
    archive = Archive()
    sent: list[list[dict[str, Any]]] = []

    def answer(messages: list[dict[str, Any]]) -> str:
        sent.append(messages)
        return "NONE"

    history, views = long_chat(), []
    for end in range(4, len(history) + 1, 2):
        views.append(dicts(view("in_place", situation_of(history[:end], answer, window=2048, archive=archive)).messages))
    assert sent
    for request in sent:
        assert any(request[: len(earlier)] == earlier for earlier in views), "it starts with a main call that was made"


def test_a_question_that_waits_is_never_moved_out_of_view() -> None:
    archive = Archive()
    question = "Which value does doma86 hold, and which did it hold on Monday?"
    history = [s(), u("Read the files."), a("Yes."), u(question)]
    for i in range(60):
        history += [called(str(i), "read", "{}"), t(str(i), f"line {i} of the file. " * 12)]
        found = view("in_place", situation_of(history, window=1536, archive=archive))
        assert any(question in message["content"] for message in dicts(found.messages) if message["content"]), i
    assert found.start > 4
    answered = [*history, a("It holds 342."), u("Thanks. Item 1: rain.")]
    for i in range(20):
        answered += [a("Noted."), u(f"Item {i}: It rained over the mill. " * 6)]
    found = view("in_place", situation_of(answered, window=1536, archive=archive))
    assert not any(question in message["content"] for message in dicts(found.messages)[2:] if message["content"])
    assert "STILL OPEN" not in dicts(found.messages)[1]["content"], "an answered question goes"


def test_system_messages_from_the_middle_stay_when_their_place_leaves_the_view() -> None:
    history = long_chat()
    history.insert(9, s("From now on answer in French."))
    found = view("in_place", situation_of(history, window=2048))
    assert found.start > 9
    assert dicts(found.messages)[0]["content"] == "You keep the books.\n\nFrom now on answer in French."


def test_two_leading_system_messages_are_shown_as_one() -> None:
    history = [s("One."), s("Two."), *long_chat(2)[1:]]
    assert dicts(view("in_place", situation_of(history)).messages)[0] == s("One.\n\nTwo.")


def test_a_task_that_takes_most_of_the_window_is_shown_as_an_excerpt() -> None:
    task = "Do this: " + "detail " * 1400 + "the end."
    history = [s(), u(task), a("Yes."), *long_chat()[3:]]
    situation = situation_of(history, window=3072)
    found = dicts(view("in_place", situation).messages)
    assert found[1]["content"].startswith("Do this: detail") and "recall finds them" in found[1]["content"]
    assert "the end." in found[1]["content"]


def test_turns_alternate_after_a_cut() -> None:
    for history in (long_chat(), tool_agent()):
        roles = [m["role"] for m in dicts(view("in_place", situation_of(history, window=2048)).messages)]
        assert not any(one == other == "user" for one, other in pairwise(roles))


def test_more_notes_than_fit_are_kept_and_the_newest_are_shown() -> None:
    replies = iter(["\n".join(f"name{i} = value {i}" for i in range(300))])
    told = " ".join(f"name{i} is value {i}." for i in range(300))
    history = [s(), u("Read."), a("Yes."), u(told[:2600]), a("Noted."), *long_chat()[3:]]
    situation = situation_of(history, lambda _: next(replies, "NONE"), window=2048)
    found = dicts(view("in_place", situation).messages)
    cut = last_cut(situation)
    assert len(cut.notes.state) > 100
    assert cut.shown is None or f"({len(cut.notes.state) - cut.shown} older lines are not shown" in found[1]["content"]


def test_drop_keeps_nothing_of_what_it_drops() -> None:
    found = dicts(view("drop", situation_of(long_chat(), window=2048)).messages)
    assert found[0] == s() and "Item 0:" not in str(found) and "NOTES" not in str(found)


def test_compact_stubs_old_output_first_and_drops_turns_only_after() -> None:
    history = tool_agent(14)
    situation = situation_of(history, window=2048)
    found = dicts(view("compact", situation).messages)
    results = [m["content"] for m in found if m["role"] == "tool"]
    assert len(results) == 14, "stubbing was enough"
    assert results[0] == f"[{len(history[3]['content'])} characters of output removed]"
    assert results[-1] == history[-1]["content"]


def test_summarise_replaces_the_older_turns_by_the_reply_whatever_it_says() -> None:
    archive, history = Archive(), long_chat()
    for end in range(4, len(history) + 1, 2):
        situation = situation_of(history[:end], lambda _: "Next I open the file.", window=2048, archive=archive)
        found = view("summarise", situation)
        if found.cut:
            break
    shown = dicts(found.messages)
    assert shown[:3] == [s(), u("SUMMARY OF THE CONVERSATION SO FAR\nNext I open the file."), a("Noted.")]
    assert shown[-1] == history[end - 1] and situation.counters["summaries"] == 1


def test_summarise_drops_where_the_model_says_nothing() -> None:
    situation = situation_of(long_chat(), lambda _: "", window=2048)
    found = dicts(view("summarise", situation).messages)
    assert "SUMMARY" not in str(found) and found[-1]["content"] == "Item 99: nothing."


def test_retrieval_shows_matches_at_a_question_and_the_same_ones_ever_after() -> None:
    archive = Archive()
    history = [
        s(),
        u("Item 1: Bo recorded doma86 at 342. The lamps were lit."),
        a("Noted."),
        u("What value does doma86 hold now?"),
    ]
    asked = dicts(view("retrieval", situation_of(history, archive=archive)).messages)
    assert asked[-1]["content"].endswith("- [item 1] Item 1: Bo recorded doma86 at 342. The lamps were lit.")
    later = [*history, a("342"), u("Item 2: doma86 fell by 2.")]
    again = dicts(view("retrieval", situation_of(later, archive=archive)).messages)
    assert again[: len(asked)] == asked
