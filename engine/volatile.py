"""Fields that a client changes in every request although they mean nothing to the model, made equal so that they do not cost the
whole prompt. Off unless asked for: it changes what the model reads.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

WITHIN = 512  # characters from the start of a system text in which a header is looked for
FIELD = re.compile(r"(?<![A-Za-z0-9_])(cch=)([0-9a-fA-F]+)(?=;|\s|$)")


def steady_messages(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages, with the volatile header fields of a leading system message set to zeros. Pure."""
    return [_steady_message(message) if number == 0 else message for number, message in enumerate(messages)]


def _steady_message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if message.get("role") not in ("system", "developer"):
        return message
    if isinstance(content, str):
        return {**message, "content": steady_text(content)}
    if isinstance(content, list) and content and isinstance(content[0], Mapping) and isinstance(content[0].get("text"), str):
        return {**message, "content": [{**content[0], "text": steady_text(content[0]["text"])}, *content[1:]]}
    return message


def steady_text(text: str) -> str:
    """A coding agent's per-request hash (`…; cch=1a2b3;`) in the first line, as zeros of its length, so that offsets stay."""
    end = text.find("\n") if 0 <= text.find("\n") < WITHIN else WITHIN
    return FIELD.sub(lambda match: match[1] + "0" * len(match[2]), text[:end]) + text[end:]
