"""Grammars on llama.cpp itself: every text a schema's grammar writes is valid, the right texts are accepted, no grammar kills."""

import ctypes
import json
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jsonschema
import numpy as np
import pytest

from engine.errors import BadRequest
from engine.sampling import SamplingParams

if TYPE_CHECKING:
    from engine.llama import LlamaContext

pytestmark = pytest.mark.model

ODD = '"\\\n'
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 9},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "height": {"type": "number", "exclusiveMinimum": 0, "maximum": 3},
        "born": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"enum": ['a"b', "c\\d", "é", "new\nline"]}, "minItems": 1, "maxItems": 3},
        "friend": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name", "age", "friend"],
}
SCHEMAS: dict[str, Any] = {
    "person": PERSON,
    "anything": True,
    "any object": {"type": "object"},
    "extras": {"properties": {"a": {"type": "integer"}, "ab": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}},
    "odd keys": {
        "properties": {ODD: {"const": 'x"\\'}, "": {"type": "null"}},
        "required": ['"\\\n', ""],
        "additionalProperties": False,
    },
    "tuple": {
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "items": {"type": "boolean"},
        "minItems": 3,
        "maxItems": 5,
    },
    "all of": {"allOf": [{"properties": {"x": {"type": "integer"}}, "required": ["x"]}, {"properties": {"y": {"type": "null"}}}]},
    "one of": {"oneOf": [{"type": "object", "properties": {"k": True}, "required": ["k"]}, {"type": "null"}]},
    "tree": {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}}},
    "code": {"type": "string", "pattern": r"^[A-Z]{2,3}-\d+(\.\w{1,4})?$"},
    "found": {"type": "string", "pattern": 'q["\\\\/]u'},
    "choice": {"type": "string", "pattern": "^(foo|ba[rz]|[^a-z]{3})$"},
    "not a letter": {"type": "string", "pattern": r"^\D\S\W.$"},
    "long": {"type": "string", "minLength": 700, "maxLength": 1300},
    "when": {"type": "array", "items": {"type": "string", "format": "date-time"}, "minItems": 2, "maxItems": 2},
    "id": {"type": "string", "format": "uuid"},
}
VALID: dict[str, list[Any]] = {
    "person": [
        {"name": "Zoë", "age": 130, "friend": None},
        {
            "name": "A",
            "age": 0,
            "height": 2.75,
            "born": "2024-02-29",
            "tags": ["c\\d", "é"],
            "friend": {"name": "B", "age": 7, "friend": None},
        },
    ],
    "anything": [None, [], {}, [1, {"a": [True, "x\u2028y", -1.5e3]}]],
    "extras": [{}, {"a": 1}, {"ab": 2, "abc": True, "b": False}, {"a": 1, "ab": 2, "": True}],
    "odd keys": [{ODD: 'x"\\', "": None}],
    "tuple": [[1, "a", True], [1, "a", True, False, True]],
    "tree": [[], [[], [[]]]],
    "code": ["AB-1", "ABC-0123.a_9Z"],
    "found": ['q"u', "some q/u there", "q\\u"],
    "choice": ["foo", "baz", 'A"1', "\\\n9"],
    "not a letter": ["xy-z", '"""\\'],
    "long": ["x" * 700, "é" * 1300, "y" * 999],
}
INVALID: dict[str, list[Any]] = {
    "person": [{"name": "", "age": 1, "friend": None}, {"name": "A", "age": 131, "friend": None}, {"age": 1, "friend": None}, []],
    "extras": [{"a": True}, {"ab": True}, {"abc": 1}],
    "odd keys": [{}, {ODD: 'x"\\'}],
    "tuple": [[1, "a"], [1, "a", True, False, True, True], ["a", 1, True]],
    "code": ["A-1", "AB-", "AB-1.", "xAB-1"],
    "choice": ["fooo", "bax", "abc"],
    "long": ["x" * 699, "x" * 1301],
}


