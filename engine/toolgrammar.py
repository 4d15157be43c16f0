"""A GBNF grammar that makes the model call a tool, in the form its template teaches (engine/toolparse.py reads it back).

For tool_choice "required" and for a named tool. The head of a call and the values of typed parameters are fixed by the grammar;
a string parameter of the XML form is free text up to its closing tag, as the model was trained to write it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.argtypes import STRING, schema_types
from engine.json_schema import schema_to_grammar
from engine.toolparse import Dialect

ROOT = "root"
FREE_TEXT = '( [^<] | "<" [^/] )*'
DEFINITIONS = ("$defs", "definitions")
# A literal, a character class, a comment, or (group 1) a rule's name.
GBNF_PART = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|#[^\n]*|([A-Za-z][A-Za-z0-9_-]*)', re.DOTALL)


def tool_grammar(tools: Sequence[Mapping[str, Any]], dialect: Dialect, *, several: bool) -> str:
    """The grammar of one call, or with `several` of one or more, to any of the OpenAI tool definitions.

    Raises BadRequest where a tool's schema cannot be made a grammar.
    """
    rules: list[str] = []
    calls = [_call(f"t{number}", tool["function"], dialect, rules) for number, tool in enumerate(tools)]
    more = ' ( "\\n" call )*' if several else ""
    return "\n".join([f"{ROOT} ::= call{more}", f"call ::= {' | '.join(calls)}", *rules])


def after_thinking(grammar: str) -> str:
    """The same grammar behind the rest of an open think block."""
    return f'{ROOT} ::= {FREE_TEXT} "</think>\\n\\n" a-{ROOT}\n' + prefixed(grammar, "a-")


def prefixed(grammar: str, prefix: str) -> str:
    """The grammar with every rule's name changed, so that it can stand beside others."""
    return GBNF_PART.sub(lambda part: prefix + part[1] if part[1] else part[0], grammar)


def literal(text: str) -> str:
    """A GBNF literal."""
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(plain, escaped)
    return f'"{text}"'


def _call(name: str, function: Mapping[str, Any], dialect: Dialect, rules: list[str]) -> str:
    """Adds the rules of a call to one tool and returns the name of the first."""
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    write = _hermes if dialect is Dialect.HERMES else _xml
    rules.append(f"{name} ::= {write(name, str(function['name']), schema, rules)}")
    return name


def _hermes(name: str, function: str, schema: Mapping[str, Any], rules: list[str]) -> str:
    rules.append(prefixed(schema_to_grammar(json.dumps(schema, ensure_ascii=False)), f"{name}-"))
    head = f'<tool_call>\n{{"name": {json.dumps(function, ensure_ascii=False)}, "arguments": '
    return f"{literal(head)} {name}-{ROOT} {literal('}' + chr(10) + '</tool_call>')}"


def _xml(name: str, function: str, schema: Mapping[str, Any], rules: list[str]) -> str:
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = schema.get("required") or []
    parts = [literal(f"<tool_call>\n<function={function}>\n")]
    for number, (key, inner) in enumerate(properties.items()):
        value = _value(f"{name}-p{number}", inner, schema, rules)
        parameter = f"{literal(f'<parameter={key}>{chr(10)}')} {value} {literal(chr(10) + '</parameter>' + chr(10))}"
        parts.append(parameter if key in required else f"( {parameter} )?")
    return " ".join([*parts, literal("</function>\n</tool_call>")])


def _value(name: str, inner: Any, schema: Mapping[str, Any], rules: list[str]) -> str:
    """What may stand for a parameter: one of its strings, free text, or JSON of its type."""
    types = schema_types(inner)
    choices = inner.get("enum", [inner["const"]] if "const" in inner else []) if isinstance(inner, Mapping) else []
    if types == STRING and choices:
        return "( " + " | ".join(literal(str(choice)) for choice in choices) + " )"
    if not types or types & STRING:
        return FREE_TEXT
    shared = {key: schema[key] for key in DEFINITIONS if key in schema}
    rules.append(prefixed(schema_to_grammar(json.dumps({**inner, **shared}, ensure_ascii=False)), f"{name}-"))
    return f"{name}-{ROOT}"
