"""The paper's synthetic span: lookups in a row, each reusing the identifier that the one before it gave, then a note."""

import json

from keeper.message import Message, ToolCall, assistant, tool

_RECORD = (
    "record {i}: the next identifier is ident-{after:06d}; the rest of this record is ordinary padding, so that a message has "
    "about as many bytes as in the paper, call and result taken together, on the whole, give or take a handful of words."
)


def lookup_span(messages: int) -> list[Message]:
    """A span of `messages` (odd) messages: (messages - 1) / 2 rounds and the frontier note; about 158 bytes a message."""
    span: list[Message] = []
    for i in range(messages // 2):
        call = ToolCall(f"c{i}", "lookup", json.dumps({"key": f"ident-{i:06d}"}))
        span += [
            assistant(f"Looking up what ident-{i:06d} says about the next one.", (call,)),
            tool(call.id, _RECORD.format(i=i, after=i + 1)),
        ]
    return [*span, assistant(f"The chain ends at ident-{messages // 2:06d}.")]


def span_bytes(span: list[Message]) -> int:
    """Bytes of texts and arguments."""
    return sum(len(m.text.encode()) + sum(len(call.arguments.encode()) for call in m.tool_calls) for m in span)
