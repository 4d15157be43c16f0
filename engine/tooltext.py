"""Tools for a model whose template knows none: described in the system message, calls and results shown as text, in Hermes form.

Without this such a template would leave a request's tools out in silence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.template import to_json
from engine.turns import Turn


def tools_as_text(turns: tuple[Turn, ...], tools: Sequence[Mapping[str, Any]] | None) -> tuple[Turn, ...]:
    """The turns with everything about tools written into their contents; the tools stand before the system text."""
    shown = tuple(_shown(turn) for turn in turns)
    if not tools:
        return shown
    about = describe(tools)
    if shown and shown[0].role == "system":
        first = shown[0]
        content = f"{about}\n\n{first.content}" if first.content else about
        shift = len(content) - len(first.content)
        breaks = tuple(place + shift for place in first.breaks)
        return (replace(first, message={**first.message, "content": content}, breaks=breaks), *shown[1:])
    return (Turn({"role": "system", "content": about}, -1), *shown)


def describe(tools: Sequence[Mapping[str, Any]]) -> str:
    """What a model needs to know to call these tools."""
    lines = "\n".join(to_json(tool) for tool in tools)
    form = '<tool_call>\n{"name": NAME, "arguments": {KEY: VALUE}}\n</tool_call>'
    return f"These functions can be called:\n\n<tools>\n{lines}\n</tools>\n\nA call is written in this form:\n\n{form}"


def _shown(turn: Turn) -> Turn:
    message = {key: value for key, value in turn.message.items() if key != "tool_calls"}
    if turn.role == "tool":
        message.update(role="user", content=f"<tool_response>\n{turn.content}\n</tool_response>")
    calls = [_call(call["function"]) for call in turn.message.get("tool_calls", ())]
    if calls:
        message["content"] = "\n".join([*([turn.content] if turn.content else []), *calls])
    return replace(turn, message=message) if message != turn.message else turn


def _call(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{to_json(call)}\n</tool_call>"
