"""Messages as values: read, written back as they came, one hash for what was said however it was wrapped."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keeper.errors import BadHistory
from keeper.message import History, read
from tests.keeper.helpers import a, called, t, u

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

WRITTEN_BACK: list[dict[str, Any]] = [
    u("hello"),
    {"role": "user", "content": [{"type": "text", "text": "look"}, IMAGE]},
    {"role": "user", "content": [{"type": "text", "text": "look", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": None, "tool_calls": called("1", "read", '{"b": 1, "a": 2}')["tool_calls"]},
    {"role": "assistant", "content": "", "tool_calls": called("1")["tool_calls"], "refusal": None},
    {"role": "assistant", "tool_calls": called("1")["tool_calls"]},
    {"role": "assistant", "content": "x", "reasoning_content": "because"},
    {"role": "assistant", "content": "x", "reasoning": "because"},
    {"role": "assistant", "content": "x", "audio": {"id": "a1"}, "annotations": [{"z": 1, "a": 2}]},
    {**t("1", "42"), "name": "read"},
    {"role": "user", "content": "hi", "name": "Ada"},
    {"role": "developer", "content": "be brief"},
    {"role": "assistant", "content": None, "function_call": {"name": "old", "arguments": "{}"}},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "sh", "input": "ls"}}],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": [True, None]}}}],
    },
]


@pytest.mark.parametrize("message", WRITTEN_BACK, ids=str)
def test_a_message_is_written_back_as_it_came(message: dict[str, Any]) -> None:
    written = read(message).as_dict()
    assert written == message
    calls = message.get("tool_calls") or [{}]
    arguments = calls[0].get("function", {}).get("arguments")
    if isinstance(arguments, dict):
        assert list(written["tool_calls"][0]["function"]["arguments"]) == list(arguments), "templates render keys in their order"


SAME = [
    (u("ab"), {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
    (u("ab"), {"role": "user", "content": ["ab"]}),
    (u("ab"), {"role": "user", "content": [{"type": "text", "text": "ab", "cache_control": {"type": "ephemeral"}}]}),
    (called("1", "f", '{"a": 1, "b": 2}'), called("1", "f", '{"b":2,"a":1}')),
    (called("1", text=None), called("1", text="")),
    (called("1"), {"role": "assistant", "tool_calls": called("1")["tool_calls"]}),
    (a("x"), {**a("x"), "reasoning_content": "because"}),
    (a("x"), {**a("x"), "refusal": None, "annotations": [], "audio": None, "tool_calls": []}),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=str)
def test_the_same_thing_wrapped_another_way_has_the_same_hash(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert read(one).hash() == read(other).hash()


def test_arguments_as_an_object_and_as_text_are_the_same_call() -> None:
    as_object = called("1")
    as_object["tool_calls"][0]["function"]["arguments"] = {"path": "x.py"}
    assert read(as_object).hash() == read(called("1", "read", '{"path": "x.py"}')).hash()
    assert read(as_object).tool_calls[0].parsed() == {"path": "x.py"}


DIFFERENT = [
    (u("a"), u("b")),
    (u("a"), a("a")),
    (u("a"), {**u("a"), "name": "Ada"}),
    (called("1"), called("2")),
    (called("1", "f", "{}"), called("1", "f", "not json")),
    (t("1", "x"), t("2", "x")),
    (
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "sh", "input": "ls"}}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "sh", "input": "rm"}}]},
    ),
    (u("[image_url]"), {"role": "user", "content": [IMAGE]}),
    (a("x"), {**a("x"), "audio": {"id": "a1"}}),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=str)
def test_what_differs_in_meaning_has_another_hash(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert read(one).hash() != read(other).hash()


BAD = [
    ("text", "messages[2]"),
    ({"content": "x"}, "messages[2].role"),
    ({"role": "user", "content": 5}, "messages[2].content"),
    ({"role": "user", "content": [{"text": "no type"}]}, "messages[2].content[0]"),
    ({"role": "assistant", "tool_calls": {"id": "1"}}, "messages[2].tool_calls"),
    ({"role": "assistant", "tool_calls": ["f"]}, "messages[2].tool_calls[0]"),
    ({"role": "tool", "tool_call_id": 7, "content": "x"}, "messages[2].tool_call_id"),
]


@pytest.mark.parametrize(("message", "param"), BAD, ids=str)
def test_a_message_that_cannot_be_read_is_named(message: Any, param: str) -> None:
    with pytest.raises(BadHistory) as error:
        read(message, 2)
    assert error.value.param == param


def test_bad_arguments_are_an_empty_call_not_an_error() -> None:
    assert read(called("1", "f", "{oops")).tool_calls[0].parsed() == {}
    assert read(called("1", "f", "[1]")).tool_calls[0].parsed() == {}


def test_a_call_without_a_name_or_arguments_can_be_hashed() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": ""}}]}
    assert read(message).hash() == read(message).hash()


def test_a_history_reads_only_what_is_looked_at() -> None:
    history = History([u("a"), "not a message", u("c")])
    assert history[0].text == "a" and history[-1].text == "c" and len(history) == 3
    with pytest.raises(BadHistory):
        history[1]
    with pytest.raises(IndexError):
        history[3]


def test_text_added_to_a_message_keeps_its_other_parts() -> None:
    message = read({"role": "user", "content": [{"type": "text", "text": "look"}, IMAGE]}).adding("\n\nRULES")
    assert message.as_dict()["content"] == [{"type": "text", "text": "look"}, IMAGE, {"type": "text", "text": "\n\nRULES"}]
    assert History([u("a")]).with_added({0: " b"})[0].text == "a b"


TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT, lambda c: st.lists(c, max_size=3) | st.dictionaries(TEXT, c, max_size=3)
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": st.none() | TEXT},
    optional={"name": TEXT, "tool_call_id": TEXT, "extra_field": JSON},
)


@given(MESSAGES)
def test_any_message_survives_reading_and_writing_and_hashes_the_same_again(message: dict[str, Any]) -> None:
    once = read(message)
    assert once.as_dict() == message
    assert read(once.as_dict()).hash() == once.hash()