class Walker:
    """Walks a grammar without a model's logits: asks which tokens it allows, and lets it accept one."""

    def __init__(self, context: "LlamaContext", params: SamplingParams) -> None:
        from llama_cpp import llama_cpp

        from engine.sampler import LlamaSamplers

        self._c = llama_cpp
        self._model = context.model
        self._sampler = LlamaSamplers(context).make(params, ())
        self._bytes = {self._model.piece(token): token for token in reversed(range(context.n_vocab))}

    def allowed(self, tokens: Any) -> Any:
        rows = np.zeros(len(tokens), np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)]))
        rows["id"] = tokens
        data = ctypes.cast(rows.ctypes.data, self._c.llama_token_data_p)
        array = self._c.llama_token_data_array(data=data, size=len(rows), selected=-1, sorted=False)
        self._c.llama_sampler_apply(self._sampler._grammar, ctypes.byref(array))
        return rows["id"][np.isfinite(rows["logit"])]

    def accept(self, token: int) -> None:
        self._c.llama_sampler_accept(self._sampler._grammar, int(token))

    def accepts(self, text: str) -> bool:
        """Whether the grammar takes the text, byte by byte, and may end there."""
        for byte in text.encode():
            token = self._bytes[bytes([byte])]
            if not len(self.allowed([token])):
                return False
            self.accept(token)
        return bool(len(self.allowed(sorted(self._model.eog))))

    def write(self, rng: random.Random) -> str:
        """A random text of the grammar: short tokens, and the end or a closing mark as soon as one is allowed, mostly."""
        tokens: list[int] = []
        everything = [token for token in range(self._model.n_vocab) if self._is_short_text(token) or token in self._model.eog]
        closing = [self._bytes[mark] for mark in (b'"', b"]", b"}")]
        while len(tokens) < 6000:
            options = self.allowed(everything)
            ends = [t for t in options if t in self._model.eog] or [t for t in options if t in closing]
            token = int(rng.choice(ends if ends and rng.random() < 0.7 else list(options)))
            if token in self._model.eog:
                break
            self.accept(token)
            tokens.append(token)
        return self._model.detokenize(tokens).decode()

    def _is_short_text(self, token: int) -> bool:
        """Whole characters only: llama.cpp's grammars let broken UTF-8 through, which no trained model writes."""
        piece = self._model.piece(token)
        return len(piece) <= 2 and piece.decode("utf-8", "replace").encode() == piece

    def close(self) -> None:
        self._sampler.close()


MakeWalker = Callable[[SamplingParams], Walker]


@pytest.fixture
def walker(make_real: Callable[..., "LlamaContext"]) -> Iterator[MakeWalker]:
    context, made = make_real("tiny", ctx=256), []

    def make(params: SamplingParams) -> Walker:
        made.append(Walker(context, params))
        return made[-1]

    yield make
    for one in made:
        one.close()


def schema(name: str) -> SamplingParams:
    return SamplingParams(json_schema=json.dumps(SCHEMAS[name]))


@pytest.mark.parametrize("name", sorted(SCHEMAS.keys() - {"found"}))  # random letters never find that
def test_whatever_the_grammar_of_a_schema_writes_is_valid(walker: MakeWalker, name: str) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMAS[name])
    for seed in range(8):
        text = walker(schema(name)).write(random.Random(seed))
        validator.validate(json.loads(text))


@pytest.mark.parametrize("name", VALID)
def test_valid_values_are_accepted_compact_and_as_python_writes_them(walker: MakeWalker, name: str) -> None:
    for value in VALID[name]:
        for text in (json.dumps(value, ensure_ascii=False), json.dumps(value, separators=(",", ":"), ensure_ascii=False)):
            assert walker(schema(name)).accepts(text), text


@pytest.mark.parametrize("name", INVALID)
def test_invalid_values_are_not_accepted(walker: MakeWalker, name: str) -> None:
    for value in INVALID[name]:
        assert not walker(schema(name)).accepts(json.dumps(value, ensure_ascii=False)), value


def test_indented_json_is_accepted(walker: MakeWalker) -> None:
    assert walker(schema("person")).accepts(json.dumps(VALID["person"][0], indent=2, ensure_ascii=False))


def test_raw_control_characters_are_not_text(walker: MakeWalker) -> None:
    assert not walker(SamplingParams(json_schema='{"type": "string"}')).accepts('"a\nb"')


BROKEN_GRAMMARS = {
    "empty": "",
    "no root": 'start ::= "a"',
    "left recursion": 'root ::= root "a" | "b"',
    "an undefined rule": "root ::= missing",
    "an open class": "root ::= [a-",
    "an open literal": 'root ::= "a',
    "a bad escape": 'root ::= "\\q"',
    "an unknown token": "root ::= <no-such-token>",
    "a NUL": 'root ::= "a\0"',
    "deep nesting": "root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000,
    "too many repetitions": 'root ::= "a"{99999}',
    "a repetition from more to less": 'root ::= "a"{5,2}',
    "a repetition from more to less with spaces": 'root ::= "a"{ 5 , 2 }',
    "a number without end": 'root ::= "a"{99999999999999999999999999}',
    "repetitions without end": "\n".join(['root ::= "a"', *(f"r{i} ::= root{{1999}}" for i in range(200))]),
    "no GBNF at all": "please answer in JSON",
}


@pytest.mark.parametrize("text", BROKEN_GRAMMARS.values(), ids=BROKEN_GRAMMARS.keys())
def test_a_broken_grammar_is_a_bad_request_and_the_process_lives(make_real: Callable[..., "LlamaContext"], text: str) -> None:
    from engine.sampler import LlamaSamplers

    with pytest.raises(BadRequest) as caught:
        LlamaSamplers(make_real("tiny", ctx=256)).check(SamplingParams(grammar=text))
    assert caught.value.param == "grammar"


def test_brackets_and_braces_inside_literals_classes_and_comments_count_for_nothing(
    make_real: Callable[..., "LlamaContext"],
) -> None:
    from engine.sampler import LlamaSamplers

    text = "root ::= " + '"("{3} ' * 200 + '[(){5,2}] "{5,2}" # ((((( {5,2}\n'
    LlamaSamplers(make_real("tiny", ctx=256)).check(SamplingParams(grammar=text))
