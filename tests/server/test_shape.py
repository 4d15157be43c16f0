"""What an answer must look like, from each of the ways to ask for it."""

import json
from typing import Any

import pytest

from engine.toolparse import Dialect
from server.errors import ApiError
from server.schemas import ChatRequest
from server.shape import shape_of

HI = [{"role": "user", "content": "hi"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}} for name in ("a", "b")
]
SCHEMA = {"type": "boolean"}


def shape(**fields: Any) -> Any:
    return shape_of(ChatRequest(messages=HI, **fields), Dialect.XML)


def test_nothing_asked_is_free() -> None:
    assert shape().free
    assert shape(tools=TOOLS).free
    assert shape(tools=TOOLS, tool_choice="none").free
    assert shape(response_format={"type": "text"}).free


@pytest.mark.parametrize(
    "fields",
    [
        {"json_schema": SCHEMA},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
    ],
)
def test_a_schema_is_the_same_however_it_is_given(fields: dict[str, Any]) -> None:
    assert json.loads(shape(**fields).json_schema) == SCHEMA


def test_an_empty_schema_still_asks_for_json() -> None:
    assert shape(json_schema={}).json_schema == "{}"


def test_a_grammar_goes_before_a_format_and_a_forced_tool_before_both() -> None:
    both = {"grammar": 'root ::= "x"', "response_format": {"type": "json_object"}}
    assert shape(**both).grammar == 'root ::= "x"'
    assert "<function=a>" in shape(**both, tools=TOOLS, tool_choice="required").grammar


def test_a_named_tool_is_called_alone_and_once() -> None:
    grammar = shape(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "b"}}).grammar
    assert "<function=b>" in grammar and "<function=a>" not in grammar
    assert grammar.startswith("root ::= call\n")


def test_required_allows_several_calls_unless_the_client_says_otherwise() -> None:
    assert "call )*" in shape(tools=TOOLS, tool_choice="required").grammar
    assert "call )*" not in shape(tools=TOOLS, tool_choice="required", parallel_tool_calls=False).grammar


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "c"}}])
def test_a_tool_that_was_not_given_cannot_be_forced(choice: Any) -> None:
    with pytest.raises(ApiError, match="not among"):
        shape(tools=None if choice == "required" else TOOLS, tool_choice=choice)


def test_behind_thinking_a_schema_becomes_a_grammar_with_the_thoughts_in_front() -> None:
    grammar = shape(json_schema=SCHEMA).behind_thinking().grammar
    assert grammar.startswith("root ::= (") and "</think>" in grammar.splitlines()[0]
    assert shape().behind_thinking().free
