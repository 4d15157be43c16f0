"""Message and its parts as pure values: read from an OpenAI dict, written back as it was, hashed in a canonical form.

Identity is what was said, not how it was wrapped: these give one hash, so a client may resend either form.
    "text"                      [{"type": "text", "text": "text"}]
    null content, no content    "" (beside tool calls or alone)
    arguments as a JSON string  arguments as an object (key order and spaces do not count)
Reasoning, cache_control, a streamed call's index and unknown fields that are null or empty do not count either, because
clients echo them or not. Every other unknown field counts and is written back.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from typing import Any, overload

from keeper.errors import BadHistory

HASH_BYTES = 16
KNOWN = frozenset({"role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "reasoning"})
UNCOUNTED = frozenset({"cache_control", "index"})  # where a client puts these moves from turn to turn


class Shape(StrEnum):
    """How `content` was written, so that it is written back the same."""

    TEXT = "text"
    LIST = "list"
    NULL = "null"
    ABSENT = "absent"


def compact(value: object) -> str:
    """JSON with sorted keys and no spaces: the canonical text of a JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def verbatim(value: object) -> str:
    """JSON that keeps the order of keys: templates render arguments in the order in which they came."""
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Part:
    """One content part; `raw` is its JSON where it is more than plain text (images, files, text with extra fields)."""

    kind: str
    text: str = ""
    raw: str = ""

    def as_dict(self) -> Any:
        return json.loads(self.raw) if self.raw else {"type": "text", "text": self.text}

    def canonical(self) -> object:
        if self.kind == "text":
            return self.text
        found = json.loads(self.raw)
        return {k: v for k, v in found.items() if k not in UNCOUNTED} if isinstance(found, dict) else found


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the assistant made. `arguments` is JSON text; `as_object` says that the client wrote it as an object.

    `raw` holds the whole call where it is not a plain function call.
    """

    id: str
    name: str
    arguments: str
    as_object: bool = False
    raw: str = ""

    def parsed(self) -> dict[str, Any]:
        """The arguments as a dict; {} where the model wrote no JSON object."""
        try:
            found = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):  # the latter for arguments nested thousands deep
            return {}
        return found if isinstance(found, dict) else {}

    def as_dict(self) -> dict[str, Any]:
        if self.raw:
            return dict(json.loads(self.raw))
        arguments = json.loads(self.arguments) if self.as_object else self.arguments
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}

    def canonical(self) -> object:
        try:
            arguments = compact(json.loads(self.arguments))
        except (ValueError, RecursionError):  # the latter for arguments nested thousands deep
            arguments = self.arguments
        return [self.id, self.name, arguments] if self.name or not self.raw else [self.id, json.loads(self.raw)]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `extra` is JSON of the fields this class has no place for ('' for none)."""

    role: str
    parts: tuple[Part, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str = ""
    reasoning_name: str = "reasoning_content"  # or "reasoning", as some servers call it
    extra: str = ""
    shape: Shape = Shape.TEXT

    @property
    def text(self) -> str:
        """All text parts, one after another; other parts stand as [image_url] and the like."""
        return "".join(part.text if part.kind == "text" else f"[{part.kind}]" for part in self.parts)

    @property
    def empty(self) -> bool:
        """Says nothing and calls nothing."""
        return not self.tool_calls and not self.text.strip()

    def as_dict(self) -> dict[str, Any]:
        """The OpenAI dict, in the form in which it came."""
        found: dict[str, Any] = {"role": self.role}
        if self.shape is not Shape.ABSENT:
            found["content"] = self._content()
        if self.reasoning:
            found[self.reasoning_name] = self.reasoning
        if self.tool_calls:
            found["tool_calls"] = [call.as_dict() for call in self.tool_calls]
        if self.tool_call_id is not None:
            found["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            found["name"] = self.name
        return {**found, **(json.loads(self.extra) if self.extra else {})}

    def _content(self) -> Any:
        if self.shape is Shape.NULL:
            return None
        return self.text if self.shape is Shape.TEXT else [part.as_dict() for part in self.parts]

    def canonical(self) -> str:
        """The text that the content hash is taken over."""
        content = _joined(part.canonical() for part in self.parts)
        extra = json.loads(self.extra) if self.extra else {}
        counted = {k: v for k, v in extra.items() if k not in UNCOUNTED and v not in (None, "", [], {})}
        calls = [call.canonical() for call in self.tool_calls]
        return compact([self.role, content, calls, self.tool_call_id, self.name, counted])

    def hash(self) -> bytes:
        """blake2b over the canonical form: 16 bytes."""
        return blake2b(self.canonical().encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()

    def with_text(self, text: str) -> "Message":
        """The same message with `text` alone as its content."""
        return replace(self, parts=(Part("text", text),), shape=Shape.TEXT)

    def adding(self, text: str) -> "Message":
        """The same message with `text` at its end, other parts untouched."""
        if self.shape is Shape.LIST:
            return replace(self, parts=(*self.parts, Part("text", text)))
        return self.with_text(self.text + text)

    def without_reasoning(self) -> "Message":
        return replace(self, reasoning="") if self.reasoning else self


def _joined(parts: Iterable[object]) -> list[object]:
    """Neighbouring text parts become one, empty ones go: "ab" and ["a", "b"] are the same content."""
    found: list[object] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        elif part != "":
            found.append(part)
    return found


def system(text: str) -> Message:
    return Message("system", (Part("text", text),))


def user(text: str) -> Message:
    return Message("user", (Part("text", text),))


def assistant(text: str, calls: tuple[ToolCall, ...] = ()) -> Message:
    return Message("assistant", (Part("text", text),), calls)


def tool(call_id: str, text: str) -> Message:
    return Message("tool", (Part("text", text),), tool_call_id=call_id)


def read(found: Any, index: int = 0) -> Message:
    """A Message from an OpenAI dict; BadHistory names the place in messages[index] that cannot be read."""
    where = f"messages[{index}]"
    if not isinstance(found, Mapping):
        raise BadHistory("a message is an object", where)
    role = found.get("role")
    if not isinstance(role, str) or not role:
        raise BadHistory("a message needs a role", f"{where}.role")
    parts, shape = _read_content(found, where)
    extra = {k: v for k, v in found.items() if k not in KNOWN}
    return Message(
        role,
        parts,
        _read_calls(found.get("tool_calls"), where),
        _text_or_none(found.get("tool_call_id"), f"{where}.tool_call_id"),
        _text_or_none(found.get("name"), f"{where}.name"),
        str(found.get("reasoning_content") or found.get("reasoning") or ""),
        "reasoning" if found.get("reasoning") and not found.get("reasoning_content") else "reasoning_content",
        verbatim(extra) if extra else "",
        shape,
    )


def _read_content(found: Mapping[str, Any], where: str) -> tuple[tuple[Part, ...], Shape]:
    if "content" not in found:
        return (), Shape.ABSENT
    content = found["content"]
    if content is None:
        return (), Shape.NULL
    if isinstance(content, str):
        return (Part("text", content),), Shape.TEXT
    if not isinstance(content, list):
        raise BadHistory("content is a string, null or a list of parts", f"{where}.content")
    return tuple(_read_part(part, f"{where}.content[{i}]") for i, part in enumerate(content)), Shape.LIST


def _read_part(part: Any, where: str) -> Part:
    if isinstance(part, str):
        return Part("text", part, verbatim(part))
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise BadHistory("a content part is an object with a type", where)
    text = part.get("text")
    if part["type"] in ("text", "input_text", "output_text") and isinstance(text, str):
        plain = part.keys() == {"type", "text"} and part["type"] == "text"
        return Part("text", text, "" if plain else verbatim(part))
    return Part(part["type"], "", verbatim(part))


def _read_calls(found: Any, where: str) -> tuple[ToolCall, ...]:
    if not found:
        return ()
    if not isinstance(found, list):
        raise BadHistory("tool_calls is a list", f"{where}.tool_calls")
    return tuple(_read_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(found))


def _read_call(call: Any, where: str) -> ToolCall:
    if not isinstance(call, Mapping):
        raise BadHistory("a tool call is an object", where)
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return ToolCall(str(call.get("id") or ""), "", "", raw=verbatim(call))
    arguments = function.get("arguments", "")
    as_object = not isinstance(arguments, str)
    text = verbatim(arguments) if as_object else arguments
    plain = call.keys() <= {"id", "type", "function", "index"} and function.keys() <= {"name", "arguments"}
    raw = "" if plain and call.get("type", "function") == "function" else verbatim(call)
    return ToolCall(str(call.get("id") or ""), function["name"], text, as_object, raw)


def _text_or_none(value: Any, where: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise BadHistory("must be a string", where)
    return value


class History(Sequence[Message]):
    """A client's messages, read one by one when somebody looks: a history of a million tokens costs what is looked at."""

    def __init__(self, raw: Sequence[Any], added: Mapping[int, str] | None = None, reasoning: bool = True) -> None:
        self.raw = raw
        self._reasoning = reasoning  # False: messages are read without theirs
        self._added = dict(added or {})
        self._read: dict[int, Message] = {}

    def with_added(self, added: Mapping[int, str]) -> "History":
        """The same history where the messages at these indices have some text more at their end."""
        return History(self.raw, {**self._added, **added}, self._reasoning)

    def __len__(self) -> int:
        return len(self.raw)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self.raw))))
        place = index if index >= 0 else len(self.raw) + index
        if not 0 <= place < len(self.raw):
            raise IndexError(index)
        found = self._read.get(place)
        if found is None:
            found = read(self.raw[place], place)
            found = found if self._reasoning else found.without_reasoning()
            found = self._read[place] = found.adding(self._added[place]) if place in self._added else found
        return found
