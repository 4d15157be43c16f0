"""Readers of one tool call each, fed piece by piece: the arguments come out as JSON text as early as they can.

What a reader gives never depends on how the text was cut into pieces.
"""

import json
import re
from collections.abc import Mapping
from typing import Protocol

from engine.argtypes import STRING, quoted, to_json_value
from engine.stream import overlap

END_CALL, END_FUNCTION = "</tool_call>", "</function>"
FUNCTION, PARAMETER, END_PARAMETER = "<function=", "<parameter=", "</parameter>"
# No "<" in a name: a head must never reach over a closing tag.
HERMES_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\<]|\\[^<])*")\s*,\s*"arguments"\s*:\s*(?=\{)')
XML_HEAD = re.compile(r"\s*<function=([^<>\n]+)>")
XML_NEXT = re.compile(r"<parameter=([^<>\n]+)>(?:\n|(?=[^\n]))|(</function>)|(?=</tool_call>)")
XML_VALUE_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>|</tool_call>))")
AFTER_VALUE = (PARAMETER, END_FUNCTION, END_CALL)
IN_STRING = re.compile(r'[^"\\]*')
BETWEEN = re.compile(r'[^"{}\[\]<]*')


class CallReader(Protocol):
    """Reads the arguments of a call whose head is known."""

    name: str
    done: bool  # nothing more belongs to this call
    complete: bool  # and its arguments were whole

    def read(self, buffer: str, final: bool) -> tuple[str, int]:
        """More arguments text, and how many characters of the buffer were used; the rest comes again with what follows it."""
        ...


class HermesReader:
    """`{…}` of the arguments, passed on as the model wrote it, until its brackets are even."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = self.complete = False
        self._depth = 0
        self._quoted = False

    def read(self, buffer: str, final: bool) -> tuple[str, int]:
        at = 0
        while at < len(buffer) and not self.done:
            after = self._after_string_part(buffer, at) if self._quoted else self._after_bracket(buffer, at, final)
            if after == at:
                break
            at = after
        return buffer[:at], at

    def _after_string_part(self, buffer: str, at: int) -> int:
        at = _match_end(IN_STRING, buffer, at)
        if at == len(buffer):
            return at
        if buffer[at] == "\\":
            return min(at + 2, len(buffer)) if at + 1 < len(buffer) else at
        self._quoted = False
        return at + 1

    def _after_bracket(self, buffer: str, at: int, final: bool) -> int:
        """A closing tag between values means that the model lost count of its brackets."""
        at = _match_end(BETWEEN, buffer, at)
        if at == len(buffer):
            return at
        if buffer.startswith(END_CALL, at):
            self.done = True
            return at
        if buffer[at] == "<" and END_CALL.startswith(buffer[at:]) and not final:
            return at
        self._quoted = buffer[at] == '"'
        self._depth += (buffer[at] in "{[") - (buffer[at] in "}]")
        self.done = self.complete = self._depth == 0
        return at + 1


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


class WholeReader:
    """A call that was read whole before it could be told what it is: the arguments are known, the buffer is its text."""

    def __init__(self, name: str, arguments: str, length: int) -> None:
        self.name = name
        self.done = self.complete = True
        self._arguments = arguments
        self._length = length

    def read(self, buffer: str, final: bool) -> tuple[str, int]:
        return self._arguments, self._length


def read_whole(body: str) -> WholeReader | None:
    """A Hermes call in any order of keys, `parameters` for arguments, or arguments as JSON in a string; None if it is none."""
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return WholeReader(call["name"], text or "{}", len(body))


class XmlReader:
    """Parameters as bare text between tags. String values come out as they arrive, others once they are whole."""

    def __init__(self, name: str, types: Mapping[str, frozenset[str]]) -> None:
        self.name = name
        self.done = self.complete = False
        self._types = types
        self._key: str | None = None  # of the value being read
        self._value = ""  # of a value that is not a string, so far
        self._count = 0

    def read(self, buffer: str, final: bool) -> tuple[str, int]:
        text, used = "", 0
        while not self.done:
            step = self._tag if self._key is None else self._part
            piece, length = step(buffer[used:], final)
            text, used = text + piece, used + length
            if length == 0:
                break
        return text, used

    def _tag(self, buffer: str, final: bool) -> tuple[str, int]:
        match = XML_NEXT.search(buffer)
        if match is None:
            return "", 0
        if match[1] is None:
            self.done = self.complete = True
            return "}" if self._count else "{}", match.end()
        self._key, self._value = match[1], ""
        opening = (", " if self._count else "{") + quoted(self._key) + ": " + ('"' if self._is_string() else "")
        self._count += 1
        return opening, match.end()

    def _part(self, buffer: str, final: bool) -> tuple[str, int]:
        end = XML_VALUE_END.search(buffer)
        part = buffer[: end.start() if end else len(buffer) if final else _value_hold(buffer)]
        if self._is_string():
            text = quoted(part)[1:-1] + ('"' if end else "")
        else:
            self._value += part
            text = to_json_value(self._value, self._types_of_key()) if end else ""
        if end:
            self._key = None
        return text, end.end() if end else len(part)

    def _types_of_key(self) -> frozenset[str]:
        return self._types.get(self._key or "", STRING)

    def _is_string(self) -> bool:
        return self._types_of_key() <= STRING


def _value_hold(buffer: str) -> int:
    """From where on a value's text may still turn out to be its end: a closing tag counts only when a tag of ours follows it,
    so that a file that itself holds `</parameter>` can be an argument.
    """
    at = buffer.find(END_PARAMETER)
    while at >= 0:
        rest = buffer[at + len(END_PARAMETER) :].lstrip()
        if any(tag.startswith(rest) for tag in AFTER_VALUE):
            return _before_break(buffer, at)
        at = buffer.find(END_PARAMETER, at + 1)
    return _before_break(buffer, len(buffer) - overlap(buffer, END_PARAMETER))


def _before_break(buffer: str, at: int) -> int:
    return at - 1 if at and buffer[at - 1] == "\n" else at
