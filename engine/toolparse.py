"""Generated text back into reasoning, content and tool calls, while it is still coming: a chat template's other direction.

Two forms of call are read, told apart by what follows the opening tag:
    Qwen3 (Hermes)   <tool_call>\\n{"name": "f", "arguments": {...}}\\n</tool_call>
    Qwen3.5          <tool_call>\\n<function=f>\\n<parameter=key>\\nvalue\\n</parameter>\\n</function>\\n</tool_call>
Only line breaks that the templates put back are dropped (around think blocks and calls); every other blank is the model's,
and the next prompt needs it to have the same bytes. What is shown never depends on how the text was cut into pieces.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from engine.argtypes import parameter_types
from engine.deltas import CallArguments, CallStart, ContentDelta, Delta, ReasoningDelta, joined
from engine.stream import overlap
from engine.toolcalls import END_CALL, FUNCTION, HERMES_HEAD, XML_HEAD, CallReader, HermesReader, XmlReader, read_whole

THINK, END_THINK, CALL = "<think>", "</think>", "<tool_call>"
BLANKS = " \t\r\n"


class Dialect(StrEnum):
    """How a template asks its model to write calls."""

    HERMES = "hermes"
    XML = "xml"
    NONE = "none"


def dialect_of(template: str) -> Dialect:
    """The dialect that a chat template's text teaches."""
    if FUNCTION in template:
        return Dialect.XML
    return Dialect.HERMES if CALL in template else Dialect.NONE


@dataclass(frozen=True, slots=True)
class ParserConfig:
    """What a parser must know of its prompt and request.

    `thinking`: the prompt ends inside a think block. `may_think`: the model may open one itself. `calls`: tools were given.
    `stream_calls`: show arguments as they come; else a call is shown once it is whole, and one that is cut off is content.
    `seed`: what call ids are made from, the request's id.
    """

    thinking: bool = False
    may_think: bool = False
    calls: bool = False
    stream_calls: bool = True
    seed: str = ""
    tools: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)


