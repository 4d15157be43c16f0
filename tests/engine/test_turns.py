"""Messages as templates want them, and the steps that make refused ones fit."""

from typing import Any

import pytest

from engine.errors import BadRequest
from engine.turns import Turn, adaptations, every_system_as_user, later_system_as_user, parse_arguments, to_turns
from tests.engine.chat_templates import assistant, result, system, user


def roles(turns: tuple[Turn, ...]) -> list[tuple[str, str]]:
    return [(turn.role, turn.content) for turn in turns]


def test_content_becomes_one_string() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c", {"type": "refusal", "refusal": "d"}]
    turns = to_turns([{"role": "user", "content": parts}, {"role": "assistant", "content": None}, {"role": "assistant"}])
    assert [turn.content for turn in turns] == ["abcd", "", ""]


def test_roles_and_reasoning_come_under_one_name() -> None:
    turns = to_turns([{"role": "developer", "content": "x"}, {"role": "assistant", "content": "y", "reasoning": "z"}])
    assert turns[0].role == "system"
    assert turns[1].message["reasoning_content"] == "z" and "reasoning" not in turns[1].message


def test_the_clients_messages_are_not_changed() -> None:
    message = assistant(None, "r", [("f", '{"a": 1}')])
    before = repr(message)
    to_turns([message])
    assert repr(message) == before


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            r"messages\[0\].content\[0\].*image_url",
        ),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "input_audio"),
        ({"role": "user", "content": [{"type": "text"}]}, "has no text"),
        ({"role": "user", "content": [7]}, "None"),
        ({"role": "user", "content": 7}, "must be text"),
        ({"content": "x"}, "a role"),
        ("hello", "a role"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "function.name"),
        ({"role": "assistant", "tool_calls": [3]}, "function.name"),
    ],
)
def test_what_cannot_be_read_is_named(message: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        to_turns([message])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"b": 1, "a": 2}', {"b": 1, "a": 2}),
        ({"b": 1}, {"b": 1}),
        (None, {}),
        ("", {}),
        (" \n", {}),
        ('{"a": 1', '{"a": 1'),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_are_parsed_where_they_are_an_object(arguments: object, value: object) -> None:
    assert parse_arguments(arguments) == value


def test_a_later_system_message_becomes_a_user_turn_where_it_stands() -> None:
    turns = to_turns([system("a"), {"role": "developer", "content": "b"}, user("q"), system("c"), assistant("x")])
    changed = later_system_as_user(turns)
    assert roles(changed) == [("system", "a\n\nb"), ("user", "q"), ("user", "c"), ("assistant", "x")]
    assert [turn.index for turn in changed] == [0, 2, 3, 4]


def test_without_any_system_role_neighbours_are_joined() -> None:
    changed = every_system_as_user(to_turns([system("a"), user("q"), assistant("x"), system("c"), user("d")]))
    assert roles(changed) == [("user", "a\n\nq"), ("assistant", "x"), ("user", "c\n\nd")]


def test_joining_keeps_the_calls_and_never_joins_tool_results() -> None:
    first, second = assistant("x", None, [("f", "{}")]), assistant("y", None, [("g", "{}")])
    changed = every_system_as_user(to_turns([user("q"), first, second, result("1"), result("2")]))
    assert [turn.role for turn in changed] == ["user", "assistant", "tool", "tool"]
    assert [call["function"]["name"] for call in changed[1].message["tool_calls"]] == ["f", "g"]


def test_steps_that_change_nothing_are_not_tried() -> None:
    assert len(list(adaptations(to_turns([system("a"), user("q"), assistant("x")])))) == 2
    assert len(list(adaptations(to_turns([user("q"), assistant("x")])))) == 1


def test_breakpoints_of_the_client_are_counted_in_characters_of_the_content() -> None:
    parts = [{"type": "text", "text": "abc", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "de"}]
    turns = to_turns([{"role": "system", "content": parts}, {"role": "user", "content": "xy", "cache_control": {}}])
    assert turns[0].breaks == (3,) and turns[1].breaks == ()
    assert later_system_as_user(to_turns([system("12"), {"role": "system", "content": parts}]))[0].breaks == (2 + 2 + 3,)
