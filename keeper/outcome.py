"""Did a tool result report a failure? A recogniser of error text, no proof: an error in unknown words passes as a success.

An explicit outcome decides: a flag on the message, an exit code, a JSON object with `error`, `ok` or `success`. Without
one, the edges of the text are searched for how tools begin or end an error report; the middle is not, since a file about
errors is no error.
"""

import json
import re

EDGE_CHARACTERS = 240
"""How much of a result's beginning and end is searched."""

_EXIT_CODE = re.compile(
    r"<returncode>\s*(-?\d+)|\b(?:exit(?:ed)?(?: with)?[ _](?:status|code)|return ?code)(?: of)?[\"']?\s*[:=]?\s*(-?\d+)\b",
    re.IGNORECASE,
)
_BEGINS = re.compile(
    r"""\s*(?:<\w+>\s*)?(?:
        \[?(?:fatal|error|err|exception|failed|failure)\b\]?\s*(?:[:(!-]|(?:to|with|while)\b|$|\n)
      | \w*(?:Error|Exception)\b\s*[:(]
      | (?:command|file|path|tool|function|key|string|no\ match(?:es)?)\b[^\n]{0,120}\b(?:not\ found|(?:does\ )?not\ exist)
      | not\ found\b | no\ such\ file | (?:permission|access)\ denied | timed?\ ?out\b | (?:cannot|could\ not)\s+\w+
      | unable\ to\b | failed\ to\b | unknown\s+(?:tool|function|command) | invalid\s+(?:path|argument|command|parameter)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_ANYWHERE = re.compile(
    r"no such file or directory|command not found|permission denied|Traceback \(most recent call last\)|^\w*(?:Error|Exception): "
    r"|^(?:bash|sh|sed|cat|grep|ls|cd|python3?|rm|mv|cp): [^\n]*(?:No such|not found|can't|cannot|unterminated|unknown|invalid)",
    re.IGNORECASE | re.MULTILINE,
)

# Patterns are tried only where a word of theirs stands: substring tests cost a tenth of a search, and most results have no error.
_CODE_HINTS = ("code", "exit")
_ERROR_HINTS = (
    *(
        "err",
        "fail",
        "fatal",
        "exception",
        "traceback",
        "not found",
        "not exist",
        "no such",
        "denied",
        "timed",
        "timeout",
        "time out",
    ),
    *("cannot", "can't", "could not", "unable", "unknown", "invalid", "unterminated"),
)


def failed(text: str, extra: str = "") -> bool:
    """True where the result says that the call did not do what it was asked. extra: JSON of the message's unknown fields."""
    flag = json.loads(extra).get("is_error") if "is_error" in extra else None
    if isinstance(flag, bool):
        return flag
    if text.startswith("{") and (stated := _stated_in_json(text)) is not None:
        return stated
    edges = (text[:EDGE_CHARACTERS], text[-EDGE_CHARACTERS:]) if len(text) > EDGE_CHARACTERS else (text,)
    lowered = "\n".join(edges).lower()
    if any(hint in lowered for hint in _CODE_HINTS):
        found = next(filter(None, map(_EXIT_CODE.search, edges)), None)
        if found:
            return int(found[1] or found[2]) != 0
    if not any(hint in lowered for hint in _ERROR_HINTS):
        return False
    return _BEGINS.match(edges[0]) is not None or any(map(_ANYWHERE.search, edges))


def _stated_in_json(text: str) -> bool | None:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if parsed.get("error") or parsed.get("isError") is True:
        return True
    for key in ("ok", "success"):
        if isinstance(parsed.get(key), bool):
            return not parsed[key]
    return None