class OutputParser:
    """Feed it the text as it comes, then finish it. Nothing that a model writes makes it raise."""

    def __init__(self, config: ParserConfig) -> None:
        self._config = config
        self._types = {_name(tool): parameter_types(tool) for tool in config.tools}
        self._buffer = ""
        self._deltas: list[Delta] = []
        self._state = self._thinking if config.thinking else self._start if config.may_think else self._content
        self._skip = "\n" if config.thinking else ""  # blanks to drop before the next thing shown
        self._reader: CallReader | None = None
        self._raw = ""  # text of the call being read, with the line breaks dropped before it
        self._arguments = ""
        self._calls = 0

    @property
    def calls(self) -> int:
        """How many tool calls were shown so far."""
        return self._calls

    def feed(self, text: str) -> list[Delta]:
        """What can be shown now; neighbours of one kind are joined."""
        self._buffer += text
        return self._run(final=False)

    def finish(self) -> list[Delta]:
        """What was held back, at the end of the text. A call that is not whole is content, unless a part of it was shown."""
        return self._run(final=True)

    def _run(self, final: bool) -> list[Delta]:
        while self._state(final):
            pass
        shown, self._deltas = joined(self._deltas), []
        return shown

    def _show(self, kind: type[ReasoningDelta] | type[ContentDelta], text: str) -> None:
        if self._skip:
            text = text.lstrip(self._skip)
        if text:
            self._skip = ""
            self._deltas.append(kind(text))

    def _start(self, final: bool) -> bool:
        """Before anything was written: a think block may come, behind blanks."""
        head = self._buffer.lstrip()
        if head.startswith(THINK):
            self._buffer, self._skip, self._state = head[len(THINK) :], "\n", self._thinking
        elif THINK.startswith(head) and not final:
            return False
        else:
            self._state = self._content
        return True

    def _thinking(self, final: bool) -> bool:
        """Up to </think>; a tool call in here is only a thought."""
        text, breaks = self._take_until(END_THINK, final)
        self._show(ReasoningDelta, text)
        if breaks is not None:
            self._skip, self._state = "\n", self._content
        return breaks is not None

    def _content(self, final: bool) -> bool:
        if not self._config.calls:
            text, self._buffer = self._buffer, ""
            self._show(ContentDelta, text)
            return False
        text, breaks = self._take_until(CALL, final)
        self._show(ContentDelta, text)
        if breaks is not None:
            self._raw, self._state = breaks + CALL, self._open_call
        return breaks is not None

    def _take_until(self, tag: str, final: bool) -> tuple[str, str | None]:
        """The text before `tag` and the line breaks between them; where no tag is, what can belong to neither, and None."""
        at = self._buffer.find(tag)
        if at >= 0:
            text = self._buffer[:at].rstrip("\n")
            breaks, self._buffer = self._buffer[len(text) : at], self._buffer[at + len(tag) :]
            return text, breaks
        text = self._buffer if final else self._buffer[: len(self._buffer) - overlap(self._buffer, tag)].rstrip("\n")
        self._buffer = self._buffer[len(text) :]
        return text, None

    def _open_call(self, final: bool) -> bool:
        """Behind <tool_call>: which form it has, or that it is no call."""
        head = self._buffer.lstrip()
        if head.startswith("{"):
            return self._open_hermes(final)
        if match := XML_HEAD.match(self._buffer):
            return self._begin(XmlReader(match[1], self._types.get(match[1], {})), match.end())
        may_come = FUNCTION.startswith(head) or (head.startswith(FUNCTION) and not set(head[len(FUNCTION) :]) & set("<>\n"))
        return False if may_come and not final else self._no_call()

    def _open_hermes(self, final: bool) -> bool:
        """The usual order of keys streams; any other is read once it is whole."""
        if match := HERMES_HEAD.match(self._buffer):
            name = _string(match[1])
            return self._begin(HermesReader(name), match.end()) if name is not None else self._no_call()
        end = self._buffer.find(END_CALL)
        if end < 0 and not final:
            return False
        reader = read_whole(self._buffer[:end] if end >= 0 else self._buffer)
        return self._begin(reader, 0) if reader else self._no_call()

    def _no_call(self) -> bool:
        """It was no call after all: the tag is content, and so is what follows it."""
        self._show(ContentDelta, self._raw)
        self._state = self._content
        return True

    def _begin(self, reader: CallReader, used: int) -> bool:
        """A call whose name is known: shown now, or kept until it is whole."""
        self._raw += self._buffer[:used]
        self._buffer = self._buffer[used:]
        self._reader, self._arguments, self._state = reader, "", self._in_call
        if self._config.stream_calls:
            self._deltas.append(self._call_start(reader.name))
        return True

    def _call_start(self, name: str) -> CallStart:
        index, self._calls = self._calls, self._calls + 1
        digest = blake2b(f"{self._config.seed}/{index}".encode(errors="replace"), digest_size=12).hexdigest()
        return CallStart(index, f"call_{digest}", name)

    def _in_call(self, final: bool) -> bool:
        reader = self._reader
        if reader is None:
            return False
        text, used = reader.read(self._buffer, final)
        self._raw += self._buffer[:used]
        self._buffer = self._buffer[used:]
        self._arguments += text
        if self._config.stream_calls and text:
            self._deltas.append(CallArguments(self._calls - 1, text))
        if reader.done or final:
            return self._end_call(reader)
        return False

    def _end_call(self, reader: CallReader) -> bool:
        """The call is whole, broken, or cut off. Shown in part it stays a call; else it is one only if it is whole."""
        self._reader, self._state = None, self._after_call
        if self._config.stream_calls:
            return True
        if reader.complete and _is_object(self._arguments):
            start = self._call_start(reader.name)
            self._deltas += [start, CallArguments(start.index, self._arguments)]
            return True
        return self._no_call()

    def _after_call(self, final: bool) -> bool:
        """Between a call's last argument and its closing tag; another function may stand there too."""
        another = XML_HEAD.search(self._buffer)
        ends = [(at + len(tag), tag) for tag in (END_CALL, CALL) if (at := self._buffer.find(tag)) >= 0]
        if another and all(another.end() < end for end, _ in ends):
            self._raw, self._buffer = "", self._buffer[another.start() :]
            self._state = self._open_call
        elif ends:
            end, tag = min(ends)
            self._buffer, self._raw, self._skip = self._buffer[end:], tag, BLANKS
            self._state = self._content if tag == END_CALL else self._open_call
        elif final:
            self._buffer, self._state = "", self._content
        else:
            return False
        return True


def _name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    return str(function.get("name")) if isinstance(function, Mapping) else ""


def _string(text: str) -> str | None:
    """The text of a JSON string; None where its escapes are wrong."""
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        return None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
