"""Cutting text into sentences, the unit that search finds and shows and that checks quote."""

import re

LONGEST = 600  # characters; a longer run without an end (minified code, base64) is cut there
END = re.compile(r"(?<=[.!?。！？])[\"'”’)\]]*\s+|\n+")


def split(text: str) -> list[str]:
    """The sentences of `text` in order, each without edge space; a line end ends a sentence as well.

    "3.5" and "file.py" hold no sentence end, because a sentence end is followed by space. Abbreviations are not known:
    "Mr. Dov" is two sentences, which costs a search nothing, as it shows the sentence that follows too.
    """
    found: list[str] = []
    start = 0
    for end in END.finditer(text):
        found.extend(_pieces(text[start : end.end()]))
        start = end.end()
    found.extend(_pieces(text[start:]))
    return found


def _pieces(sentence: str) -> list[str]:
    stripped = sentence.strip()
    return [stripped[i : i + LONGEST] for i in range(0, len(stripped), LONGEST)]
