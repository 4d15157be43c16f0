"""JSON Schema to a GBNF grammar whose every text is valid under the schema.

Written here because llama-cpp-python's converter makes broken literals of values with a backslash, lets raw control characters
into strings, and ignores number bounds. What a grammar cannot hold is refused by name, never dropped in silence; annotations
(title, description, default, unknown formats) are ignored, and oneOf is read as anyOf: its options mostly exclude each other by
themselves, and a grammar cannot make them. Properties come in the schema's order; those that are not declared
are written only where additionalProperties asks for them, as llama-server has it.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from engine.errors import BadRequest
from engine.gbnf import Gbnf, char_class, either, literal
from engine.json_merge import merge
from engine.json_numbers import Bounds, integer, number
from engine.json_strings import ANY, FORMATS, PLAIN, is_plain, pattern

_PARAM = "json_schema"
_REFUSED = (
    "not",
    "if",
    "then",
    "else",
    "contains",
    "uniqueItems",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "dependentSchemas",
    "dependentRequired",
    "dependencies",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
)
_BY_KEYWORD = (
    ("object", ("properties", "required", "additionalProperties")),
    ("array", ("items", "prefixItems", "minItems", "maxItems")),
    ("string", ("pattern", "minLength", "maxLength", "format")),
    ("number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
)
_TYPES = ("string", "integer", "number", "boolean", "null", "object", "array")
_MOST_DEPTH = 64
_MOST_COUNT = 100_000
_SPACE = '| " " | "\\n" [ \\t]{0,20}'

Schema = Mapping[str, Any]


def schema_to_grammar(text: str) -> str:
    """GBNF for the JSON text of a schema. Raises BadRequest, naming the keyword, for what no grammar can hold."""
    try:
        schema = json.loads(text)
        return _Converter(schema).grammar()
    except json.JSONDecodeError as error:
        raise BadRequest(f"the schema is no JSON: {error}", _PARAM) from error
    except RecursionError as error:
        raise BadRequest("the schema is nested too deeply", _PARAM) from error


class _Converter:
    """One schema's conversion; every method that makes a value returns the name of its rule."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._gbnf = Gbnf()
        self._refs: dict[str, str] = {}
        self._depth = 0
        self._space = self._gbnf.rule("space", _SPACE)
        self._char = self._gbnf.rule("char", ANY)
        self._string = self._gbnf.rule("string", f'"\\"" {self._char}* "\\""')

    def grammar(self) -> str:
        return self._gbnf.text(self.value(self._root, "value"))

    def value(self, schema: Any, hint: str) -> str:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise _refusal(f"the schema is nested more than {_MOST_DEPTH} deep")
        try:
            return self._value(schema, hint)
        finally:
            self._depth -= 1

    def _value(self, schema: Any, hint: str) -> str:
        if schema is True or schema == {}:
            return self._anything()
        if not isinstance(schema, dict):
            raise _refusal(f"{json.dumps(schema)[:80]} is no schema that a value can satisfy")
        for keyword in _REFUSED:
            if schema.get(keyword) not in (None, False):
                raise _refusal(f"the keyword {keyword!r} cannot be kept by a grammar")
        if "$ref" in schema:
            return self._reference(schema, hint)
        if "allOf" in schema:
            return self.value(self._merged(_without(schema, "allOf"), _schemas(schema, "allOf")), hint)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                base = _without(schema, keyword)
                options = [self.value(self._merged(base, [option]), hint) for option in _schemas(schema, keyword)]
                return self._gbnf.rule(hint, either(options))
        return self._plain(schema, hint)

    def _merged(self, base: Schema, others: Iterable[Any]) -> Any:
        """One schema for all; a lone reference stays one, so that a recursive schema stays finite."""
        found: Any = base
        for other in others:
            if not _restricts(found):
                found = other
            elif isinstance(other, dict) and "$ref" in other:
                found = merge(merge(found, self._target(other["$ref"])), _without(other, "$ref"))
            elif other is not True:
                found = merge(found, other)
        return found

    def _reference(self, schema: Schema, hint: str) -> str:
        reference, beside = schema["$ref"], _without(schema, "$ref")
        if _restricts(beside):
            return self.value(merge(beside, self._target(reference)), hint)
        if reference not in self._refs:
            name = self._refs[reference] = self._gbnf.reserve(str(reference).rpartition("/")[2])
            self._gbnf.define(name, self.value(self._target(reference), hint))
        return self._refs[reference]

    def _target(self, reference: Any) -> Any:
        """What a local reference names: JSON Pointer (RFC 6901) into the schema itself."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise _refusal(f"the reference {reference!r} does not point into the schema itself (#/…)")
        found = self._root
        for part in reference.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and part.isdigit() and int(part) < len(found):
                found = found[int(part)]
            elif isinstance(found, dict) and part in found:
                found = found[part]
            else:
                raise _refusal(f"the reference {reference!r} names nothing")
        return found

    def _plain(self, schema: Schema, hint: str) -> str:
        if "const" in schema:
            return self._gbnf.rule(hint, _constant(schema["const"]))
        if "enum" in schema:
            if not isinstance(schema["enum"], list) or not schema["enum"]:
                raise _refusal("'enum' must be a list with something in it")
            return self._gbnf.rule(hint, either(map(_constant, schema["enum"])))
        kind = schema.get("type", _inferred(schema))
        if isinstance(kind, list):
            if not kind:
                raise _refusal("'type' is an empty list")
            return self._gbnf.rule(hint, either(self._typed(one, schema, hint) for one in kind))
        return self._typed(kind, schema, hint)

    def _typed(self, kind: Any, schema: Schema, hint: str) -> str:
        if kind is None:
            return self._anything()
        if kind not in _TYPES:
            raise _refusal(f"the type {json.dumps(kind)} is none of {', '.join(_TYPES)}")
        if kind == "object":
            return self._object(schema, hint)
        if kind == "array":
            return self._array(schema, hint)
        if kind == "string":
            return self._text(schema, hint)
        if kind in ("integer", "number"):
            return self._number(kind, schema, hint)
        return self._gbnf.rule(kind, '"true" | "false"' if kind == "boolean" else '"null"')

    def _anything(self) -> str:
        if "" not in self._refs:
            name = self._refs[""] = self._gbnf.reserve("anything")
            one = either([self._string, *(self._typed(kind, {}, kind) for kind in ("number", "boolean", "null"))])
            pair = f'{self._string} {self._space} ":" {self._space} {name}'
            items, pairs = self._listed(name, 0, None), self._listed(self._gbnf.rule("pair", pair), 0, None)
            self._gbnf.define(name, f'{one} | "[" {self._space} {items} "]" | "{{" {self._space} {pairs} "}}"')
        return self._refs[""]

    # Strings and numbers

    def _text(self, schema: Schema, hint: str) -> str:
        low, high = _count(schema, "minLength", 0), _count(schema, "maxLength", None)
        bounded = bool(low) or high is not None
        if "pattern" in schema:
            if bounded:
                raise _refusal("'pattern' together with 'minLength' or 'maxLength' cannot be kept by a grammar")
            if not isinstance(schema["pattern"], str):
                raise _refusal("'pattern' must be a string")
            body = pattern(self._gbnf, schema["pattern"])
        elif schema.get("format") in FORMATS:
            body = FORMATS[schema["format"]]
        elif bounded:
            body = self._repeat(self._char, low or 0, high, "Length")
        else:
            return self._string
        return self._gbnf.rule(hint, f'"\\"" {body} "\\""')

    def _number(self, kind: str, schema: Schema, hint: str) -> str:
        if schema.get("multipleOf", 1) != 1 or ("multipleOf" in schema and kind == "number"):
            raise _refusal("the keyword 'multipleOf' cannot be kept by a grammar")
        body = (integer if kind == "integer" else number)(_bounds(schema))
        if body is None:
            raise _refusal("no number lies between the bounds")
        return self._gbnf.rule(kind if body in (integer(Bounds()), number(Bounds())) else hint, body)

    # Arrays and objects

    def _array(self, schema: Schema, hint: str) -> str:
        items, prefix = schema.get("items", True), schema.get("prefixItems", [])
        if isinstance(items, list):  # drafts before 2020-12
            items, prefix = schema.get("additionalItems", True), items
        low, high = _count(schema, "minItems", 0) or 0, _count(schema, "maxItems", None)
        first = [self.value(one, f"{hint}-{at}") for at, one in enumerate(prefix)]
        if items is False or (first and "items" not in schema):
            high = len(first) if high is None else min(high, len(first))
        if high is not None and (high < low or high < len(first)):
            raise _refusal("'prefixItems', 'minItems' and 'maxItems' contradict each other")
        rest = self._rest(items, hint, bool(first), max(0, low - len(first)), None if high is None else high - len(first))
        body = f' {self._space} "," {self._space} '.join(first) + rest
        return self._gbnf.rule(hint, f'"[" {self._space} {body} {self._space} "]"')

    def _rest(self, items: Any, hint: str, follows: bool, low: int, high: int | None) -> str:
        """The items after the prefix, which differ in nothing."""
        if high == 0:
            return ""
        item = self.value(items, f"{hint}-item")
        if not follows:
            return self._listed(item, low, high)
        more = self._gbnf.rule(f"{hint}-more", f'{self._space} "," {self._space} {item}')
        return " " + self._repeat(more, low, high, "Items")

    def _listed(self, item: str, low: int, high: int | None) -> str:
        """`item` with commas between."""
        if high == 0:
            return ""
        more = self._gbnf.rule(f"{item}-more", f'{self._space} "," {self._space} {item}')
        others = self._repeat(more, max(0, low - 1), None if high is None else high - 1, "Items")
        return f"{item} {others}" if low else f"({item} {others})?"

    def _repeat(self, item: str, low: int, high: int | None, what: str) -> str:
        if high is not None and high < low:
            raise _refusal(f"'min{what}' is above 'max{what}'")
        return self._gbnf.repeat(item, low, high)

    def _object(self, schema: Schema, hint: str) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise _refusal("'properties' must be an object and 'required' a list")
        extra = schema.get("additionalProperties", not properties)
        undeclared = [name for name in required if name not in properties]
        if undeclared and schema.get("additionalProperties") is False:
            raise _refusal(f"{undeclared[0]!r} is required and not allowed")
        wanted = {**properties, **dict.fromkeys(undeclared, extra or True)}
        pairs = [(self._pair(name, one, hint), name in required) for name, one in wanted.items()]
        others = self._others(extra, wanted, hint) if extra is not False else ""
        members = self._members(pairs, others, hint)
        return self._gbnf.rule(hint, f'"{{" {self._space} {members} "}}"')

    def _pair(self, name: str, schema: Any, hint: str) -> str:
        value = self.value(schema, f"{hint}-{name}")
        return self._gbnf.rule(f"{hint}-{name}-pair", f'{_constant(name)} {self._space} ":" {self._space} {value} {self._space}')

    def _others(self, schema: Any, names: Iterable[str], hint: str) -> str:
        key = self._gbnf.rule(f"{hint}-key", f'"\\"" {self._key_but([name for name in names if is_plain(name)], hint)} "\\""')
        value = self.value(schema, f"{hint}-other")
        return self._gbnf.rule(f"{hint}-other-pair", f'{key} {self._space} ":" {self._space} {value} {self._space}')

    def _key_but(self, names: list[str], hint: str) -> str:
        """A key without escapes that is none of `names`, letter by letter: a key twice in an object would be ambiguous."""
        starts: dict[str, list[str]] = {}
        for name in filter(None, names):  # "" is the name that ends here
            starts.setdefault(name[0], []).append(name[1:])
        if not starts:
            return f"{PLAIN}+" if "" in names else f"{PLAIN}*"
        other = char_class(_but(starts))
        options = [f"{other} {PLAIN}*"]
        for letter, rests in starts.items():
            options.append(f"{literal(letter)} {self._gbnf.rule(f'{hint}-key', self._key_but(rests, hint))}")
        return either(options) + ("" if "" in names else "?")

    def _members(self, pairs: list[tuple[str, bool]], others: str, hint: str) -> str:
        """The pairs in order, optional ones or not, and any number of others: built from the end, once for a place where
        something stands before (so a comma comes first) and once for one where nothing does."""
        comma = f'"," {self._space}'
        first = after = ""
        if others:
            more = self._gbnf.rule(f"{hint}-others", f"{comma} {others}")
            first, after = f"({others} {more}*)?", f"{more}*"
        for pair, needed in reversed(pairs):
            tail = self._gbnf.rule(f"{hint}-rest", after) if after else ""
            first, after = (
                f"{pair} {tail}"
                if needed
                else either([f"{pair} {tail}", self._gbnf.rule(f"{hint}-start", first) if first else '""']),
                f"{comma} {pair} {tail}" if needed else f"({comma} {pair})? {tail}",
            )
        return first


def _bounds(schema: Schema) -> Bounds:
    """The narrowest of the bounds named; an open end wins over a closed one at the same number."""
    lows = [(_whole(schema[key]), key != "minimum") for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [(_whole(schema[key]), key == "maximum") for key in ("maximum", "exclusiveMaximum") if key in schema]
    low, low_open = max(lows) if lows else (None, False)
    high, high_closed = min(highs) if highs else (None, True)
    return Bounds(low, high, low_open, not high_closed)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e15 or value != int(value):
        raise _refusal(f"the bound {json.dumps(value)} cannot be kept by a grammar: it must be a whole number")
    return int(value)


def _count(schema: Schema, keyword: str, default: int | None) -> int | None:
    value = schema.get(keyword, default)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_COUNT):
        return value
    raise _refusal(f"{keyword!r} must be a whole number from 0 to {_MOST_COUNT}")


def _constant(value: Any) -> str:
    return literal(json.dumps(value, ensure_ascii=False))


def _inferred(schema: Schema) -> str | None:
    """The type whose keywords the schema uses, when it names none."""
    return next((kind for kind, keywords in _BY_KEYWORD if any(keyword in schema for keyword in keywords)), None)


def _restricts(schema: Any) -> bool:
    """Whether anything but annotations is in it."""
    annotations = (
        "title",
        "description",
        "default",
        "examples",
        "$defs",
        "definitions",
        "$schema",
        "$id",
        "$comment",
        "deprecated",
    )
    return not isinstance(schema, dict) or any(key not in annotations for key in schema)


def _schemas(schema: Schema, keyword: str) -> list[Any]:
    found = schema[keyword]
    if not isinstance(found, list) or not found:
        raise _refusal(f"{keyword!r} must be a list with something in it")
    return found


def _without(schema: Schema, keyword: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != keyword}


def _but(letters: Iterable[str]) -> list[tuple[int, int]]:
    """The plain characters without some."""
    ranges, start = [], 0x20
    for code in sorted({ord(letter) for letter in letters} | {0x22, 0x5C, 0x7F}):
        if start <= code - 1:
            ranges.append((start, code - 1))
        start = max(start, code + 1)
    return [*ranges, (start, 0xD7FF), (0xE000, 0x10FFFF)]


def _refusal(why: str) -> BadRequest:
    return BadRequest(why, _PARAM)
