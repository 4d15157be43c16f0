"""Two JSON schemas that both must hold, as one."""

from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import BadRequest

Schema = Mapping[str, Any]


def merge(first: Any, second: Any) -> dict[str, Any]:
    """A schema that a value satisfies when it satisfies both. Raises BadRequest where two keywords cannot be made one."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        raise BadRequest("a schema in allOf, anyOf or $ref is not an object", "json_schema")
    found = dict(first)
    for key, value in second.items():
        found[key] = _both(key, found[key], value) if key in found and found[key] != value else value
    return found


def _both(key: str, one: Any, other: Any) -> Any:
    combine = _COMBINE.get(key)
    if combine is None:
        raise BadRequest(f"two different values for {key!r} in one schema cannot be kept by a grammar", "json_schema")
    return combine(one, other)


def _properties(one: Any, other: Any) -> Any:
    return {**one, **{name: {"allOf": [one[name], schema]} if name in one else schema for name, schema in other.items()}}


def _common(one: Any, other: Any) -> Any:
    return _some([value for value in _listed(one) if value in _listed(other)])


def _types(one: Any, other: Any) -> Any:
    """Types in both; an integer is a number."""
    ones, others = _listed(one), _listed(other)
    common = [kind for kind in ones if kind in others]
    if "integer" not in common and (("integer" in ones and "number" in others) or ("number" in ones and "integer" in others)):
        common = [kind for kind in common if kind != "number"] + ["integer"]
    return _some(common)


def _some(values: list[Any]) -> list[Any]:
    if not values:
        raise BadRequest("the schema contradicts itself: no value satisfies all of it", "json_schema")
    return values


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _additional(one: Any, other: Any) -> Any:
    if one is False or other is False:
        return False
    return other if one is True else one if other is True else {"allOf": [one, other]}


_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "properties": _properties,
    "required": lambda one, other: [*one, *(name for name in other if name not in one)],
    "type": _types,
    "enum": _common,
    "additionalProperties": _additional,
    "items": _additional,
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), min),
    **dict.fromkeys(("title", "description", "default", "examples", "$comment", "$schema", "$id"), lambda one, _: one),
    **dict.fromkeys(("$defs", "definitions"), lambda one, other: {**other, **one}),
}
