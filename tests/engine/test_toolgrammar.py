"""Tool grammars: their form here, what llama.cpp makes of them in the model lane, what they give in tests/e2e."""

import pytest

import engine.toolgrammar
from engine.toolgrammar import after_thinking, prefixed, tool_grammar
from engine.toolparse import Dialect

CITY = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Oslo", "Bærum"]},
                "note": {"type": "string"},
                "days": {"type": "integer"},
            },
            "required": ["city"],
        },
    },
}
PLAIN = {"type": "function", "function": {"name": "now"}}


@pytest.fixture(autouse=True)
def simple_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schemas become a grammar that shows them, so that this test is about tools alone."""
    monkeypatch.setattr(engine.toolgrammar, "schema_to_grammar", lambda text: 'root ::= digit+ "root"\ndigit ::= [0-9root]')


def test_an_xml_call_fixes_its_head_and_asks_for_what_is_required() -> None:
    grammar = tool_grammar([CITY], Dialect.XML, several=False)
    assert '"<tool_call>\\n<function=weather>\\n" "<parameter=city>\\n" ( "Oslo" | "Bærum" ) "\\n</parameter>\\n" (' in grammar
    assert '( "<parameter=note>\\n" ( [^<] | "<" [^/] )* "\\n</parameter>\\n" )?' in grammar
    assert "t0-p2-root ::= t0-p2-digit+" in grammar
    assert grammar.startswith("root ::= call\n")


def test_a_hermes_call_is_json_with_the_schema_of_its_arguments() -> None:
    grammar = tool_grammar([CITY], Dialect.HERMES, several=False)
    assert r'"<tool_call>\n{\"name\": \"weather\", \"arguments\": " t0-root "}\n</tool_call>"' in grammar


def test_several_tools_are_alternatives_and_several_calls_follow_each_other() -> None:
    grammar = tool_grammar([CITY, PLAIN], Dialect.XML, several=True)
    assert grammar.startswith('root ::= call ( "\\n" call )*\ncall ::= t0 | t1\n')
    assert 't1 ::= "<tool_call>\\n<function=now>\\n" "</function>\\n</tool_call>"' in grammar


def test_renaming_leaves_literals_classes_and_comments_alone() -> None:
    text = 'root ::= a-b "root \\" a" [root\\]a] # root\na-b ::= root?'
    assert prefixed(text, "x-") == 'x-root ::= x-a-b "root \\" a" [root\\]a] # root\nx-a-b ::= x-root?'


def test_behind_thinking_the_grammar_starts_after_the_closing_tag() -> None:
    grammar = after_thinking('root ::= "x"')
    assert grammar == 'root ::= ( [^<] | "<" [^/] )* "</think>\\n\\n" a-root\na-root ::= "x"'
