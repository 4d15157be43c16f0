"""Tool schemas made small without changing what may be called: less for the model to read, and the saving reported.

    anyOf / oneOf of one type and null        -> that type (the field is optional anyway unless it is required)
    type: ["string", "null"]                  -> "string"
    allOf or anyOf of one                     -> that one
    enum of one value                         -> const
    $ref into $defs / definitions             -> what it points at, unless it is recursive
    title, $schema, $id, examples, default: null, empty required    -> gone
    a parameter described as an alias of another of the same tool  -> gone; a call that uses it is translated back
    a tool equal to an earlier one but for its name                -> gone; a call by its name still runs

Whatever a cleaned schema lets a model send, the original accepts; the other way round, a null for an optional field and the
aliases are no longer advertised. `additionalProperties: false` therefore stays: without it a model could send what is refused.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Tool = dict[str, Any]

_DROPPED = frozenset({"title", "$schema", "$id", "$comment", "examples", "example", "readOnly", "writeOnly"})
_ALIAS = re.compile(r"^\W*(?:deprecated\W+)?(?:an?\s+)?(?:alias|synonym)\s+(?:for|of)\W+(\w+)", re.IGNORECASE)
_DEFINITIONS = ("$defs", "definitions")
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", *_DEFINITIONS})


class Cleaned(NamedTuple):
    """The tools to show. parameters: tool -> {alias: parameter}; names: alias -> the tool shown in its place. Sizes are bytes
    of compact JSON."""

    tools: tuple[Tool, ...]
    parameters: Mapping[str, Mapping[str, str]]
    names: Mapping[str, str]
    before: int
    after: int

    def report(self) -> str:
        share = 100 * (self.before - self.after) / self.before if self.before else 0.0
        aliases = len(self.names) + sum(map(len, self.parameters.values()))
        return f"tool schemas: {self.before:,} -> {self.after:,} B ({share:.1f} % less), {aliases} aliases taken out"

    def translated(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as the original tool takes them: aliases that a model still sent become the parameter itself."""
        known = self.parameters.get(self.names.get(name, name), {})
        plain = {key: value for key, value in arguments.items() if key not in known}
        return {**{known[key]: value for key, value in arguments.items() if key in known}, **plain}


def clean(tools: Sequence[Mapping[str, Any]]) -> Cleaned:
    """Cleans OpenAI tool definitions; what is not a function tool is passed on untouched. Never raises."""
    shown: list[Tool] = []
    parameters: dict[str, Mapping[str, str]] = {}
    names: dict[str, str] = {}
    first_with: dict[str, str] = {}
    for tool in tools:
        function = tool.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            shown.append(dict(tool))
            continue
        name, schema, aliases = function["name"], *_without_aliases(_cleaned_parameters(function.get("parameters")))
        cleaned = {**function, **({"parameters": schema} if schema is not None else {})}
        key = _compact({**cleaned, "name": ""})
        if function.get("description") and key in first_with:
            names[name] = first_with[key]
            continue
        first_with.setdefault(key, name)
        if aliases:
            parameters[name] = aliases
        shown.append({**tool, "function": cleaned})
    return Cleaned(tuple(shown), parameters, names, _bytes(tools), _bytes(shown))


def _cleaned_parameters(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    definitions = {f"#/{key}/{name}": value for key in _DEFINITIONS for name, value in _object(schema.get(key)).items()}
    bare = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    cleaned = _clean(bare, definitions, ())
    if '"#/' in _compact(cleaned):  # a recursive definition stays a reference, so the definitions stay as well
        kept = {key: schema[key] for key in _DEFINITIONS if key in schema}
        return {**cleaned, **kept}
    return cleaned


def _clean(schema: Any, definitions: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [_clean(item, definitions, inside) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference in definitions and reference not in inside:
        target = _object(definitions[reference])
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _clean({**target, **rest}, definitions, (*inside, reference))
    found = {key: _member(key, value, definitions, inside) for key, value in schema.items() if not _is_noise(key, value)}
    return _merged(_typed(found))


def _member(key: str, value: Any, definitions: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    """Names of properties are data, not keywords: a parameter called `title` stays."""
    if key in _NAMED and isinstance(value, Mapping):
        return {name: _clean(inner, definitions, inside) for name, inner in value.items()}
    if key in ("enum", "const", "default", "required"):
        return value
    return _clean(value, definitions, inside)


def _is_noise(key: str, value: Any) -> bool:
    return key in _DROPPED or (key == "default" and value is None) or (key == "required" and value == [])


def _typed(schema: dict[str, Any]) -> dict[str, Any]:
    kind, values = schema.get("type"), schema.get("enum")
    if isinstance(kind, list) and len(named := [k for k in kind if k != "null"]) == 1:
        schema = {**schema, "type": named[0]}
    if isinstance(values, list) and len(values) == 1:
        schema = {key: value for key, value in schema.items() if key != "enum"} | {"const": values[0]}
    return schema


def _merged(schema: dict[str, Any]) -> dict[str, Any]:
    """One real choice among anyOf / oneOf / allOf is no choice."""
    for key in ("anyOf", "oneOf", "allOf"):
        options = schema.get(key)
        if not isinstance(options, list):
            continue
        real = [option for option in options if option != {"type": "null"}]
        if len(real) == 1 and isinstance(real[0], dict) and not real[0].keys() & (schema.keys() - {key, "description"}):
            rest = {name: value for name, value in schema.items() if name != key}
            return {**real[0], **rest}
    return schema


def _without_aliases(schema: Any) -> tuple[Any, dict[str, str]]:
    """The schema without parameters that say they are another one's alias; a required one stays."""
    properties = _object(schema.get("properties")) if isinstance(schema, Mapping) else {}
    required = schema.get("required") or [] if isinstance(schema, Mapping) else []
    aliases: dict[str, str] = {}
    for name, inner in properties.items():
        found = _ALIAS.match(str(_object(inner).get("description") or ""))
        if found and found[1] in properties and found[1] != name and name not in required:
            aliases[name] = found[1]
    if not aliases:
        return schema, {}
    return {**schema, "properties": {name: inner for name, inner in properties.items() if name not in aliases}}, aliases


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)


def _bytes(tools: Sequence[Any]) -> int:
    return len(_compact(list(tools)).encode("utf-8", "surrogatepass"))
