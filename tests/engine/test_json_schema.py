"""JSON schemas as grammars: numbers checked exhaustively, what a grammar cannot hold refused by name."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import BadRequest
from engine.gbnf import Gbnf
from engine.json_merge import merge
from engine.json_numbers import Bounds, integer, number
from engine.json_schema import schema_to_grammar


def as_regex(expression: str) -> re.Pattern[str]:
    """Number grammars use literals, classes, counts and groups only, which regular expressions have too."""
    parts = re.findall(r'"([^"]*)"|(\[[^\]]*\]|\{[0-9,]*\}|[()|?*+])', expression)
    return re.compile("".join(re.escape(text) if text else other for text, other in parts))


small = st.integers(-1300, 1300)


@given(st.none() | small, st.none() | small, st.booleans(), st.booleans())
def test_an_integer_grammar_accepts_exactly_the_numbers_within_its_bounds(
    low: int | None, high: int | None, low_open: bool, high_open: bool
) -> None:
    expression = integer(Bounds(low, high, low is not None and low_open, high is not None and high_open))
    accepted = set() if expression is None else {n for n in range(-1500, 1500) if as_regex(expression).fullmatch(str(n))}
    assert accepted == {n for n in range(-1500, 1500) if within(n, low, high, low_open, high_open)}


def within(n: float, low: int | None, high: int | None, low_open: bool, high_open: bool) -> bool:
    above = low is None or n > low or (n == low and not low_open)
    return above and (high is None or n < high or (n == high and not high_open))


@given(st.integers(-30, 30), st.integers(-30, 30), st.booleans(), st.booleans())
def test_a_number_grammar_accepts_exactly_the_decimals_within_its_bounds(
    low: int, high: int, low_open: bool, high_open: bool
) -> None:
    expression = number(Bounds(low, high, low_open, high_open))
    for tenths in range(-330, 331, 5):
        accepted = expression is not None and bool(as_regex(expression).fullmatch(repr(tenths / 10).replace("-0.0", "0.0")))
        assert accepted == within(tenths / 10, low, high, low_open, high_open), (expression, tenths)


def test_no_number_has_leading_zeros() -> None:
    for expression in (integer(Bounds(0, 500)), integer(Bounds(0, None)), number(Bounds(-20, 20)), integer(Bounds())):
        assert expression is not None
        assert not as_regex(expression).fullmatch("007") and not as_regex(expression).fullmatch("-01")


@given(st.integers(0, 2600), st.integers(0, 2600))
def test_long_repetitions_are_built_of_short_ones_that_add_up(low: int, more: int) -> None:
    gbnf = Gbnf()
    item = gbnf.rule("item", '"a"')
    expression = gbnf.repeat(item, low, low + more)
    for count in {low - 1, low, low + more // 2, low + more, low + more + 1}:
        assert (count in lengths(gbnf, expression)) == (low <= count <= low + more)


def lengths(gbnf: Gbnf, expression: str) -> range | set[int]:
    """How many characters an expression of repeated rules can have."""
    bodies = dict(re.findall(r"^(\S+) ::= (.*)$", gbnf.text("item"), re.MULTILINE))
    found = {0}
    for part in split(expression):
        options: set[int] = set()
        if part.startswith("("):
            for branch in re.split(r" \| ", part[1:-1]):
                options |= set(lengths(gbnf, branch))
        else:
            name, low, high = re.fullmatch(r"(\S+?)\{(\d+),?(\d*)\}", part).groups()  # type: ignore[union-attr]
            one = 1 if name == "item" else max(lengths(gbnf, bodies[name]))
            options = {one * n for n in range(int(low), int(high or low) + 1)}
        found = {a + b for a in found for b in options}
    return found


def split(expression: str) -> list[str]:
    """At spaces outside of brackets."""
    return re.findall(r"\((?:[^()]|\([^()]*\))*\)|\S+", expression)


REFUSED = {
    "no JSON": "{",
    "no schema": "3",
    "never": "false",
    "an unknown type": '{"type": "float"}',
    "no types": '{"type": []}',
    "not": '{"not": {"type": "null"}}',
    "unique items": '{"type": "array", "uniqueItems": true}',
    "multiples": '{"type": "integer", "multipleOf": 3}',
    "a fraction as a bound": '{"type": "number", "minimum": 0.5}',
    "nothing between bounds": '{"type": "integer", "minimum": 5, "maximum": 4}',
    "lengths that cross": '{"type": "string", "minLength": 5, "maxLength": 4}',
    "a length that is none": '{"type": "string", "minLength": "5"}',
    "a huge length": '{"type": "string", "maxLength": 100000000}',
    "pattern and length": '{"type": "string", "pattern": "a", "maxLength": 4}',
    "a broken pattern": '{"type": "string", "pattern": "("}',
    "look-ahead": '{"type": "string", "pattern": "(?=a)b"}',
    "a back reference": '{"type": "string", "pattern": "(a)\\\\1"}',
    "an anchor inside": '{"type": "string", "pattern": "a^b"}',
    "a word boundary": '{"type": "string", "pattern": "\\\\bword"}',
    "a remote reference": '{"$ref": "https://example.org/schema"}',
    "a reference to nothing": '{"$ref": "#/$defs/missing"}',
    "an empty enum": '{"enum": []}',
    "an empty anyOf": '{"anyOf": []}',
    "what is required and forbidden": '{"type": "object", "required": ["a"], "additionalProperties": false}',
    "types that exclude each other": '{"allOf": [{"type": "string"}, {"type": "null"}]}',
    "an endless allOf": '{"allOf": [{"type": "object"}, {"$ref": "#"}]}',
    "deep nesting": '{"items":' * 100 + "{}" + "}" * 100,
    "deeper JSON than Python reads": "[" * 100_000,
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED.keys())
def test_what_a_grammar_cannot_hold_is_refused_with_the_parameter_named(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        schema_to_grammar(text)
    assert caught.value.param == "json_schema"


def test_annotations_and_unknown_keywords_change_nothing() -> None:
    plain = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    noted = {
        "title": "T",
        "$schema": "x",
        "default": {},
        "x-order": 1,
        **plain,
        "properties": {"a": {"type": "string", "format": "email"}},
    }
    assert schema_to_grammar(json.dumps(noted)) == schema_to_grammar(json.dumps(plain))


def test_the_same_schema_gives_the_same_grammar() -> None:
    text = json.dumps({"properties": {name: {"type": ["string", "null"]} for name in "qwertyuiop"}, "additionalProperties": True})
    assert schema_to_grammar(text) == schema_to_grammar(text)


def test_merging_keeps_what_both_demand() -> None:
    first = {"type": ["number", "string"], "required": ["a"], "minimum": 1, "properties": {"a": True, "b": {"type": "null"}}}
    second = {"type": "integer", "required": ["b", "a"], "minimum": 4, "properties": {"b": {"title": "B"}}}
    assert merge(first, second) == {
        "type": ["integer"],
        "required": ["a", "b"],
        "minimum": 4,
        "properties": {"a": True, "b": {"allOf": [{"type": "null"}, {"title": "B"}]}},
    }
