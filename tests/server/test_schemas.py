"""Requests: unknown fields pass, wrong types are refused where they stand, nothing the tokenizer cannot read comes in."""

from typing import Any

import pytest
from pydantic import ValidationError

from server.errors import from_validation
from server.schemas import ChatRequest, CompletionRequest, ResponseFormat

USER = [{"role": "user", "content": "hi"}]


def refusal(**body: Any) -> str:
    """The `param` a client is told for a chat request that must be refused."""
    with pytest.raises(ValidationError) as caught:
        ChatRequest(**body)
    return str(from_validation([{**e, "loc": ("body", *e["loc"])} for e in caught.value.errors()]).param)


def test_unknown_fields_and_nulls_are_accepted() -> None:
    asked = ChatRequest(messages=[{**USER[0], "weight": 2}], service_tier="auto", temperature=None, tools=None, store=True)
    assert asked.messages[0].text() == "hi"
    assert not hasattr(asked, "service_tier")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content[0]"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": USER, "temperature": "hot"}, "temperature"),
        ({"messages": USER, "temperature": float("nan")}, "temperature"),
        ({"messages": USER, "n": 0}, "n"),
        ({"messages": USER, "n": 1.5}, "n"),
        ({"messages": USER, "max_tokens": "9"}, "max_tokens"),
        ({"messages": USER, "stop": [1]}, "stop[0]"),
        ({"messages": USER, "tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"messages": USER, "tools": [{"type": "function", "function": {"name": "\udfff"}}]}, "tools[0]"),
        ({"messages": USER, "tool_choice": "f"}, "tool_choice"),
        ({"messages": USER, "response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": USER, "logit_bias": {"1": "x"}}, "logit_bias"),
        ({"messages": USER, "exact": "sort of"}, "exact"),
        ({"messages": USER, "stream": "yes"}, "stream"),
    ],
)
def test_a_wrong_type_is_refused_at_its_place(body: dict[str, Any], param: str) -> None:
    assert refusal(**body).startswith(param)


def test_a_tool_keeps_the_key_order_and_the_unknown_keys_the_client_sent() -> None:
    tool = {"function": {"parameters": {"b": 1, "a": 2}, "strict": True, "name": "f"}, "type": "function"}
    kept: Any = ChatRequest(messages=USER, tools=[tool]).tools
    assert list(kept[0]["function"]) == ["parameters", "strict", "name"]


def test_text_parts_are_joined_by_line_feeds() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert ChatRequest(messages=[{"role": "user", "content": parts}]).messages[0].text() == "a\nb"


def test_a_cache_control_mark_on_a_part_makes_its_message_a_breakpoint() -> None:
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    messages = ChatRequest(messages=[{"role": "user", "content": [part]}, *USER]).messages
    assert [m.breakpoint() for m in messages] == [True, False]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        ([1, 2], [[1, 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([], []),
    ],
)
def test_a_completion_prompt_is_a_string_tokens_or_a_list_of_either(prompt: Any, prompts: list[Any]) -> None:
    assert CompletionRequest(prompt=prompt).prompts() == prompts


def test_response_format_gives_the_schema_the_answer_must_follow() -> None:
    assert ResponseFormat(type="text").wanted() is None
    assert ResponseFormat(type="json_object").wanted() == {"type": "object"}
    assert ResponseFormat(type="json_schema", json_schema={"name": "n", "schema": {"type": "null"}}).wanted() == {"type": "null"}
    with pytest.raises(ValueError, match="schema is missing"):
        ResponseFormat(type="json_schema").wanted()


def test_the_newer_name_of_the_token_limit_wins_and_minus_one_is_no_limit() -> None:
    assert ChatRequest(messages=USER, max_tokens=5, max_completion_tokens=7).limit() == 7
    assert ChatRequest(messages=USER, max_tokens=-1).limit() is None
