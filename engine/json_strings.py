"""GBNF for what stands between the quotes of a JSON string: any text, formats, and regular expressions without look-around."""

import re
from collections.abc import Callable, Iterable, Sequence
from re import _constants, _parser  # type: ignore[attr-defined]  # Python's own parser of patterns, as sre_parse always was
from typing import Any

from engine.errors import BadRequest
from engine.gbnf import Gbnf, Range, char_class, either, literal

_LAST = 0x10FFFF
_HEX = "[0-9a-fA-F]"
_PLAIN_RANGES = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0x80, 0xD7FF), (0xE000, _LAST))  # no escape needed, and none meant
_ESCAPED = {0x22: r"\"", 0x5C: r"\\", 0x08: r"\b", 0x0C: r"\f", 0x0A: r"\n", 0x0D: r"\r", 0x09: r"\t"}
PLAIN = char_class(_PLAIN_RANGES)
# Half of a surrogate pair alone is no text, so \uD800 to \uDFFF are left out.
ANY = f'{PLAIN} | "\\\\" (["\\\\/bfnrt] | "u" ([0-9a-cefA-CEF] {_HEX}{{3}} | [dD] [0-7] {_HEX}{{2}}))'
_DATE = '[0-9]{4} "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])'
_CLOCK = '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9]'
_TIME = f'{_CLOCK} ":" [0-5] [0-9] ("." [0-9]{{1,6}})? ("Z" | [-+] {_CLOCK})'
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": ' "-" '.join(f"{_HEX}{{{n}}}" for n in (8, 4, 4, 4, 12)),
}
# What \d, \w and \s mean differs between ECMAScript, which JSON Schema names, and Python, which validators use. A class takes
# what both include, its opposite leaves out what either includes.
_CATEGORIES: dict[Any, tuple[Range, ...]] = {
    _constants.CATEGORY_DIGIT: ((0x30, 0x39),),
    _constants.CATEGORY_WORD: ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    _constants.CATEGORY_SPACE: ((0x09, 0x0D), (0x20, 0x20)),
}
_WIDE: dict[Any, tuple[Range, ...]] = {
    _constants.CATEGORY_DIGIT: ((0x30, 0x39), (0x250, 0x3FFF), (0xA000, _LAST)),
    _constants.CATEGORY_WORD: ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A), (0x80, _LAST)),
    _constants.CATEGORY_SPACE: (
        (0x09, 0x0D),
        (0x1C, 0x20),
        (0x85, 0x85),
        (0xA0, 0xA0),
        (0x1680, 0x1680),
        (0x2000, 0x3000),
        (0xFEFF, 0xFEFF),
    ),
}
_OPPOSITE = {
    _constants.CATEGORY_NOT_DIGIT: _constants.CATEGORY_DIGIT,
    _constants.CATEGORY_NOT_WORD: _constants.CATEGORY_WORD,
    _constants.CATEGORY_NOT_SPACE: _constants.CATEGORY_SPACE,
}
_STARTS = (_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING)
_ENDS = (_constants.AT_END, _constants.AT_END_STRING)


def pattern(gbnf: Gbnf, text: str) -> str:
    """The expression for JSON-escaped strings in which the regular expression is found (anchored only where it says so).

    Raises BadRequest for one that does not parse, or that needs look-around, back references or flags.
    """
    try:
        parsed = list(_parser.parse(text))
    except (re.error, RecursionError, OverflowError) as error:
        raise BadRequest(f"the pattern {text!r} is no regular expression: {error}", "json_schema") from error
    any_text = f"{gbnf.rule('char', ANY)}*"
    starts, parsed = _strip(parsed, 0, _STARTS)
    ends, parsed = _strip(parsed, -1, _ENDS)
    parts = ["" if starts else any_text, _Pattern(gbnf, text).sequence(parsed), "" if ends else any_text]
    return " ".join(filter(None, parts))


