"""Writing GBNF: rules with names, literals, character classes, and repetitions that llama.cpp's parser accepts.

A repetition above 2,000 is refused or silently made endless there (MAX_REPETITION_THRESHOLD), so long ones are built from chunks.
"""

import re
from collections.abc import Iterable

from engine.errors import BadRequest

_CHUNK = 500
_MOST_RULES = 15_000
_UNSAFE = re.compile(r'["\\\x00-\x1f\x7f]')

Range = tuple[int, int]
"""Code points, both ends included."""


class Gbnf:
    """A grammar under construction. Rules with equal bodies are one rule."""

    def __init__(self) -> None:
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def rule(self, hint: str, body: str) -> str:
        """The name of a rule with that body; `hint` is for who reads the grammar."""
        name = self._names.get(body)
        if name is None:
            name = self._names[body] = self.reserve(hint)
            self._bodies[name] = body
        return name

    def reserve(self, hint: str) -> str:
        """A name whose body comes later (a rule that refers to itself). Raises BadRequest when there are too many rules."""
        if len(self._bodies) >= _MOST_RULES:
            raise BadRequest(f"the schema needs more than {_MOST_RULES} grammar rules", "json_schema")
        clean = re.sub(r"[^A-Za-z0-9]+", "-", hint).strip("-")[:40] or "rule"
        name, number = clean, 1
        while name in self._bodies or name == "root":
            number += 1
            name = f"{clean}-{number}"
        self._bodies[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        self._bodies[name] = body

    def text(self, root: str) -> str:
        """The grammar, its start `root` being a rule's name."""
        return "\n".join([f"root ::= {root}", *(f"{name} ::= {body}" for name, body in self._bodies.items())]) + "\n"

    def repeat(self, item: str, low: int, high: int | None) -> str:
        """`item`, a rule's name, from `low` to `high` times (None: no end); may be the empty expression."""
        if high is None:
            return f"{self._times(item, low)} {item}*".strip()
        return f"{self._times(item, low)} {self._up_to(item, high - low)}".strip()

    def _times(self, item: str, count: int) -> str:
        if count <= _CHUNK:
            return f"{item}{{{count}}}" if count else ""
        chunks, rest = divmod(count, _CHUNK)
        return f"{self._times(self._chunk(item), chunks)} {self._times(item, rest)}".strip()

    def _up_to(self, item: str, count: int) -> str:
        """All chunks and up to the rest, or fewer chunks and less than one more."""
        if count <= _CHUNK:
            return f"{item}{{0,{count}}}" if count > 0 else ""
        chunks, rest = divmod(count, _CHUNK)
        chunk = self._chunk(item)
        whole = f"{self._times(chunk, chunks)} {self._up_to(item, rest)}"
        return f"({whole} | {self._up_to(chunk, chunks - 1)} {self._up_to(item, _CHUNK - 1)})"

    def _chunk(self, item: str) -> str:
        return self.rule(f"{item}-{_CHUNK}", f"{item}{{{_CHUNK}}}")


def literal(text: str) -> str:
    """The expression that is exactly this text."""
    return '"' + _UNSAFE.sub(lambda found: _escape(ord(found.group())), text) + '"'


def char_class(ranges: Iterable[Range]) -> str:
    """The expression for one character of the ranges."""
    return "[" + "".join(_escape(low) if low == high else f"{_escape(low)}-{_escape(high)}" for low, high in ranges) + "]"


def either(alternatives: Iterable[str]) -> str:
    """One of the alternatives, in brackets where that is needed."""
    several = list(dict.fromkeys(alternatives))
    return several[0] if len(several) == 1 else "(" + " | ".join(several) + ")"


def _escape(code: int) -> str:
    if code < 128 and chr(code).isalnum():
        return chr(code)
    return f"\\u{code:04X}" if code < 1 << 16 else f"\\U{code:08X}"
