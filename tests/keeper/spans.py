"""Small histories for the 4tope tests, built from OpenAI dicts through the keeper's own reader."""

import json
from typing import Any

from keeper.message import Message, read


def step(text: str | None, *calls: tuple[str, str, Any]) -> Message:
    """An assistant message with calls of (id, name, arguments); arguments as a dict are sent as a JSON string."""
    listed = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)},
        }
        for call_id, name, arguments in calls
    ]
    return read({"role": "assistant", "content": text, **({"tool_calls": listed} if listed else {})})


def result(call_id: str, text: Any, **extra: Any) -> Message:
    return read({"role": "tool", "tool_call_id": call_id, "content": text, **extra})


def said(role: str, text: str) -> Message:
    return read({"role": role, "content": text})


def reading(call_id: str, path: str, text: str | None = None) -> Message:
    return step(text, (call_id, "read_file", {"path": path}))


def lookups(rounds: int) -> list[Message]:
    """The paper's synthetic span: each lookup reuses the identifier that the one before it gave; then a note."""
    span: list[Message] = []
    for i in range(rounds):
        span += [
            step(None, (f"c{i}", "lookup", {"key": f"ident-{i:04d}"})),
            result(f"c{i}", f"the record names ident-{i + 1:04d}"),
        ]
    return [*span, said("assistant", f"done with ident-{rounds:04d}")]
