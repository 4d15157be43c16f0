"""From characters of a rendered prompt to its tokens, by exact bytes."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Offsets:
    """A prompt's text and where its tokens end in its UTF-8 bytes. `lead`: bytes that tokens have in front of the text
    (a BOS the tokenizer added), counted in `ends`."""

    text: str
    ends: tuple[int, ...]
    lead: int = 0

    def token(self, char: int) -> int:
        """How many tokens lie whole before character `char`."""
        nbytes = char if self.text.isascii() else len(self.text[:char].encode("utf-8", "replace"))
        return bisect_right(self.ends, nbytes + self.lead)


def offsets(text: str, tokens: Sequence[int], piece: Callable[[int], bytes]) -> Offsets:
    """Offsets of `tokens`, which say `text`, perhaps after a token of their own in front."""
    ends = tuple(accumulate(len(piece(token)) for token in tokens))
    total = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return Offsets(text, ends, max(0, (ends[-1] if ends else 0) - total))
