"""The keeper as a client meets it: searches it never sees, replies asked for again, thinking, and every kind of bad history."""

import asyncio
import json
from typing import Any

import pytest

from keeper.chunks import Assembly, reply_of
from keeper.errors import ArchiveFailed, BadHistory, MessageTooLarge, UpstreamFailed
from keeper.library import verify
from keeper.message import History
from keeper.model import Body, Reply
from keeper.recall import NO_ROOM, STOP, tool_name
from tests.keeper.agent import Model, ask, keeper_of, one_turn
from tests.keeper.counting import count
from tests.keeper.helpers import a, called, s, t, u
from tests.keeper.reader import call, text_of

LEDGER = [s(), u("Item 1: doma86 = 342 by Ada. It was Monday."), a("Noted.")]


def calls(*found: dict[str, Any], text: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "tool_calls": list(found)}


def scripted(*replies: dict[str, Any], **settings: Any) -> tuple[Any, Model]:
    left = iter(replies)
    model = Model(lambda _: next(left))
    return keeper_of(model, **settings), model


# --- searches -----------------------------------------------------------------------------------------------------------


def test_a_search_is_answered_between_and_the_agent_sees_neither_call_nor_tool() -> None:
    keeper, model = scripted(calls(call("recall", {"query": "doma86"}, 1)), a("342"))
    turn = ask(keeper, model, [*LEDGER, u("doma86?")], tools=[{"type": "function", "function": {"name": "read"}}])
    assert turn.reply.message.as_dict() == a("342") and turn.reply.finish == "stop"
    assert [tool["function"]["name"] for tool in model.sent[0]["tools"]] == ["read", "recall"]
    result = model.sent[1]["messages"][-1]
    assert result["role"] == "tool" and result["content"].startswith("1 match.\n[item 1, user]")
    assert turn.report()["searches"] == 1 and turn.report()["calls"] == 2


def test_the_search_tool_makes_way_for_an_agents_tool_of_its_name() -> None:
    own = [{"type": "function", "function": {"name": "recall"}}]
    keeper, model = scripted(calls(call("recall", {"query": "x"}, 1)))
    turn = ask(keeper, model, [*LEDGER, u("doma86?")], tools=own)
    assert [tool["function"]["name"] for tool in model.sent[0]["tools"]] == ["recall", "recall_archive"]
    assert [c.name for c in turn.reply.message.tool_calls] == ["recall"], "the agent's own call goes to the agent"
    assert tool_name(["recall", "recall_archive"]) == "recall_archive_2"


def test_a_strategy_without_search_adds_no_tool() -> None:
    keeper, model = scripted(a("x"), strategy="drop")
    ask(keeper, model, [u("hello")])
    assert "tools" not in model.sent[0]


def test_searches_beside_the_agents_calls_wait_for_its_next_request() -> None:
    keeper, model = scripted(calls(call("recall", {"query": "doma86"}, 1), call("read", {}, 2)), a("342"))
    history = [*LEDGER, u("doma86?")]
    turn = ask(keeper, model, history)
    assert [c.name for c in turn.reply.message.tool_calls] == ["read"] and turn.reply.finish == "tool_calls"
    ask(keeper, model, [*history, turn.reply.message.as_dict(), t("call_2", "nothing")])
    assert "shown again" in text_of(model.sent[1]["messages"][3]) and "[item 1, user]" in text_of(model.sent[1]["messages"][3])


def test_text_said_before_a_search_stays_in_the_reply() -> None:
    keeper, model = scripted(calls(call("recall", {"query": "doma86"}, 1), text="Let me look. "), a("It is 342."))
    assert ask(keeper, model, [*LEDGER, u("doma86?")]).reply.message.text == "Let me look. It is 342."


@pytest.mark.parametrize(
    "arguments", ["", "{", "[]", '{"q": "x"}', '{"query": 5}', '{"query": ""}', '{"query": "x", "before": "soon"}']
)
def test_a_search_that_cannot_be_read_says_how_one_looks(arguments: str) -> None:
    broken = calls({"id": "1", "type": "function", "function": {"name": "recall", "arguments": arguments}})
    keeper, model = scripted(broken, a("342"))
    ask(keeper, model, [*LEDGER, u("doma86?")])
    assert model.sent[1]["messages"][-1]["content"].startswith('A search is {"query": "words"}')


