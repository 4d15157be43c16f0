"""What Anthropic's routes accept, and the same request in OpenAI's terms, which is what everything behind them speaks."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from server.errors import ApiError
from server.schemas import INT32, Body, ChatRequest, Fraction, RawObject, Str

Blocks = list[RawObject]
KNOWN = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")


class AnthropicMessage(Body):
    role: Literal["user", "assistant", "system"]
    content: Str | Blocks


class AnthropicTool(Body):
    name: Str
    description: Str | None = None
    input_schema: RawObject | None = None


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: Str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def tool_is_named(self) -> "ToolChoice":
        if self.type == "tool" and not self.name:
            raise ValueError("a tool_choice of type tool needs a name")
        return self


class Thinking(Body):
    type: Literal["enabled", "disabled", "adaptive"]


class Metadata(Body):
    user_id: Str | None = None


class CountRequest(Body):
    """POST /v1/messages/count_tokens: the part of a request that is its prompt."""

    model: Str | None = None
    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    system: Str | Blocks | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None

    def openai(self) -> dict[str, Any]:
        """The body of the chat request that means the same. Raises ApiError for blocks that cannot be read."""
        messages = [{"role": "system", "content": text_parts(self.system, "system")}] if self.system else []
        for number, message in enumerate(self.messages):
            messages += in_openai_form(message, f"messages[{number}].content")
        # Thinking is off there unless it is asked for.
        body: dict[str, Any] = {"messages": messages, "enable_thinking": thinks(self.thinking)}
        if self.tools:
            body["tools"] = [tool_body(tool) for tool in self.tools]
        if self.tool_choice is not None:
            body |= choice_body(self.tool_choice)
        return body


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=0, le=INT32)]
    stream: bool | None = None
    stop_sequences: list[Str] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT32)] | None = None
    metadata: Metadata | None = None
    exact: Literal["append", "strict"] | None = None
    cache_prompt: bool | None = None

    def chat_request(self) -> ChatRequest:
        """The same request in OpenAI's terms."""
        same = self.model_dump(
            include={"model", "max_tokens", "stream", "temperature", "top_p", "top_k", "exact", "cache_prompt"}, exclude_none=True
        )
        session = self.metadata.user_id if self.metadata else None
        return ChatRequest.model_validate({**self.openai(), **same, "stop": self.stop_sequences, "prompt_cache_key": session})


def thinks(thinking: Thinking | None) -> bool:
    return thinking is not None and thinking.type != "disabled"


def tool_body(tool: AnthropicTool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def choice_body(choice: ToolChoice) -> dict[str, Any]:
    named = {"type": "function", "function": {"name": choice.name}}
    wanted = {"auto": "auto", "none": "none", "any": "required", "tool": named}[choice.type]
    return {"tool_choice": wanted, "parallel_tool_calls": not choice.disable_parallel_tool_use}


def text_parts(content: str | Blocks, where: str) -> str | list[dict[str, Any]]:
    """Text, or text parts that keep their cache_control. Raises ApiError for a block of another kind."""
    if isinstance(content, str):
        return content
    return [text_part(block, f"{where}[{number}]") for number, block in enumerate(content)]


def text_part(block: dict[str, Any], where: str) -> dict[str, Any]:
    if block.get("type") != "text" or not isinstance(block.get("text"), str):
        raise ApiError(400, f"{where}: only text can be read, not {str(block.get('type'))[:40]!r}", param=where)
    return {key: block[key] for key in ("type", "text", "cache_control") if key in block}


def in_openai_form(message: AnthropicMessage, where: str) -> list[dict[str, Any]]:
    """One message as OpenAI's: tool results become messages of their own, in front of what the user says beside them."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    blocks = [checked(block, f"{where}[{number}]") for number, block in enumerate(message.content)]
    results = [tool_message(block, where) for block in blocks if block["type"] == "tool_result"]
    rest = [block for block in blocks if block["type"] != "tool_result"]
    return [*results, *([spoken(message.role, rest, where)] if rest or not results else [])]


def checked(block: dict[str, Any], where: str) -> dict[str, Any]:
    if block.get("type") not in KNOWN:
        raise ApiError(400, f"{where}: a block of type {str(block.get('type'))[:40]!r} cannot be read here", param=where)
    return block


def tool_message(block: dict[str, Any], where: str) -> dict[str, Any]:
    content = block.get("content")
    if not isinstance(content, str | list):
        content = ""
    return {"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": text_parts(content, where)}


def spoken(role: str, blocks: Blocks, where: str) -> dict[str, Any]:
    """Text, thinking and calls of one message."""
    texts = [block for block in blocks if block["type"] == "text"]
    message: dict[str, Any] = {"role": role, "content": text_parts(texts, where)}
    thought = "".join(str(block.get("thinking", "")) for block in blocks if block["type"] == "thinking")
    calls = [call_body(block, where) for block in blocks if block["type"] == "tool_use"]
    return message | ({"reasoning_content": thought} if thought else {}) | ({"tool_calls": calls} if calls else {})


def call_body(block: dict[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(block.get("name"), str):
        raise ApiError(400, f"{where}: a tool_use block needs a name", param=where)
    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
    return {"id": str(block.get("id", "")), "type": "function", "function": {"name": block["name"], "arguments": arguments}}
