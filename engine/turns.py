"""OpenAI messages as chat templates want them, and the steps by which messages that a template refuses are made to fit.

A Turn keeps the number of the message it came from, so that whatever is done here, a place in the prompt can be named in
the client's own terms. No step moves text: each changes a message where it stands, so the prompt before it stays as it was.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from engine.errors import BadRequest

ROLES = {"developer": "system", "function": "tool"}
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
RAW_ARGUMENTS = "arguments"  # the key under which arguments that are no JSON object are shown to a template


@dataclass(frozen=True, slots=True)
class Turn:
    """One message for a template. `index` is its place in the request; `breaks` are the client's breakpoints in its content."""

    message: dict[str, Any]
    index: int
    breaks: tuple[int, ...] = ()

    @property
    def role(self) -> str:
        return str(self.message["role"])

    @property
    def content(self) -> str:
        return str(self.message["content"])

    @property
    def is_tool_result(self) -> bool:
        """A tool's answer, also where a client sent it as a user message in Qwen's wrapping."""
        text = self.content.strip()
        return self.role == "tool" or (text.startswith("<tool_response>") and text.endswith("</tool_response>"))

    @property
    def is_real_user(self) -> bool:
        return self.role == "user" and not self.is_tool_result


def to_turns(messages: Sequence[Mapping[str, Any]]) -> tuple[Turn, ...]:
    """The messages with plain-text content (null is empty), `developer` as system, arguments parsed, reasoning under one name.

    Raises BadRequest naming the message and part that cannot be read.
    """
    return tuple(_to_turn(message, index) for index, message in enumerate(messages))


def _to_turn(message: Mapping[str, Any], index: int) -> Turn:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise BadRequest(f"messages[{index}] must be an object with a role", "messages")
    content, breaks = _text(message.get("content"), index)
    turn = {**message, "role": ROLES.get(message["role"], message["role"]), "content": content}
    if isinstance(turn.get("reasoning"), str) and not turn.get("reasoning_content"):
        turn["reasoning_content"] = turn.pop("reasoning")
    if message.get("tool_calls"):
        turn["tool_calls"] = [_call(call, index) for call in message["tool_calls"]]
    else:
        turn.pop("tool_calls", None)
    if message.get("cache_control"):
        breaks = (*breaks, len(content))
    return Turn(turn, index, breaks)


def _text(content: object, index: int) -> tuple[str, tuple[int, ...]]:
    """The content as one string (parts joined without a gap, as Qwen's templates do) and where its parts asked to cache."""
    if content is None:
        return "", ()
    if isinstance(content, str):
        return content, ()
    if not isinstance(content, Sequence):
        raise BadRequest(f"messages[{index}].content must be text, a list of parts, or null", "messages")
    text, breaks = "", []
    for number, part in enumerate(content):
        text += _part(part, f"messages[{index}].content[{number}]")
        if isinstance(part, Mapping) and part.get("cache_control"):
            breaks.append(len(text))
    return text, tuple(breaks)


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind not in TEXT_PARTS:
        raise BadRequest(f"{where} is of type {kind!r}; this server's models read text only", "messages")
    text = part.get(TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise BadRequest(f"{where} has no {TEXT_PARTS[kind]}", "messages")
    return text


def _call(call: object, index: int) -> dict[str, Any]:
    """A tool call whose arguments are parsed where they are JSON, so that a template shows them in their own key order."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadRequest(f"messages[{index}].tool_calls must be objects with function.name", "messages")
    return {**call, "function": {**function, "arguments": parse_arguments(function.get("arguments"))}}


def parse_arguments(arguments: object) -> object:
    """A JSON object from its text; whatever else it is comes back as it is. None and blank text are no arguments."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def wrap_raw_arguments(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Arguments that are no object as an object of one key: for templates that go through the keys."""
    return tuple(_with_wrapped(turn) for turn in turns)


def _with_wrapped(turn: Turn) -> Turn:
    calls = turn.message.get("tool_calls", ())
    if all(isinstance(call["function"]["arguments"], Mapping) for call in calls):
        return turn
    return replace(turn, message={**turn.message, "tool_calls": [_wrapped(call) for call in calls]})


def _wrapped(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if isinstance(arguments, Mapping):
        return call
    return {**call, "function": {**call["function"], "arguments": {RAW_ARGUMENTS: arguments}}}


def later_system_as_user(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """System messages at the very start become one; any later one becomes a user turn where it stands.

    Folding the later ones to the top, as some servers do, would change the prompt from its first token on.
    """
    leading = tuple(takewhile(lambda turn: turn.role == "system", turns))
    return (*_merged(leading), *(_as_user(turn) for turn in turns[len(leading) :]))


def every_system_as_user(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """No system message at all, and no two turns of one role in a row: for templates that insist on user and assistant."""
    return _merged(tuple(_as_user(turn) for turn in turns))


def _as_user(turn: Turn) -> Turn:
    return replace(turn, message={**turn.message, "role": "user"}) if turn.role == "system" else turn


def _merged(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Neighbours of one role as one turn (tool results stay apart); it keeps the first one's index."""
    merged: list[Turn] = []
    for turn in turns:
        if merged and merged[-1].role == turn.role and turn.role != "tool":
            merged[-1] = _joined(merged[-1], turn)
        else:
            merged.append(turn)
    return tuple(merged)


def _joined(first: Turn, second: Turn) -> Turn:
    text = "\n\n".join(part for part in (first.content, second.content) if part)
    shift = len(text) - len(second.content)
    message = {**first.message, "content": text}
    calls = [*first.message.get("tool_calls", ()), *second.message.get("tool_calls", ())]
    if calls:
        message["tool_calls"] = calls
    return Turn(message, first.index, (*first.breaks, *(shift + place for place in second.breaks)))


STEPS: tuple[tuple[str, Callable[[tuple[Turn, ...]], tuple[Turn, ...]]], ...] = (
    ("arguments that are no JSON object were wrapped in one", wrap_raw_arguments),
    ("a system message in the middle was rendered as a user turn", later_system_as_user),
    ("system messages were rendered as user turns and neighbours of one role joined", every_system_as_user),
)


def adaptations(turns: tuple[Turn, ...]) -> Iterator[tuple[tuple[Turn, ...], tuple[str, ...]]]:
    """The turns as they are, then with each step that changes anything added to those before; beside them what was done."""
    done: tuple[str, ...] = ()
    yield turns, done
    for note, step in STEPS:
        changed = step(turns)
        if changed != turns:
            turns, done = changed, (*done, note)
            yield turns, done