def test_numbers_in_a_search_may_come_as_text() -> None:
    keeper, model = scripted(calls(call("recall", {"query": "doma86", "item": "1", "limit": "3", "before": ""}, 1)), a("342"))
    ask(keeper, model, [*LEDGER, u("doma86?")])
    assert model.sent[1]["messages"][-1]["content"].startswith("1 match.")


def test_limits_say_so_where_the_content_has_no_numbers() -> None:
    keeper, model = scripted(calls(call("recall", {"query": "doma86", "before": 9}, 1)), a("342"))
    ask(keeper, model, [s(), u("doma86 = 342."), a("Noted."), u("doma86?")])
    assert "carries numbers of its own" in model.sent[1]["messages"][-1]["content"]


def test_results_are_cut_to_the_room_there_is_and_say_so() -> None:
    stories = [m for i in range(1, 40) for m in (u(f"Item {i}: Bo added {i} to doma86. " + "It rained. " * 10), a("Noted."))]
    searches = [calls(call("recall", {"query": "doma86", "limit": 39, "before": 60 - n}, n)) for n in range(6)]
    left = iter(searches)

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        return a("NONE") if text_of(body["messages"][-1]).startswith("NOTES") else next(left, a("I know."))

    model = Model(answer)
    keeper = keeper_of(model, window=2048)
    turn = ask(keeper, model, [s(), u("Read."), a("Yes."), *stories, u("doma86?")])
    assert turn.reply.message.text == "I know."
    assert all(count(body["messages"], body["tools"]) <= 1536 for body in model.sent)
    results = [m["content"] for m in model.sent[-1]["messages"] if m["role"] == "tool"]
    assert results and all(result.startswith("CUT SHORT") or result == NO_ROOM for result in results)


def test_a_model_that_never_stops_searching_is_stopped() -> None:
    number = iter(range(10_000))
    model = Model(lambda _: calls(call("recall", {"query": f"word{next(number)}"}, 1)))
    turn = ask(keeper_of(model, window=8192, searches_a_turn=5), model, [*LEDGER, u("doma86?")])
    assert turn.reply.message.text == "" and turn.reply.finish == "stop" and not turn.reply.message.tool_calls
    assert len(model.sent) == 9, "five searches, three refusals, and the one that ends it"
    assert [m["content"] for m in model.sent[-1]["messages"] if m["role"] == "tool"][-1] == STOP


# --- thinking -----------------------------------------------------------------------------------------------------------

ALL_THINKING = {**a(""), "reasoning_content": "hm " * 50, "finish_reason": "length"}


def test_a_reply_that_was_all_thinking_is_asked_for_again_without() -> None:
    keeper, model = scripted(ALL_THINKING, a("342"))
    turn = ask(keeper, model, [*LEDGER, u("doma86?")], chat_template_kwargs={"x": 1})
    assert turn.reply.message.text == "342"
    assert model.sent[1] == {**model.sent[0], "chat_template_kwargs": {"x": 1, "enable_thinking": False}}
    assert keeper.counters["thinking_dropped"] == 1


def test_a_notes_reply_that_was_all_thinking_is_asked_for_again_without() -> None:
    stories = [m for i in range(12) for m in (u(f"Item {i}: Bo recorded doma86 at {i}."), a("Noted."))]
    left = iter([dict(ALL_THINKING), a("doma86 = 11 by Bo")])
    model = Model(lambda body: next(left) if text_of(body["messages"][-1]).startswith("NOTES") else a("fine"))
    turn = ask(keeper_of(model, window=2048, notes_every_tokens=200), model, [*stories, u("more")])
    assert "doma86 = 11 by Bo" in text_of(turn.body["messages"][0])
    assert model.sent[1] == {**model.sent[0], "chat_template_kwargs": {"enable_thinking": False}}


