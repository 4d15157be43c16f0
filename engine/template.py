"""A GGUF's Jinja chat template, rendered as Hugging Face renders it, that also tells where each message's text lies.

The places are not searched for in the text: before compiling, every `for` loop of the template gets a call at the start
of its body and one behind it. These calls write nothing; they note how much text has come out so far and which item the
loop is at. So the text is byte for byte that of the untouched template, whatever the template does to a message.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from engine.errors import EngineError, ModelError

MARK = "kvalet_mark"


class TemplateFailed(EngineError):
    """A template could not render these messages: it raised, in its own words, or an expression of it failed."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Loop number `loop` reached `item` (index into the items watched; None: the loop ended) at character `position`."""

    loop: int
    item: int | None
    position: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A rendered text and the marks passed on the way, in order."""

    text: str
    marks: tuple[Mark, ...]


class Template:
    """A compiled chat template. `clock` answers the template's strftime_now, so that a test can hold time still."""

    def __init__(self, source: str, clock: Callable[[], datetime] = datetime.now) -> None:
        """Raises ModelError where the source is no Jinja."""
        jinja = environment(clock)
        try:
            tree = jinja.parse(source)
            self.variables = frozenset(meta.find_undeclared_variables(tree))
            self._template = jinja.from_string(_Marking().visit(tree))
        except (TemplateError, RecursionError) as error:
            line = f" in line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
            raise ModelError(f"the model's chat template is broken{line}: {error}") from error

    def render(self, variables: Mapping[str, Any], watched: Sequence[object] = ()) -> Trace:
        """The text for `variables`, with a mark wherever a loop reaches one of the `watched` items (compared by identity).

        Raises TemplateFailed for whatever the template runs into: it is data, and its faults must not take us down.
        """
        numbers = {id(item): number for number, item in enumerate(watched)}
        pieces: list[str] = []
        marks: list[Mark] = []
        length = 0

        def mark(loop: int, *item: object) -> str:
            if not item:
                marks.append(Mark(loop, None, length))
            elif id(item[0]) in numbers:
                marks.append(Mark(loop, numbers[id(item[0])], length))
            return ""

        try:
            for piece in self._template.generate({**variables, MARK: mark}):
                pieces.append(piece)
                length += len(piece)
        except Exception as error:
            raise TemplateFailed(str(error) or type(error).__name__) from error
        return Trace("".join(pieces), tuple(marks))


class _Marking(NodeTransformer):
    """Puts the marking calls into a template's loops. Loops over pairs have no one item to watch and keep as they are."""

    def __init__(self) -> None:
        self._loops = 0

    def visit_For(self, node: nodes.For) -> list[nodes.Node]:
        self.generic_visit(node)
        if not isinstance(node.target, nodes.Name):
            return [node]
        self._loops += 1
        number = nodes.Const(self._loops)
        node.body.insert(0, _call(node.lineno, number, nodes.Name(node.target.name, "load")))
        return [node, _call(node.lineno, number)]


def _call(line: int, *arguments: nodes.Expr) -> nodes.Output:
    call = nodes.Call(nodes.Name(MARK, "load"), list(arguments), [], None, None)
    output = nodes.Output([call])
    output.set_lineno(line)
    return output


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what to train on; for rendering it is its body."""

    tags = {"generation"}  # noqa: RUF012, jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment(clock: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """The settings, filters and functions that chat templates are written for."""
    jinja = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    jinja.filters["tojson"] = to_json
    jinja.globals["raise_exception"] = _raise
    jinja.globals["strftime_now"] = lambda form: clock().strftime(form)
    return jinja


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as in Hugging Face's templates: key order kept and nothing escaped for HTML, unlike Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: object) -> str:
    raise TemplateError(str(message))
