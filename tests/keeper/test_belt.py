"""The tool tree in the keeper: groups opened between, tools that stay the same from request to request, and its bounds."""

import asyncio
import json
from typing import Any

import pytest

from keeper.belt import ENOUGH, WALK, forced
from keeper.chunks import Assembly
from keeper.message import History, Message, ToolCall, read
from keeper.past import Past
from tests.keeper.agent import Model, ask, keeper_of
from tests.keeper.counting import count
from tests.keeper.helpers import a, s, t, u
from tests.keeper.reader import call, text_of
from tests.keeper.test_tooltree import large, names, tool

TOOLS = [dict(found) for found in large().tools.values()]
ASKED = [s(), u("Please send it by mail.")]
MAIL = [f"mcp__mail__{verb}_entry" for verb in ("create", "delete", "list", "search", "update")]


def calls(*found: dict[str, Any], text: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "tool_calls": list(found)}


def opening(path: str, number: int = 1) -> dict[str, Any]:
    return calls(call("open_tools", {"path": path}, number))


def scripted(*replies: dict[str, Any], **settings: Any) -> tuple[Any, Model]:
    left = iter(replies)
    model = Model(lambda _: next(left))
    return keeper_of(model, **{"tool_tree": True, "window": 8192, **settings}), model


def shown(body: dict[str, Any]) -> list[str]:
    return names(body["tools"])


def walk_of(keeper: Any, history: list[dict[str, Any]]) -> Any:
    mark = Past(keeper.archive, keeper.archive.enter(History(history))).latest(WALK)
    return mark.body if mark else None


def test_a_group_is_opened_between_and_the_agent_sees_only_the_call_of_its_tool() -> None:
    keeper, model = scripted(opening("sql"), calls(call("mcp__sql__list_entry", {}, 2)))
    turn = ask(keeper, model, ASKED, tools=TOOLS)
    assert shown(model.sent[0]) == ["open_tools", *MAIL, "recall"]
    assert [name for name in shown(model.sent[1]) if "sql" in name] == [n.replace("mail", "sql") for n in MAIL]
    assert model.sent[1]["messages"][-1]["content"].startswith("Open: sql: mcp__sql__create_entry")
    assert [c.name for c in turn.reply.message.tool_calls] == ["mcp__sql__list_entry"]
    assert turn.report()["tool_openings"] == 1 and turn.reply.finish == "tool_calls"


def test_the_next_request_begins_with_the_tools_that_the_last_one_ended_with() -> None:
    keeper, model = scripted(opening("sql"), calls(call("mcp__sql__list_entry", {}, 2)), a("Done."), a("Good."))
    reply = ask(keeper, model, ASKED, tools=TOOLS).reply.message.as_dict()
    history = [*ASKED, reply, t("call_2", "rows")]
    ask(keeper, model, history, tools=TOOLS)
    ask(keeper, model, [*history, a("Done."), u("And the weather on the wiki?")], tools=TOOLS)
    assert model.sent[2]["tools"] == model.sent[1]["tools"] == model.sent[3]["tools"]
    assert walk_of(keeper, history)["useful"] == {"sql": 1}


def test_what_is_first_opened_stays_open_though_nothing_was_called() -> None:
    keeper, model = scripted(a("Yes."), a("Yes."))
    ask(keeper, model, ASKED, tools=TOOLS)
    ask(keeper, model, [*ASKED, a("Yes."), u("What of the weather?")], tools=TOOLS)
    assert model.sent[1]["tools"] == model.sent[0]["tools"]


def test_a_tool_of_a_closed_group_that_is_called_goes_to_the_agent_and_opens_its_group() -> None:
    keeper, model = scripted(calls(call("mcp__maps__list_entry", {}, 1)), a("There."))
    turn = ask(keeper, model, ASKED, tools=TOOLS)
    assert [c.name for c in turn.reply.message.tool_calls] == ["mcp__maps__list_entry"]
    ask(keeper, model, [*ASKED, turn.reply.message.as_dict(), t("call_1", "x")], tools=TOOLS)
    assert "mcp__maps__search_entry" in shown(model.sent[1])


def test_an_opening_beside_the_agents_calls_is_open_in_its_next_request() -> None:
    keeper, model = scripted(calls(call("open_tools", {"path": "sql"}, 1), call("mcp__mail__list_entry", {}, 2)), a("There."))
    turn = ask(keeper, model, ASKED, tools=TOOLS)
    assert [c.name for c in turn.reply.message.tool_calls] == ["mcp__mail__list_entry"]
    ask(keeper, model, [*ASKED, turn.reply.message.as_dict(), t("call_2", "x")], tools=TOOLS)
    assert "mcp__sql__list_entry" in shown(model.sent[1])


def test_openings_in_a_turn_are_bounded_and_a_model_that_opens_on_is_stopped() -> None:
    number = iter(range(1000))
    model = Model(lambda _: opening("nowhere", next(number)))
    turn = ask(keeper_of(model, tool_tree=True, window=16384, openings_a_turn=5), model, ASKED, tools=TOOLS)
    assert turn.reply.message.text == "" and turn.reply.finish == "stop" and not turn.reply.message.tool_calls
    assert [m["content"] for m in model.sent[-1]["messages"] if m["role"] == "tool"][-3:] == [ENOUGH] * 3
    assert (turn.report()["tool_openings"], turn.report()["tool_openings_refused"], len(model.sent)) == (5, 3, 9)