def test_it_is_asked_for_again_once() -> None:
    keeper, model = scripted(ALL_THINKING, dict(ALL_THINKING))
    turn = ask(keeper, model, [*LEDGER, u("doma86?")])
    assert turn.reply.message.text == "" and turn.reply.finish == "length" and len(model.sent) == 2


def test_a_thinking_effort_is_set_on_every_call_that_passes_and_nothing_else_is_touched() -> None:
    keeper, model = scripted(a("x"), thinking_effort="medium")
    ask(keeper, model, [u("hello")], seed=7, unknown={"a": 1})
    body = {k: v for k, v in model.sent[0].items() if k != "tools"}
    assert body == {"model": "m", "messages": [u("hello")], "seed": 7, "unknown": {"a": 1}, "reasoning_effort": "medium"}


def test_reasoning_leaves_the_view_and_stays_out_of_the_archive_unless_it_is_kept() -> None:
    thought = {**a("Noted."), "reasoning_content": "because"}
    history = [s(), u("Item 1: rain."), thought, u("Item 2: rain.")]
    keeper, model = scripted(a("x"))
    ask(keeper, model, history)
    assert model.sent[0]["messages"][2] == a("Noted.")
    keeper, model = scripted(a("x"), keep_reasoning=True)
    ask(keeper, model, history)
    assert model.sent[0]["messages"][2] == thought
    keeper, model = scripted(a("x"), strategy="pass_through")
    ask(keeper, model, history)
    assert model.sent[0]["messages"] == history


def test_notes_are_written_with_thinking_even_where_the_client_switched_it_off() -> None:
    model = Model(lambda body: a("NONE"))
    keeper = keeper_of(model, window=2048, notes_every_tokens=200)
    stories = [m for i in range(12) for m in (u(f"Item {i}: It rained over the mill."), a("Noted."))]
    ask(
        keeper,
        model,
        [*stories, u("Item 13: rain.")],
        chat_template_kwargs={"enable_thinking": False},
        max_tokens=50,
        stop=["x"],
        n=1,
    )
    notes, main = model.sent[0], model.sent[-1]
    assert text_of(notes["messages"][-1]).startswith("NOTES REQUEST")
    assert notes["chat_template_kwargs"] == {"enable_thinking": True} and main["chat_template_kwargs"] == {
        "enable_thinking": False
    }
    assert "stop" not in notes and notes["tools"] == main["tools"] and notes["max_tokens"] == 512


# --- bad input ----------------------------------------------------------------------------------------------------------

ODD: dict[str, list[dict[str, Any]]] = {
    "two user messages in a row": [u("one"), u("two")],
    "two assistant messages in a row": [u("one"), a("x"), a("y"), u("two")],
    "begins with the assistant": [a("Hello!"), u("two")],
    "ends with the assistant": [u("one"), a("I was about to")],
    "a tool result without a call": [u("one"), t("nobody", "42"), u("two")],
    "a call without its result": [u("one"), called("1"), u("two")],
    "an image": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}],
    "empty content": [u(""), a(""), u("two")],
    "null content with tool calls": [u("one"), called("1"), t("1", "42")],
    "no content at all": [u("one"), {"role": "assistant"}, u("two")],
    "two system messages": [s("One."), s("Two."), u("hello")],
    "a system message in the middle": [s("One."), u("hello"), a("x"), s("Two."), u("more")],
    "only a system message": [s("One.")],
    "an unknown role": [{"role": "ipython", "content": "x"}, u("two")],
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_history_passes_as_it_is_while_it_fits_and_is_archived_whole(name: str) -> None:
    keeper, model = scripted(a("fine"))
    history = ODD[name]
    assert ask(keeper, model, history).reply.message.text == "fine"
    merged = [s("One.\n\nTwo."), u("hello")] if name == "two system messages" else history
    assert model.sent[0]["messages"] == merged
    stored = [m.as_dict() for m in keeper.archive.messages(keeper.archive.enter(History(history)))]
    assert stored == history and verify(keeper.archive).problems == ()


