"""Generated text to messages: whatever the cuts, both dialects, cut-off calls, and both directions agree."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.argtypes import parameter_types, schema_types, to_json_value
from engine.deltas import CallArguments, CallStart, ContentDelta, Delta, Parsed, ReasoningDelta, collect, joined
from engine.toolparse import Dialect, OutputParser, ParserConfig, dialect_of
from tests.engine.chat_templates import CHATML, QWEN3, QWEN35, SEARCH, WEATHER, assistant, template, user

REPEATABLE = settings(deadline=None, derandomize=True)

TOOLS = (WEATHER, SEARCH)
XML = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nSaint-\nDenis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Saint-\\nDenis", "days": 3}}\n</tool_call>'


def parse(text: str, cuts: list[int] | None = None, **options: Any) -> list[Delta]:
    parser = OutputParser(ParserConfig(**{"calls": True, "tools": TOOLS, **options}))
    borders = [0, *sorted(cut % (len(text) + 1) for cut in cuts or []), len(text)]
    deltas: list[Delta] = []
    for start, end in pairwise(borders):
        deltas += parser.feed(text[start:end])
    return joined([*deltas, *parser.finish()])


def parsed(text: str, **options: Any) -> Parsed:
    return collect(parse(text, **options))


@pytest.mark.parametrize("text", [XML, HERMES])
@pytest.mark.parametrize("stream", [True, False])
def test_a_call_is_read_in_both_dialects(text: str, stream: bool) -> None:
    message = parsed("I look.\n\n" + text, stream_calls=stream)
    assert message.content == "I look."
    assert [call.name for call in message.calls] == ["weather"]
    assert json.loads(message.calls[0].arguments) == {"city": "Saint-\nDenis", "days": 3}
    assert list(json.loads(message.calls[0].arguments)) == ["city", "days"]


@pytest.mark.parametrize("text", [XML, HERMES])
def test_parallel_calls_have_their_own_numbers_and_ids(text: str) -> None:
    calls = parsed(text + "\n" + text + text, seed="r1").calls
    assert len(calls) == 3 and len({call.id for call in calls}) == 3
    assert parsed(text, seed="r1").calls[0].id == calls[0].id != parsed(text, seed="r2").calls[0].id
    assert {call.arguments for call in calls} == {calls[0].arguments}


FRAGMENTS = st.sampled_from(
    [
        "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=weather>", "<function=", "</function>",
        "<parameter=city>", "<parameter=days>", "</parameter>", "\n", "\n\n", " ", "7", "text",
        '{"name": "weather", "arguments": {', '"city": "x"', "}",
        '{"name": "a\\u0041", "arguments": ', '{"arguments": {}, "name": "f"}', '"', "\\", "<", "</", "{", "]", ",", "True", "é",
        XML, HERMES,
    ]
)  # fmt: skip


@REPEATABLE
@given(
    st.lists(FRAGMENTS, max_size=14).map("".join),
    st.lists(st.integers(0, 10_000), max_size=12),
    st.sampled_from([{"thinking": True}, {"may_think": True}, {}]),
    st.booleans(),
    st.booleans(),
)
@example("<tool_call><function=a</tool_call>b", [23, 34], {}, True, True)
@example("<tool_call>\n<function=weather>\n<parameter=city</tool_call>\nx", [52], {}, True, True)
@example('<tool_call>{"name": "a\\</tool_call>", "arguments": {}}', [38], {}, True, True)
def test_what_is_shown_does_not_depend_on_the_cuts(
    text: str, cuts: list[int], start: dict[str, bool], stream: bool, calls: bool
) -> None:
    options: dict[str, Any] = {**start, "stream_calls": stream, "calls": calls}
    whole = collect(parse(text, **options))
    assert collect(parse(text, cuts, **options)) == whole
    assert collect(parse(text, list(range(len(text))), **options)) == whole


@REPEATABLE
@given(st.lists(FRAGMENTS, max_size=14).map("".join))
def test_calls_that_are_shown_whole_always_have_an_object_for_arguments(text: str) -> None:
    for call in parsed(text, stream_calls=False).calls:
        assert isinstance(json.loads(call.arguments), dict)


@REPEATABLE
@given(st.text(st.sampled_from("ab <\n>/think"), max_size=40))
def test_text_without_tags_of_ours_is_content_byte_for_byte(text: str) -> None:
    if "<think>" not in text:
        assert parsed(text, may_think=True, calls=False) == Parsed(text, "", ())


def test_arguments_stream_while_they_are_written() -> None:
    for text, end in ((XML, "Saint-"), (HERMES, "Saint-")):
        parser = OutputParser(ParserConfig(calls=True, tools=TOOLS))
        deltas = parser.feed(text[: text.index(end) + len(end) + 1])
        assert isinstance(deltas[0], CallStart) and parser.calls == 1
        assert isinstance(deltas[1], CallArguments) and deltas[1].text.startswith('{"city": "Sain')


def test_the_shortest_hold_shows_text_at_once() -> None:
    parser = OutputParser(ParserConfig(calls=True, tools=TOOLS))
    assert parser.feed("a < b") == [ContentDelta("a < b")]
    assert parser.feed(" and <tool") == [ContentDelta(" and ")]
    assert parser.feed("box>") == [ContentDelta("<toolbox>")]


@pytest.mark.parametrize("end", range(1, len(XML)))
def test_a_cut_off_xml_call_never_raises_and_loses_nothing(end: int) -> None:
    message = parsed("Hi\n" + XML[:end], stream_calls=False)
    if end < XML.index("</function>") + len("</function>"):
        assert message == Parsed("Hi\n" + XML[:end], "", ())
    else:
        assert (message.content, len(message.calls)) == ("Hi", 1)


@pytest.mark.parametrize("end", range(1, len(HERMES)))
def test_a_cut_off_hermes_call_never_raises_and_loses_nothing(end: int) -> None:
    message = parsed("Hi\n" + HERMES[:end], stream_calls=False)
    if end < HERMES.index("3}") + 2:
        assert message == Parsed("Hi\n" + HERMES[:end], "", ())
    else:
        assert (message.content, len(message.calls)) == ("Hi", 1)


def test_a_call_cut_off_while_streaming_keeps_what_was_shown() -> None:
    message = parsed(XML[: XML.index("Denis")])
    assert message.content == "" and message.calls[0].arguments.startswith('{"city": "Saint-')
    assert parsed("<tool_call>\n<func").content == "<tool_call>\n<func"


@pytest.mark.parametrize(
    "text",
    [
        "Use the <tool_call> tag",
        "<tool_call></tool_call>",
        "a\n\n<tool_call>\nnot json\n</tool_call>\n",
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"nam',
        "<tool_call>\n<b>bold</b>\n</tool_call>",
    ],
)
def test_what_is_no_call_is_content_byte_for_byte(text: str) -> None:
    for stream in (True, False):
        assert parsed(text, stream_calls=stream) == Parsed(text, "", ())


def test_other_shapes_of_hermes_json_are_read_too() -> None:
    for body in (
        '{"arguments": {"a": 1}, "name": "search"}',
        '{"name": "search", "parameters": {"a": 1}}',
        '{"name": "search", "arguments": "{\\"a\\": 1}"}',
        '  {  "name":"search" ,\n"arguments":{"a":1}  , "id": 7}  ',
    ):
        message = parsed(f"<tool_call>{body}</tool_call>done")
        assert [(call.name, json.loads(call.arguments)) for call in message.calls] == [("search", {"a": 1})]
        assert message.content == "done"


def test_a_closing_tag_inside_a_json_string_does_not_close_the_call() -> None:
    text = '<tool_call>\n{"name": "search", "arguments": {"a": "</tool_call> {[ \\" <think>"}}\n</tool_call>'
    assert json.loads(parsed(text).calls[0].arguments) == {"a": '</tool_call> {[ " <think>'}


def test_a_parameter_may_hold_the_markup_of_a_parameter() -> None:
    inner = "<a>\n</parameter>\n</b> </parameter>"
    text = f"<tool_call>\n<function=search>\n<parameter=a>\n{inner}\n</parameter>\n</function>\n</tool_call>"
    assert json.loads(parsed(text).calls[0].arguments) == {"a": inner}


def test_two_functions_in_one_block_are_two_calls() -> None:
    text = "<tool_call>\n<function=search>\n</function>\n<function=weather>\n</function>\n</tool_call>"
    assert [(call.name, call.arguments) for call in parsed(text).calls] == [("search", "{}"), ("weather", "{}")]


def test_thinking_goes_to_reasoning_without_the_templates_line_breaks() -> None:
    assert parsed("\nhm\n\nso\n</think>\n\n answer\n", thinking=True) == Parsed(" answer\n", "hm\n\nso", ())
    assert parsed("<think>\nhm\n</think>\n\nyes", may_think=True) == Parsed("yes", "hm", ())
    assert parsed(" \n<think>hm</think>yes", may_think=True) == Parsed("yes", "hm", ())


def test_thinking_that_never_ends_is_all_reasoning() -> None:
    assert parsed("on and on </thin", thinking=True) == Parsed("", "on and on </thin", ())


def test_a_call_inside_thinking_is_a_thought() -> None:
    message = parsed(f"I could {XML}\n</think>\n\nNo.", thinking=True)
    assert message == Parsed("No.", f"I could {XML}", ())


def test_a_call_right_behind_thinking_leaves_the_content_empty() -> None:
    message = parsed(f"hm\n</think>\n\n{XML}", thinking=True)
    assert (message.content, message.reasoning, len(message.calls)) == ("", "hm", 1)
    assert message.message()["content"] is None


def test_without_tools_a_call_is_content() -> None:
    assert parsed(XML, calls=False).content == XML


def test_a_think_tag_in_the_middle_of_an_answer_is_text() -> None:
    assert parsed("The <think> tag", may_think=True).content == "The <think> tag"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("city", "7", "7"), ("city", "true", "true"), ("city", "", ""), ("city", " x ", " x "), ("days", "7", 7),
        ("days", " 7 ", 7),
        ("days", "7.5", "7.5"), ("days", "many", "many"), ("wind", "-1.5e3", -1500.0), ("wind", "7", 7), ("wind", "NaN", "NaN"),
        ("metric", "True", True), ("metric", "false", False), ("metric", "yes", "yes"), ("hours", "[1, 2]", [1, 2]),
        ("hours", "[1, 2", "[1, 2"), ("filter", '{"b": 1, "a": [true]}', {"b": 1, "a": [True]}), ("note", "None", None),
        ("note", "null", None), ("note", "7", "7"), ("unknown", "7", "7"),
    ],
)  # fmt: skip
def test_values_have_the_types_of_the_schema(name: str, text: str, value: object) -> None:
    call = f"<tool_call>\n<function=weather>\n<parameter={name}>\n{text}\n</parameter>\n</function>\n</tool_call>"
    found = json.loads(parsed(call).calls[0].arguments)
    assert found == {name: value} and type(found[name]) is type(value)


def test_types_are_found_wherever_a_schema_states_them() -> None:
    assert schema_types({"type": ["integer", "null"]}) == {"integer", "null"}
    assert schema_types({"oneOf": [{"type": "boolean"}, {"allOf": [{"type": "array"}]}]}) == {"boolean", "array"}
    assert schema_types({"enum": ["a", 1, None, True, [], {}]}) == {"string", "number", "null", "boolean", "array", "object"}
    assert schema_types({"const": 3}) == {"number"}
    assert schema_types({}) == schema_types(None) == schema_types({"anyOf": 3}) == frozenset()
    nested: dict[str, Any] = {}
    nested["anyOf"] = [nested]
    assert schema_types(nested) == frozenset()


@pytest.mark.parametrize(
    "tool", [{}, {"function": 3}, {"function": {"parameters": []}}, {"function": {"parameters": {"properties": 1}}}]
)
def test_a_tool_without_a_schema_has_no_types(tool: dict[str, Any]) -> None:
    assert parameter_types(tool) == {}


@REPEATABLE
@given(st.text(max_size=20), st.sets(st.sampled_from(["null", "boolean", "integer", "number", "object", "array", "string"])))
def test_a_value_is_always_json(text: str, types: set[str]) -> None:
    json.loads(to_json_value(text, frozenset(types)))


def test_the_dialect_is_what_the_template_teaches() -> None:
    assert dialect_of(QWEN35) is Dialect.XML
    assert dialect_of(QWEN3) is Dialect.HERMES
    assert dialect_of(CHATML) is Dialect.NONE


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="<\r"), max_size=20)
PLAIN = WORDS.map(str.strip)
VALUES = st.one_of(WORDS, st.integers(), st.lists(st.integers()), st.dictionaries(WORDS, WORDS, max_size=2))
HERMES_CALLS = st.lists(st.tuples(st.sampled_from(["weather", "search"]), st.dictionaries(WORDS, VALUES, max_size=3)), max_size=3)
XML_ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "city": WORDS,
        "days": st.integers(),
        "wind": st.floats(allow_nan=False, allow_infinity=False),
        "metric": st.booleans(),
        "hours": st.lists(st.integers(), max_size=3),
        "filter": st.dictionaries(WORDS, st.one_of(WORDS, st.booleans()), max_size=2),
    },
)
XML_CALLS = st.lists(st.tuples(st.just("weather"), XML_ARGUMENTS), max_size=3)


def round_trip(source: str, content: str, reasoning: str, calls: list[tuple[str, dict[str, Any]]], **options: Any) -> None:
    """What the template writes for a message, less the prompt, parses back to the message."""
    chat = template(source)
    told = assistant(content, reasoning, [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls])
    prompt = chat.render([user("go")], TOOLS, **options)
    whole = chat.render([user("go"), told], TOOLS, add_generation_prompt=False, **options)
    assert whole.text.startswith(prompt.text)
    written = whole.text[len(prompt.text) :].removesuffix("<|im_end|>\n")
    for stream in (True, False):
        parser = chat.parser(TOOLS, prompt, stream_calls=stream)
        message = collect([*(delta for piece in written for delta in parser.feed(piece)), *parser.finish()])
        assert (message.content, message.reasoning) == (content, reasoning)
        back = [(call.name, json.loads(call.arguments)) for call in message.calls]
        assert back == calls and [list(arguments) for _, arguments in back] == [list(arguments) for _, arguments in calls]


@REPEATABLE
@given(PLAIN, PLAIN, XML_CALLS)
def test_a_message_of_qwen35_comes_back_as_it_was(content: str, reasoning: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    round_trip(QWEN35, content, reasoning, calls)


@REPEATABLE
@given(PLAIN, XML_CALLS)
def test_a_message_of_qwen35_without_thinking_comes_back_as_it_was(content: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    round_trip(QWEN35, content, "", calls, enable_thinking=False)


@REPEATABLE
@given(WORDS.map(lambda text: text.strip("\n")), PLAIN, HERMES_CALLS)
def test_a_message_of_qwen3_comes_back_as_it_was(content: str, reasoning: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    round_trip(QWEN3, content, reasoning, calls)


def test_deltas_join_by_kind_and_call() -> None:
    deltas: list[Delta] = [
        ReasoningDelta("a"),
        ReasoningDelta("b"),
        CallArguments(0, "x"),
        CallArguments(1, "y"),
        CallArguments(1, "z"),
    ]
    assert joined(deltas) == [ReasoningDelta("ab"), CallArguments(0, "x"), CallArguments(1, "yz")]
