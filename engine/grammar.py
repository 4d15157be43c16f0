"""What a GBNF grammar may be before llama.cpp parses it: its parser recurses, and a deep grammar would kill the process."""

from engine.errors import BadRequest

_MOST_BYTES = 512 * 1024
_MOST_NESTING = 128
_MOST_RULES = 20_000
ROOT = "root"


def check_grammar(text: str, param: str = "grammar") -> None:
    """Raises BadRequest for a grammar that is empty, holds NUL, or is too large or too deep to be parsed safely."""
    if not text.strip():
        raise BadRequest(f"{param} is empty", param)
    if "\0" in text:
        raise BadRequest(f"{param} holds a NUL character", param)
    if len(text.encode("utf-8", "replace")) > _MOST_BYTES:
        raise BadRequest(f"{param} is longer than {_MOST_BYTES} bytes", param)
    if text.count("::=") > _MOST_RULES:
        raise BadRequest(f"{param} has more than {_MOST_RULES} rules", param)
    if nesting(text) > _MOST_NESTING:
        raise BadRequest(f"{param} nests more than {_MOST_NESTING} parentheses", param)


def nesting(text: str) -> int:
    """The deepest nesting of parentheses outside of literals, character classes and comments."""
    depth = deepest = at = 0
    while at < len(text):
        char = text[at]
        if char in '"[':
            at = _end_of(text, at, '"' if char == '"' else "]")
        elif char == "#":
            newline = text.find("\n", at)
            at = len(text) if newline < 0 else newline
        elif char == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif char == ")":
            depth -= 1
        at += 1
    return deepest


def _end_of(text: str, start: int, close: str) -> int:
    at = start + 1
    while at < len(text) and text[at] != close:
        at += 2 if text[at] == "\\" else 1
    return at