def test_an_opening_that_does_not_fit_is_answered_with_the_reason_and_nothing_outgrows_the_window() -> None:
    fat = [tool(f"sql__q{n}", "word " * 90) for n in range(8)]
    keeper, model = scripted(opening("sql"), a("Then not."), window=2560)
    turn = ask(keeper, model, ASKED, tools=[*TOOLS, *fat])
    assert model.sent[1]["messages"][-1]["content"].startswith("There is no room in the window for the tools of sql")
    assert model.sent[1]["tools"] == model.sent[0]["tools"] and turn.reply.message.text == "Then not."
    assert all(count(body["messages"], body["tools"]) <= 2560 * 3 // 4 for body in model.sent)


def test_a_group_that_does_not_fit_beside_the_others_closes_them() -> None:
    fat = [tool(f"sql__q{n}", "word " * 20) for n in range(8)]
    keeper, model = scripted(opening("sql"), a("Yes."), window=2560)
    ask(keeper, model, ASKED, tools=[*TOOLS, *fat])
    assert "mail closed for lack of room" in model.sent[1]["messages"][-1]["content"]
    assert not any("mail" in name for name in shown(model.sent[1])) and "sql__q1" in shown(model.sent[1])


@pytest.mark.parametrize("arguments", ["{", "[]", '"sql"', "null", '{"path": 7}'])
def test_arguments_that_cannot_be_read_are_answered(arguments: str) -> None:
    broken = calls({"id": "1", "type": "function", "function": {"name": "open_tools", "arguments": arguments}})
    keeper, model = scripted(broken, a("Well."))
    assert ask(keeper, model, ASKED, tools=TOOLS).reply.message.text == "Well."
    assert model.sent[1]["messages"][-1]["role"] == "tool" and model.sent[1]["messages"][-1]["content"]


def test_the_tool_that_a_request_names_is_shown_though_its_group_is_closed() -> None:
    keeper, model = scripted(a("x"))
    choice = {"type": "function", "function": {"name": "mcp__wiki__list_entry"}}
    ask(keeper, model, ASKED, tools=TOOLS, tool_choice=choice)
    assert shown(model.sent[0]) == ["open_tools", *MAIL, "mcp__wiki__list_entry", "recall"]
    assert forced({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [choice]}}) == ("mcp__wiki__list_entry",)
    assert forced("auto") == forced({"type": "function"}) == ()


@pytest.mark.parametrize(
    ("settings", "body"),
    [({"tool_tree": False}, {}), ({"strategy": "pass_through"}, {}), ({}, {"n": 2}), ({}, {"tools": TOOLS[:10]})],
    ids=["off", "pass_through", "choices", "few"],
)
def test_all_tools_are_shown_where_the_tree_is_off_or_cannot_be_walked(settings: dict[str, Any], body: dict[str, Any]) -> None:
    keeper, model = scripted(a("x"), **settings)
    given = {"tools": TOOLS, **body}
    ask(keeper, model, ASKED, **given)
    assert [name for name in shown(model.sent[0]) if name != "recall"] == names(given["tools"])
    assert walk_of(keeper, ASKED) is None


def test_a_strategy_without_search_has_the_tree_alone() -> None:
    keeper, model = scripted(opening("sql"), a("x"), strategy="drop")
    ask(keeper, model, ASKED, tools=TOOLS)
    assert shown(model.sent[0]) == ["open_tools", *MAIL] and len(shown(model.sent[1])) == 11


def test_the_keepers_own_calls_have_the_tools_of_the_main_call() -> None:
    stories = [m for i in range(30) for m in (u(f"Item {i}: It rained over the mill. " * 4), a("Noted."))]
    model = Model(lambda body: a("NONE" if text_of(body["messages"][-1]).startswith("NOTES") else "fine"))
    ask(keeper_of(model, window=4096, tool_tree=True), model, [s(), *stories, u("Send mail.")], tools=TOOLS)
    assert len(model.sent) >= 2 and all(body["tools"] == model.sent[-1]["tools"] for body in model.sent)


def test_looking_ahead_shows_the_open_groups_and_saves_no_walk() -> None:
    keeper, model = scripted(a("Yes."))
    body = {"model": "m", "messages": ASKED, "tools": TOOLS}
    ahead = asyncio.run(keeper.foresee(body, read(a("Yes.")), u("sql"), None, model.complete))
    assert ahead is not None and shown(ahead[0])[0] == "open_tools"
    assert walk_of(keeper, [*ASKED, a("Yes.")]) is None
    ask(keeper, model, ASKED, tools=TOOLS)
    ahead = asyncio.run(keeper.foresee(body, read(a("Yes.")), u("sql"), None, model.complete))
    assert ahead is not None and ahead[0]["tools"] == model.sent[0]["tools"]


def test_a_streamed_opening_never_passes() -> None:
    keeper, model = scripted(a("x"))
    turn = asyncio.run(keeper.prepare({"messages": ASKED, "tools": TOOLS}))
    assert turn.hidden == {"recall", "open_tools"}
    assembly = Assembly(turn.hidden)
    part = {"index": 0, "id": "1", "function": {"name": "open_tools", "arguments": '{"path": "sql"}'}}
    chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [part]}, "finish_reason": None}]}
    assert assembly.feed(chunk) is None
    assert assembly.reply().message == Message(
        "assistant", assembly.reply().message.parts, (ToolCall("1", "open_tools", json.dumps({"path": "sql"})),)
    )
    assert model.sent == []
