"""What a parser shows of a message while it is written, and the message that comes of it, in OpenAI's terms."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Call number `index` of this message begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of call `index`'s arguments."""

    index: int
    text: str


Delta = ReasoningDelta | ContentDelta | CallStart | CallArguments


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """The same deltas with neighbours of one kind (and one call) as one."""
    result: list[Delta] = []
    for delta in deltas:
        last = result[-1] if result else None
        match last, delta:
            case (ReasoningDelta(before), ReasoningDelta(text)):
                result[-1] = ReasoningDelta(before + text)
            case (ContentDelta(before), ContentDelta(text)):
                result[-1] = ContentDelta(before + text)
            case (CallArguments(index, before), CallArguments(other, text)) if index == other:
                result[-1] = CallArguments(index, before + text)
            case _:
                result.append(delta)
    return result


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """A whole message."""

    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]

    def message(self) -> dict[str, Any]:
        """In OpenAI's shape: content is null where only calls were made, and absent things are absent."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or (None if self.calls else "")}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.calls
            ]
        return message


def collect(deltas: Iterable[Delta]) -> Parsed:
    """The message that all of a parser's deltas make."""
    content, reasoning = "", ""
    starts: dict[int, CallStart] = {}
    arguments: dict[int, str] = {}
    for delta in deltas:
        match delta:
            case ContentDelta(text):
                content += text
            case ReasoningDelta(text):
                reasoning += text
            case CallStart(index):
                starts[index] = delta
            case CallArguments(index, text):
                arguments[index] = arguments.get(index, "") + text
    calls = tuple(ToolCall(start.id, start.name, arguments.get(index, "")) for index, start in starts.items())
    return Parsed(content, reasoning, calls)