@pytest.mark.parametrize("name", [name for name in ODD if name != "only a system message"])
def test_an_odd_history_that_outgrows_the_window_is_cut_and_answered(name: str) -> None:
    stories = [m for i in range(60) for m in (u(f"Item {i}: It rained over the mill. " * 3), a("Noted."))]
    model = Model(lambda body: a("NONE" if text_of(body["messages"][-1]).startswith("NOTES") else "fine"))
    turn = ask(keeper_of(model, window=2048), model, [*ODD[name], *stories, *ODD[name]])
    assert turn.reply.message.text == "fine" and turn.view.cut
    assert all(count(body["messages"], body["tools"]) <= 2048 for body in model.sent)


@pytest.mark.parametrize("messages", [None, [], "hello", {"role": "user"}])
def test_a_body_without_messages_is_named(messages: Any) -> None:
    keeper, _ = scripted()
    with pytest.raises(BadHistory, match="at least one message"):
        asyncio.run(keeper.prepare({"messages": messages}))


def test_a_conversation_edited_in_the_middle_forks_with_the_notes_of_its_shared_part() -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        notes = text_of(body["messages"][-1]).startswith("NOTES")
        return a("+ RULE Rule: doma86 is confidential." if notes else "Noted.")

    model = Model(answer)
    keeper = keeper_of(model, window=2048)
    history: list[dict[str, Any]] = [s(), u("Read.")]
    for i in range(40):
        ask(keeper, model, history)
        history += [a("Noted."), u(f"Item {i}: It rained over the mill. " * 4 + "Rule: doma86 is confidential.")]
    cuts = keeper.counters["cuts"]
    assert cuts >= 2
    edited = [*history[:40], u("Item 99: another story."), a("Noted."), u("doma86?")]
    turn = ask(keeper, model, edited)
    assert "- Rule: doma86 is confidential." in text_of(turn.body["messages"][1])
    assert "Item 99: another story." in str(turn.body["messages"])
    again = ask(keeper, model, history)
    assert "Item 39:" in str(again.body["messages"]) and "Item 99" not in str(again.body["messages"])


def test_two_clients_at_once_on_one_conversation_take_its_notes_once() -> None:
    class Slow(Model):
        async def complete(self, body: Body) -> Reply:
            await asyncio.sleep(0.01)
            return await super().complete(body)

    model = Slow(lambda body: a("NONE" if text_of(body["messages"][-1]).startswith("NOTES") else "fine"))
    keeper = keeper_of(model, window=2048)
    stories = [m for i in range(20) for m in (u(f"Item {i}: It rained over the mill. " * 4), a("Noted."))]

    async def both() -> Any:
        one = one_turn(keeper, model, {"messages": [*stories, u("Client one.")]})
        other = one_turn(keeper, model, {"messages": [*stories, u("Client two.")]})
        return await asyncio.gather(one, other)

    turns = asyncio.run(both())
    assert [turn.reply.message.text for turn in turns] == ["fine", "fine"]
    alone = Slow(model.answer)
    ask(keeper_of(alone, window=2048), alone, [*stories, u("Client one.")])
    notes = [body for body in model.sent if text_of(body["messages"][-1]).startswith("NOTES")]
    assert len(notes) == len([b for b in alone.sent if text_of(b["messages"][-1]).startswith("NOTES")])
    assert verify(keeper.archive).problems == ()


def test_an_upstream_that_fails_in_a_notes_call_fails_the_request_only_where_it_must() -> None:
    def dead(body: dict[str, Any]) -> dict[str, Any]:
        if text_of(body["messages"][-1]).startswith("NOTES"):
            raise UpstreamFailed("gone", 503)
        return a("fine")

    stories = [m for i in range(12) for m in (u(f"Item {i}: It rained over the mill."), a("Noted."))]
    model = Model(dead)
    assert ask(keeper_of(model, window=4096, notes_every_tokens=200), model, [*stories, u("more")]).reply.message.text == "fine"
    with pytest.raises(UpstreamFailed):
        ask(keeper_of(model, window=768), model, [*stories, *stories, u("more")])


def test_a_message_larger_than_the_window_is_refused_and_archived_all_the_same() -> None:
    keeper, model = scripted(window=4096)
    huge = u("word " * 5000)
    with pytest.raises(MessageTooLarge, match="smaller pieces"):
        ask(keeper, model, [*LEDGER, huge], max_tokens=100)
    assert [m.as_dict() for m in keeper.archive.messages(keeper.archive.enter(History([*LEDGER, huge])))][-1] == huge