def _strip(parsed: list[Any], at: int, anchors: Sequence[Any]) -> tuple[bool, list[Any]]:
    """Whether an anchor stands there, and the rest; in a choice it has to stand in every branch."""
    if not parsed:
        return False, parsed
    op, value = parsed[at]
    if op is _constants.AT and value in anchors:
        return True, parsed[1:] if at == 0 else parsed[:-1]
    if op is _constants.BRANCH and (at == -1 or len(parsed) == 1):
        branches = [_strip(list(branch), at, anchors) for branch in value[1]]
        if all(found for found, _ in branches):
            return True, [*parsed[:-1], (op, (None, [rest for _, rest in branches]))]
    return False, parsed


def is_plain(text: str) -> bool:
    """Whether a JSON string can hold it without escapes."""
    return all(any(low <= ord(char) <= high for low, high in _PLAIN_RANGES) for char in text)


class _Pattern:
    """The parsed pattern's elements as GBNF."""

    def __init__(self, gbnf: Gbnf, text: str) -> None:
        self._gbnf = gbnf
        self._text = text

    def sequence(self, elements: Iterable[Any]) -> str:
        return " ".join(filter(None, (self._element(op, value) for op, value in elements)))

    def _element(self, op: Any, value: Any) -> str:
        write: Callable[[Any], str] | None = {
            _constants.LITERAL: lambda code: self._chars([(code, code)]),
            _constants.NOT_LITERAL: lambda code: self._chars(_complement([(code, code)])),
            _constants.ANY: lambda _: self._chars(_complement([(0x0A, 0x0A)])),
            _constants.IN: self._set,
            _constants.BRANCH: lambda branches: either([self.sequence(branch) or '""' for branch in branches[1]]),
            _constants.SUBPATTERN: self._group,
            _constants.MAX_REPEAT: self._repeat,
            _constants.MIN_REPEAT: self._repeat,
        }.get(op)
        if write is None:
            raise BadRequest(f"the pattern {self._text!r} uses {str(op).lower()}, which no grammar can hold", "json_schema")
        return write(value)

    def _group(self, value: Any) -> str:
        _, add_flags, remove_flags, inner = value
        if add_flags or remove_flags:
            raise BadRequest(f"the pattern {self._text!r} sets flags, which no grammar can hold", "json_schema")
        return f"({self.sequence(inner)})" if list(inner) else ""

    def _repeat(self, value: Any) -> str:
        low, high, inner = value
        body = self.sequence(inner)
        most = None if high is _constants.MAXREPEAT else int(high)
        return self._gbnf.repeat(self._gbnf.rule("part", body), int(low), most) if body else ""

    def _set(self, items: Any) -> str:
        negated = bool(items) and items[0][0] is _constants.NEGATE
        ranges = [found for op, value in items[negated:] for found in _ranges(op, value, negated)]
        return self._chars(_complement(ranges) if negated else ranges)

    def _chars(self, ranges: Iterable[Range]) -> str:
        """One character of the ranges, as a JSON string writes it."""
        ranges = list(ranges)
        plain = _intersect(ranges, _PLAIN_RANGES)
        found = [char_class(plain)] if plain else []
        found += [literal(text) for code, text in _ESCAPED.items() if any(low <= code <= high for low, high in ranges)]
        if not found:
            raise BadRequest(f"the pattern {self._text!r} asks for a character that JSON text cannot hold here", "json_schema")
        return either(found)


def _ranges(op: Any, value: Any, negated: bool) -> tuple[Range, ...]:
    """The characters of one member of a set; as many as either dialect includes when the set is negated."""
    if op is _constants.LITERAL:
        return ((value, value),)
    if op is _constants.RANGE:
        return (value,)
    if value in _OPPOSITE:
        return tuple(_complement((_CATEGORIES if negated else _WIDE)[_OPPOSITE[value]]))
    return (_WIDE if negated else _CATEGORIES)[value]


def _complement(ranges: Iterable[Range]) -> list[Range]:
    found, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return [*found, (start, _LAST)] if start <= _LAST else found


def _intersect(first: Iterable[Range], second: Iterable[Range]) -> list[Range]:
    pairs = [(max(a, c), min(b, d)) for a, b in first for c, d in second]
    return sorted({(low, high) for low, high in pairs if low <= high})
