"""Cleaned schemas: smaller, never wider than the original, and the saving is reported."""

from typing import Any

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st

from keeper.toolschema import clean


def tool(name: str, parameters: Any, description: str = "does it") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def cleaned(parameters: Any) -> Any:
    return clean([tool("t", parameters)]).tools[0]["function"]["parameters"]


def properties(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields}


def test_optional_unions_with_null_become_the_type_itself() -> None:
    optional = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Path"}
    assert cleaned(properties(path=optional)) == properties(path={"type": "string"})
    assert cleaned(properties(path={"type": ["integer", "null"]})) == properties(path={"type": "integer"})


def test_real_unions_and_their_descriptions_stay() -> None:
    union = {"anyOf": [{"type": "string"}, {"type": "integer"}], "description": "either"}
    assert cleaned(properties(x=union)) == properties(x=union)


def test_references_are_inlined_and_recursive_ones_stay_with_their_definitions() -> None:
    point = {"type": "object", "properties": {"x": {"type": "number", "title": "X"}}}
    schema = {**properties(at={"$ref": "#/$defs/P"}), "$defs": {"P": point}}
    assert cleaned(schema) == properties(at={"type": "object", "properties": {"x": {"type": "number"}}})
    tree = {"type": "object", "properties": {"next": {"$ref": "#/$defs/T"}}}
    kept = cleaned({**properties(t={"$ref": "#/$defs/T"}), "$defs": {"T": tree}})
    assert kept["$defs"] == {"T": tree}
    jsonschema.Draft202012Validator.check_schema(kept)


def test_a_parameter_called_title_is_data_and_stays() -> None:
    assert cleaned(properties(title={"type": "string", "title": "Title"})) == properties(title={"type": "string"})


def test_an_alias_parameter_goes_and_a_call_that_uses_it_is_translated() -> None:
    found = clean(
        [tool("read", properties(path={"type": "string"}, file={"type": "string", "description": "Alias for `path`."}))]
    )
    assert found.tools[0]["function"]["parameters"] == properties(path={"type": "string"})
    assert found.translated("read", {"file": "a.md", "n": 1}) == {"path": "a.md", "n": 1}
    assert found.translated("read", {"file": "a.md", "path": "b.md"}) == {"path": "b.md"}
    assert found.translated("other", {"file": "a.md"}) == {"file": "a.md"}


def test_a_required_alias_stays() -> None:
    schema = {
        **properties(path={"type": "string"}, file={"type": "string", "description": "alias of path"}),
        "required": ["file"],
    }
    assert cleaned(schema) == schema


def test_a_tool_that_is_another_under_a_second_name_goes_and_its_name_is_known() -> None:
    found = clean([tool("read_file", properties(path={"type": "string"})), tool("cat", properties(path={"type": "string"}))])
    assert [shown["function"]["name"] for shown in found.tools] == ["read_file"]
    assert found.names == {"cat": "read_file"}


def test_tools_without_a_description_are_never_taken_for_the_same() -> None:
    assert len(clean([tool("start", properties(), ""), tool("stop", properties(), "")]).tools) == 2


def test_the_saving_is_reported_in_bytes() -> None:
    noisy = properties(
        **{
            f"field_{i}": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": f"Field {i}"}
            for i in range(40)
        }
    )
    found = clean([tool("t", noisy)])
    assert found.after < found.before * 0.5
    assert found.report().startswith(f"tool schemas: {found.before:,} -> {found.after:,} B (")
    assert clean([]).report() == "tool schemas: 2 -> 2 B (0.0 % less), 0 aliases taken out"


def test_what_is_no_function_tool_and_what_is_no_schema_pass_untouched() -> None:
    odd: list[dict[str, Any]] = [
        {"type": "web_search"},
        {"type": "function", "function": {"name": "x"}},
        tool("y", None),
        tool("z", [1]),
    ]
    assert list(clean(odd).tools) == odd


FIELDS = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer", "title": "N"},
        {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        {"anyOf": [{"type": "string"}, {"type": "boolean"}]},
        {"type": ["number", "null"]},
        {"enum": ["a"], "type": "string"},
        {"allOf": [{"$ref": "#/$defs/D"}]},
        {"$ref": "#/$defs/D", "description": "d"},
        {"type": "array", "items": {"$ref": "#/$defs/D"}},
    ]
)
VALUES = st.sampled_from([None, "a", "b", 1, 2.5, True, {"k": "v"}, {"k": 1}, [], [{"k": "v"}], ["x"]])


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["p", "q", "title"]), FIELDS, max_size=3),
    st.dictionaries(st.sampled_from(["p", "q", "title", "z"]), VALUES),
)
def test_whatever_the_cleaned_schema_accepts_the_original_accepts(fields: dict[str, Any], arguments: dict[str, Any]) -> None:
    definition = {"type": "object", "properties": {"k": {"type": "string"}}, "additionalProperties": False, "title": "D"}
    schema = {**properties(**fields), "additionalProperties": False, "$defs": {"D": definition}}
    if jsonschema.Draft202012Validator(cleaned(schema)).is_valid(arguments):
        jsonschema.validate(arguments, schema)
