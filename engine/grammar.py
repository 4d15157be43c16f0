"""What a GBNF grammar may be before llama.cpp parses it: its parser recurses and unrolls, and would take the process with it."""

import re

from engine.errors import BadRequest

_MOST_BYTES = 1 << 20
_MOST_NESTING = 128
_MOST_RULES = 20_000
_MOST_REPEATS = 200_000  # all upper bounds together; each one is unrolled
_REPEAT = re.compile(r"\{\s*(\d+)\s*(?:,\s*(\d*)\s*)?\}")
_SKIPPED = re.compile(r'"(?:\\.|[^"\\])*"?|\[(?:\\.|[^\]\\])*\]?|#[^\n]*', re.DOTALL)  # literals, classes, comments
ROOT = "root"


def check_grammar(text: str, param: str = "grammar") -> None:
    """Raises BadRequest for a grammar that is empty, holds NUL, is too large or too deep to be parsed safely, or repeats
    from more to less (`x{5,2}`), which llama.cpp unrolls for ever."""
    if not text.strip():
        raise BadRequest(f"{param} is empty", param)
    if "\0" in text:
        raise BadRequest(f"{param} holds a NUL character", param)
    if len(text.encode("utf-8", "replace")) > _MOST_BYTES:
        raise BadRequest(f"{param} is longer than {_MOST_BYTES} bytes", param)
    code = _SKIPPED.sub(" ", text)
    if code.count("::=") > _MOST_RULES:
        raise BadRequest(f"{param} has more than {_MOST_RULES} rules", param)
    if _nesting(code) > _MOST_NESTING:
        raise BadRequest(f"{param} nests more than {_MOST_NESTING} parentheses", param)
    _check_repeats(code, param)


def _nesting(code: str) -> int:
    depth = deepest = 0
    for bracket in re.findall(r"[()]", code):
        depth += 1 if bracket == "(" else -1
        deepest = max(deepest, depth)
    return deepest


def _check_repeats(code: str, param: str) -> None:
    total = 0
    for low, high in _REPEAT.findall(code):
        if max(len(low), len(high)) > 9 or (high and int(high) < int(low)):
            raise BadRequest(f"{param} has the repetition {{{low},{high}}}", param)
        total += int(high or low)
    if total > _MOST_REPEATS:
        raise BadRequest(f"{param} repeats things {total} times; {_MOST_REPEATS} is the most", param)
