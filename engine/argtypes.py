"""Values of an XML tool call by the types that the tool's JSON schema gives its parameters. Pure functions.

Qwen3.5 writes a value as bare text, and its template shows JSON true as `True` (Python's str), so both spellings are read.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
WORDS = {"true": "true", "True": "true", "false": "false", "False": "false"}
NULLS = ("null", "None")
STRING = frozenset({"string"})
MOST_DEPTH = 16  # of nested anyOf and the like


def parameter_types(tool: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """The JSON types each parameter of an OpenAI tool definition may have; a parameter that says nothing is not listed."""
    function = tool.get("function")
    schema = function.get("parameters") if isinstance(function, Mapping) else None
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    return {str(name): types for name, inner in properties.items() if (types := schema_types(inner))}


def schema_types(schema: object, depth: int = 0) -> frozenset[str]:
    """The JSON types a schema allows, by its `type`, `anyOf`, `oneOf`, `allOf`, `enum` or `const`; empty where it says none."""
    if not isinstance(schema, Mapping) or depth > MOST_DEPTH:
        return frozenset()
    stated = schema.get("type")
    if isinstance(stated, str):
        return frozenset({stated})
    if isinstance(stated, list | tuple):
        return frozenset(kind for kind in stated if isinstance(kind, str))
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list | tuple):
            return frozenset().union(*(schema_types(inner, depth + 1) for inner in schema[key]))
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return frozenset(_type_of(value) for value in values) if isinstance(values, list | tuple) else frozenset()


def _type_of(value: object) -> str:
    names = ((bool, "boolean"), (str, "string"), (int | float, "number"), (Mapping, "object"), (list | tuple, "array"))
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def to_json_value(text: str, types: frozenset[str]) -> str:
    """The JSON text of a parameter's value: the first of its types that `text` can be, else a string.

    Numbers keep the digits the model wrote. Without a type the value is a string, as the model wrote it.
    """
    bare = text.strip()
    if "null" in types and bare in NULLS:
        return "null"
    if "boolean" in types and bare in WORDS:
        return WORDS[bare]
    if ("integer" in types and INTEGER.fullmatch(bare)) or ("number" in types and NUMBER.fullmatch(bare)):
        return bare
    if types & {"object", "array"} and (value := _structure(bare)) is not None:
        return value
    return quoted(text)


def _structure(text: str) -> str | None:
    """An object or array as the model wrote it; None where it is neither."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return text if isinstance(value, dict | list) else None


def quoted(text: str) -> str:
    """A JSON string."""
    return json.dumps(text, ensure_ascii=False)
