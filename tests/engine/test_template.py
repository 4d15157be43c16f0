"""Templates render as Hugging Face renders them, say where messages lie, and fail as data."""

import os
import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest

from engine.errors import ModelError
from engine.template import Mark, Template, TemplateFailed, environment, to_json


def text(source: str, **variables: Any) -> str:
    return Template(source, lambda: datetime(2026, 11, 30)).render(variables).text


def test_blocks_take_their_line_with_them() -> None:
    assert text("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"


def test_json_keeps_the_key_order_and_escapes_nothing_for_html() -> None:
    assert text("{{ value | tojson }}", value={"b": "<é> & 'x'", "a": None}) == '{"b": "<é> & \'x\'", "a": null}'
    assert text("{{ value | tojson(indent=2) }}", value={"b": [1]}) == '{\n  "b": [\n    1\n  ]\n}'
    assert to_json({"b": 1, "a": 2}, sort_keys=True, separators=(",", ":")) == '{"a":2,"b":1}'


def test_the_functions_and_statements_of_chat_templates_exist() -> None:
    assert text("{{ strftime_now('%d %b %Y') }}") == "30 Nov 2026"
    assert text("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}") == "13"
    assert text("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}") == "1"
    assert text("a{% generation %}b{{ c }}{% endgeneration %}d", c="c") == "abcd"
    assert text("{{ ' a ' | trim }}{{ ('a' ~ 1)[::-1] }}{{ {'k': 2}.get('k') }}") == "a1a2"


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ a", "{% for x in y %}", "{% nothing %}", "{{ a | nofilter }}", "{% endfor %}"]
)
def test_what_is_no_template_is_a_model_error(source: str) -> None:
    with pytest.raises(ModelError, match="chat template is broken"):
        Template(source)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('Only one system message, please') }}", "Only one system message, please"),
        ("{{ missing.field }}", "missing"),
        ("{{ 'a' + none }}", "str"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ missing | tojson }}", "JSON"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for x in range(99999999) %}{% endfor %}", "range"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{{ messages.append(1) }}", "immutable|append"),
    ],
)
def test_a_template_that_fails_says_what_of(source: str, words: str) -> None:
    with pytest.raises(TemplateFailed, match=words):
        Template(source).render({"messages": []})


def test_marks_say_where_each_loop_reached_each_item_and_where_it_ended() -> None:
    items = [{"t": "one"}, {"t": "two"}]
    trace = Template("<{% for m in items %}[{{ m.t }}]{% endfor %}>").render({"items": items}, items)
    assert trace.text == "<[one][two]>"
    assert trace.marks == (Mark(1, 0, 1), Mark(1, 1, 6), Mark(1, None, 11))


def test_equal_items_are_told_apart_and_unwatched_ones_are_left_out() -> None:
    items = [{"t": "x"}, {"t": "x"}]
    source = "{% for n in [1, 2] %}{{ n }}{% endfor %}{% for m in items[1:] %}{{ m.t }}{% endfor %}"
    marks = Template(source).render({"items": items}, items).marks
    assert [(mark.item, mark.position) for mark in marks] == [(None, 2), (1, 2), (None, 3)]


def test_marking_changes_no_byte() -> None:
    source = (
        "{%- macro show(m) -%}{%- for p in m.parts -%}{{ p }}{%- endfor -%}{%- endmacro -%}\n"
        "{% for m in items %}\n  {{- loop.index }} {{ loop.previtem.t if loop.previtem else '-' }} {{ show(m) | trim }}\n"
        "{% else %}none{% endfor %}\n{% set x %}{% for m in items %}{{ m.t }}{% endfor %}{% endset %}{{ x | upper }}"
        "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}"
    )
    items = [{"t": "one", "parts": [" a ", "b "]}, {"t": "two", "parts": []}]
    untouched = environment(datetime.now).from_string(source)
    for given in (items, items[:1], []):
        assert Template(source).render({"items": given}, given).text == untouched.render(items=given)


RENDER = """
import json, sys
from engine.chat import ChatTemplate
from tests.engine.chat_templates import QWEN35, SEARCH, WEATHER, assistant, result, user
told = assistant("x", "why", [("weather", '{"metric": true, "city": "Lyon", "days": 2}')])
rendered = ChatTemplate(QWEN35).render([user("q"), told, result("sun")], [SEARCH, WEATHER], zeta=1, alpha=2)
sys.stdout.write(json.dumps([rendered.text, [repr(a) for a in rendered.anchors]]))
"""


def test_rendering_is_byte_identical_in_every_process_and_every_time() -> None:
    """public-reports row 18: key order must not depend on a hash seed."""
    outputs = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, "-c", RENDER], capture_output=True, check=True, env=environment)
        outputs.add(run.stdout)
    assert len(outputs) == 1
    assert b'\\"z\\": {}, \\"a\\": {}' in outputs.pop()
