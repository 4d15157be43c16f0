"""Excerpts of existing text, cut between characters, with `…` wherever something was left out. Sizes are UTF-8 bytes."""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

ELLIPSIS = "…"
PIECE_CHARACTERS = 160
_BINARY_SHARE = 0.1
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd\ud800-\udfff]")
_BASE64_RUN = re.compile(r"[A-Za-z0-9+/=]{400,}")


class Piece(NamedTuple):
    """A line of a text, or part of a long one, white space folded; `place` is its number in the text, `size` its bytes."""

    place: int
    text: str
    size: int


def size(text: str) -> int:
    """UTF-8 bytes; a lone surrogate, which JSON may carry, counts as three."""
    return len(text.encode("utf-8", "surrogatepass"))


def clip(text: str, limit: int) -> str:
    """`text`, or its longest beginning of at most `limit` bytes with `…` at its end; '' where not even the mark fits."""
    if len(text) <= limit and size(text) <= limit:
        return text
    room = limit - size(ELLIPSIS)
    if room < 0:
        return ""
    kept = text[:room].encode("utf-8", "surrogatepass")[:room].decode("utf-8", "ignore")
    return kept.rstrip() + ELLIPSIS


def folded(text: str) -> str:
    return " ".join(text.split())


def binary_note(text: str) -> str | None:
    """What to show of a text that is not for reading: control bytes, or one long base64 run; None for ordinary text."""
    head = text[:4096]
    unprintable = len(_UNPRINTABLE.findall(head))
    if unprintable > _BINARY_SHARE * len(head):
        return f"[binary, {size(text)} B]"
    if (run := _BASE64_RUN.search(head)) and len(run.group()) > len(head) / 2:
        return f"[encoded data, {size(text)} B]"
    return None


def pieces(text: str, most: int = 4096) -> list[Piece]:
    """The text as pieces of at most `PIECE_CHARACTERS` characters, no blank ones; of a huge text the first and last `most`/2."""
    if (note := binary_note(text)) is not None:
        return [Piece(0, note, size(note))]
    cut = [part for line in text.splitlines() for part in _split(folded(line))]
    if len(cut) <= most:
        return [Piece(place, part, size(part)) for place, part in enumerate(cut)]
    tail = len(cut) - most // 2
    return [Piece(place, cut[place], size(cut[place])) for place in (*range(most // 2), *range(tail, len(cut)))]


def _split(line: str) -> Iterator[str]:
    while len(line) > PIECE_CHARACTERS:
        border = line.rfind(" ", PIECE_CHARACTERS // 2, PIECE_CHARACTERS)
        at = border if border > 0 else PIECE_CHARACTERS
        yield line[:at]
        line = line[at:].lstrip()
    if line:
        yield line


def joined(all_pieces: Sequence[Piece], chosen: Collection[int]) -> str:
    """The chosen pieces (indexes into `all_pieces`) in order; `…` stands for every gap, also at either end."""
    parts: list[str] = []
    gap = False
    for index, piece in enumerate(all_pieces):
        if index in chosen:
            parts.append(f"{ELLIPSIS} {piece.text}" if gap else piece.text)
        gap = index not in chosen
    return " ".join(parts) + (f" {ELLIPSIS}" if gap and parts else "")