def test_an_archive_that_fails_fails_the_request_before_any_model_call() -> None:
    keeper, model = scripted(a("x"))
    keeper.close()
    with pytest.raises(ArchiveFailed):
        ask(keeper, model, [u("hello")])
    assert model.sent == []


def test_several_choices_are_answered_without_searches_and_the_first_is_recorded() -> None:
    keeper, model = scripted(a("x"))
    assert ask(keeper, model, [u("hello")], n=2).reply.message.text == "x"
    assert "tools" not in model.sent[0]


def test_a_reply_is_in_the_archive_when_the_turn_is_finished() -> None:
    keeper, model = scripted(a("342"))
    ask(keeper, model, [*LEDGER, u("doma86?")])
    assert keeper.archive.rows("SELECT count(*) FROM node")[0][0] == len(LEDGER) + 2
    ask_again, model_again = keeper, Model(lambda _: a("fine"))
    ask(ask_again, model_again, [*LEDGER, u("doma86?"), a("342"), u("Thanks.")])
    assert keeper.archive.rows("SELECT count(*) FROM branch")[0][0] == 1, "the echo is the same message"


# --- streamed replies ---------------------------------------------------------------------------------------------------


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": "1",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **more,
    }


def part(index: int, name: str = "", arguments: str = "", call_id: str = "") -> dict[str, Any]:
    return {
        "tool_calls": [
            {"index": index, **({"id": call_id} if call_id else {}), "function": {"name": name, "arguments": arguments}}
        ]
    }


def test_streamed_text_passes_at_once_and_search_calls_never() -> None:
    assembly = Assembly(frozenset({"recall"}))
    stream = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        chunk(part(0, "recall", "", "c0")),
        chunk(part(0, "", '{"query": "x"}')),
        chunk(part(1, "read", "", "c1")),
        chunk(part(1, "", "{}")),
        chunk({}, "tool_calls"),
        {
            "id": "1",
            "choices": [],
            "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
        },
    ]
    shown = [found for one in stream if (found := assembly.feed(one)) is not None]
    assert [found["choices"][0]["delta"] for found in shown[:3]] == [
        stream[0]["choices"][0]["delta"],
        {"content": "Hel"},
        {"content": "lo"},
    ]
    seen = [call for found in shown[3:] for call in found["choices"][0]["delta"]["tool_calls"]]
    assert [(call["index"], call["function"]["name"]) for call in seen] == [(0, "read"), (0, "")], (
        "numbered as if ours were not there"
    )
    assert "recall" not in json.dumps(shown) and assembly.ended and len(assembly.held) == 2
    reply = assembly.reply()
    assert [c.name for c in reply.message.tool_calls] == ["recall", "read"] and reply.message.text == "Hello"
    assert (reply.usage.prompt, reply.usage.cached, reply.usage.completion) == (9, 4, 2)


def test_of_several_streamed_choices_the_first_is_kept_and_the_others_pass() -> None:
    assembly = Assembly()
    other = {"id": "1", "choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    assert assembly.feed(other) is other and not assembly.ended
    assembly.feed(chunk({"content": "yes"}, "stop"))
    assert assembly.reply().message.text == "yes"


def test_a_stream_that_breaks_off_has_not_ended() -> None:
    assembly = Assembly()
    assembly.feed(chunk({"content": "Hel"}))
    assert not assembly.ended


def test_a_finish_beside_a_last_piece_of_text_is_split() -> None:
    assembly = Assembly()
    shown = assembly.feed(chunk({"content": "end"}, "stop"))
    assert shown is not None and shown["choices"][0] == {"index": 0, "delta": {"content": "end"}, "finish_reason": None}
    assert assembly.held[0]["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop"}


def test_a_completion_reads_as_a_reply() -> None:
    reply = reply_of({"choices": [{"message": {"content": "x", "reasoning_content": "r"}, "finish_reason": None}], "usage": None})
    assert (reply.message.text, reply.message.reasoning, reply.finish) == ("x", "r", "stop")
