"""What an answer must look like: free text, a JSON schema, a grammar, or a call to a tool."""

import json
from dataclasses import dataclass
from typing import Any

from engine.json_schema import schema_to_grammar
from engine.toolgrammar import after_thinking, tool_grammar
from engine.toolparse import Dialect
from server.errors import ApiError
from server.schemas import ChatRequest, Generation, NamedTool, ResponseFormat


@dataclass(frozen=True, slots=True)
class Shape:
    """At most one of a GBNF grammar and a JSON schema (as text)."""

    grammar: str | None = None
    json_schema: str | None = None

    @property
    def free(self) -> bool:
        return self.grammar is None and self.json_schema is None

    def behind_thinking(self) -> "Shape":
        """The same shape for an answer that begins inside a think block: it holds from the block's end on."""
        if self.free:
            return self
        return Shape(after_thinking(self.grammar or schema_to_grammar(self.json_schema or "")))


def shape_of(body: ChatRequest, dialect: Dialect) -> Shape:
    """What a chat request asks for; a tool that must be called goes before a format. Raises ApiError and BadRequest."""
    tools = forced_tools(body)
    if tools is None:
        return text_shape(body, body.response_format)
    form = dialect if dialect is Dialect.XML else Dialect.HERMES
    several = body.parallel_tool_calls is not False and not isinstance(body.tool_choice, NamedTool)
    return Shape(tool_grammar(tools, form, several=several))


def text_shape(body: Generation, format: ResponseFormat | None) -> Shape:
    """What a request without tools asks for; llama-server's own fields go before response_format. Raises ApiError."""
    if body.grammar is not None:
        return Shape(body.grammar)
    wanted = body.json_schema if body.json_schema is not None else wanted_schema(format)
    return Shape() if wanted is None else Shape(json_schema=json.dumps(wanted, ensure_ascii=False))


def wanted_schema(format: ResponseFormat | None) -> dict[str, Any] | None:
    """The JSON schema that response_format asks for. Raises ApiError where it has none."""
    try:
        return format.wanted() if format else None
    except ValueError as error:
        raise ApiError(400, str(error), param="response_format", code="invalid_value") from error


def forced_tools(body: ChatRequest) -> list[dict[str, Any]] | None:
    """The tools one of which must be called; None where the model is free. Raises ApiError for a tool that was not given."""
    if body.tool_choice in (None, "none", "auto"):
        return None
    tools = body.raw_tools() or []
    if isinstance(body.tool_choice, NamedTool):
        name = body.tool_choice.function.name
        tools = [tool for tool in tools if tool["function"]["name"] == name]
    if not tools:
        raise ApiError(400, "tool_choice asks for a tool that is not among `tools`", param="tool_choice", code="invalid_value")
    return tools
