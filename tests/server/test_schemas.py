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
    assert asked.raw_messages()[0]["content"] == "hi"
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
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0]"),
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


def test_messages_stay_as_the_client_sent_them_so_that_the_template_sees_all_of_them() -> None:
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    sent = [{"role": "user", "content": [part], "name": "n", "unknown": 1}]
    assert ChatRequest(messages=sent).raw_messages() == sent


@pytest.mark.parametrize(
    ("last", "fields", "continues"),
    [
        ({"role": "user", "content": "a"}, {}, False),
        ({"role": "assistant", "content": "a"}, {}, True),
        ({"role": "assistant", "content": "a"}, {"add_generation_prompt": True}, False),
        ({"role": "assistant", "content": "a"}, {"continue_final_message": False}, False),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}, {}, False),
    ],
)
def test_a_last_assistant_message_is_continued_unless_the_client_says_otherwise(
    last: dict[str, Any], fields: dict[str, Any], continues: bool
) -> None:
    assert ChatRequest(messages=[*USER, last], **fields).continues() is continues


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
