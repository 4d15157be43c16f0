"""A prompt's text read with the tokens that were decoded before, so that no tokenizer can change what the model once said.

A prompt is matched byte by byte against the tokens that live slots hold and the store's blocks name. The tokens of the
longest match are taken as they are and only the rest is tokenized. In strict mode tokens come from the tokenizer alone, as on
a server that knows nothing; then the match only tells where the prompt differs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.context import Tokenizer
from engine.slots import common_prefix

_CHUNK = 256  # tokens compared at once
_BACK = 32  # tokens given up at most to find a good seam


class BlockTree(Protocol):
    """What a Store offers to walk its blocks."""

    root: bytes

    def children(self, parent_id: bytes) -> tuple[tuple[bytes, tuple[int, ...]], ...]: ...


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a prompt leaves the earlier sequence that it agrees with the longest: the first differing byte of the text, and
    how many of the prompt's tokens lie wholly before it."""

    byte: int
    token: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A prompt's tokens; the first `known` were taken from an earlier sequence. `differs` is None for a new prompt and for
    one that only goes on (or stops early)."""

    tokens: tuple[int, ...]
    known: int
    differs: Difference | None


class _Path(NamedTuple):
    """Tokens of a chain, last part first, so that branches share their beginning and a step costs nothing."""

    before: "_Path | None"
    part: Sequence[int]
    total: int

    def tokens(self) -> list[int]:
        parts: list[Sequence[int]] = []
        step: _Path | None = self
        while step is not None:
            parts.append(step.part)
            step = step.before
        return [token for part in reversed(parts) for token in part]


class _Agreement(NamedTuple):
    """How far an earlier sequence agrees: the tokens of `path`, whose bytes are `size` leading bytes of the text; `reach` bytes
    agree in all, the cut token's included. `ends`: nothing of the sequence or of the text is left there, so nothing differs.
    """

    reach: int
    ends: bool
    size: int
    path: _Path

    @property
    def rank(self) -> tuple[int, bool, int]:
        return self.reach, self.ends, self.size


_NO_TOKENS = _Path(None, (), 0)
_NOTHING = _Agreement(0, True, 0, _NO_TOKENS)


class Transcript:
    """Reads prompts for one tokenizer. Safe from any thread; keeps the bytes of every token it has seen, nothing else."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces = _Pieces(tokenizer.piece)
        self._special: dict[int, bool] = {}

    def read(
        self, text: str, resident: Iterable[Sequence[int]], tree: BlockTree, *, strict: bool = False, add_bos: bool = False
    ) -> Reading:
        """The prompt's tokens. `resident`: the tokens of live slots; `tree`: the blocks of parked ones. Linear in the text
        and in what agrees with it."""
        raw = text.encode("utf-8", "replace")
        head = (self._tokenizer.bos,) if add_bos and self._tokenizer.bos is not None else ()
        best = max(self._agreements(raw, head, resident, tree), key=lambda one: one.rank, default=_NOTHING)
        earlier = best.path.tokens()
        tokens = [] if strict else self._keep(raw, len(head), best.size, earlier)
        tokens = tokens or self._tokenizer.tokenize(raw, special=True, add_bos=add_bos)
        differs = None if best.ends else Difference(best.reach, self._tokens_before(tokens, len(head), best.reach))
        return Reading(tuple(tokens), common_prefix(tokens, earlier), differs)

    def _agreements(
        self, raw: bytes, head: tuple[int, ...], resident: Iterable[Sequence[int]], tree: BlockTree
    ) -> Iterator[_Agreement]:
        for tokens in resident:
            if tuple(tokens[: len(head)]) == head:
                yield self._agree(raw, _NOTHING, tokens, skip=len(head))
        yield from self._walk(raw, head, tree)

    def _walk(self, raw: bytes, head: tuple[int, ...], tree: BlockTree) -> Iterator[_Agreement]:
        """Agreements of stored chains: depth first, each block of the tree at most once."""
        todo = [(tree.root, _NOTHING)]
        while todo:
            id, before = todo.pop()
            skip = 0 if before.path.total else len(head)
            for child, tokens in tree.children(id):
                if tokens[:skip] == head[:skip]:
                    found = self._agree(raw, before, tokens, skip=skip)
                    if found.path.total == before.path.total + len(tokens):
                        todo.append((child, found))
                    yield found

    def _agree(self, raw: bytes, before: _Agreement, tokens: Sequence[int], *, skip: int) -> _Agreement:
        """`tokens` follow those of `before`; the first `skip` of them have no bytes in the text."""
        pieces, at, place = self._pieces, before.size, skip
        while place < len(tokens):
            chunk = b"".join(map(pieces.__getitem__, tokens[place : place + _CHUNK]))
            if not raw.startswith(chunk, at):
                break
            at, place = at + len(chunk), min(place + _CHUNK, len(tokens))
        while place < len(tokens) and raw.startswith(pieces[tokens[place]], at):
            at, place = at + len(pieces[tokens[place]]), place + 1
        path = _Path(before.path, tokens[:place], before.path.total + place)
        if place == len(tokens):
            return _Agreement(at, True, at, path)
        piece = pieces[tokens[place]]
        reach = at + _common(raw[at : at + len(piece)], piece)
        return _Agreement(reach, reach == len(raw), at, path)

    def _keep(self, raw: bytes, first: int, size: int, earlier: list[int]) -> list[int]:
        """Earlier tokens up to a good seam, and the tokenizer's of the rest; [] when that is none or does not give the text.

        A tokenizer may not be asked to begin inside a word: it would not find the tokens that the model knows it by.
        """
        count, at = self._seam(raw, first, size, earlier)
        if count <= first:
            return []
        rest = self._tokenizer.tokenize(raw[at:], special=True) if at < len(raw) else []
        joined = b"".join(map(self._pieces.__getitem__, rest))
        return [*earlier[:count], *rest] if joined == raw[at:] else []

    def _seam(self, raw: bytes, first: int, at: int, earlier: list[int]) -> tuple[int, int]:
        """(tokens, bytes) to keep: the last border that is good, or the last one between characters if none is near."""
        fallback = (0, 0)
        for count in range(len(earlier), max(first, len(earlier) - _BACK), -1):
            if self._good_border(raw, at, earlier[count - 1]):
                return count, at
            if fallback == (0, 0) and _between_characters(raw, at):
                fallback = count, at
            at -= len(self._pieces[earlier[count - 1]])
        return fallback

    def _good_border(self, raw: bytes, at: int, token: int) -> bool:
        """Byte-level BPE never joins across these: the end, a special token on either side, a space after a non-space."""
        if at == len(raw) or self._is_special(token):
            return True
        if raw[at : at + 1] == b" " and not raw[at - 1 : at].isspace():
            return True
        following = self._tokenizer.tokenize(raw[at : at + 64], special=True) if raw[at : at + 1] in b"<[" else []
        return bool(following) and self._is_special(following[0])

    def _is_special(self, token: int) -> bool:
        """Whether the token's text means it only where special tokens are asked for."""
        known = self._special.get(token)
        if known is None:
            text = self._pieces[token]
            known = bool(text) and self._tokenizer.tokenize(text, special=False) != [token]
            known = known and self._tokenizer.tokenize(text, special=True) == [token]
            self._special[token] = known
        return known

    def _tokens_before(self, tokens: list[int], first: int, byte: int) -> int:
        at, count = 0, first
        for token in tokens[first:]:
            at += len(self._pieces[token])
            if at > byte:
                break
            count += 1
        return count


class _Pieces(dict[int, bytes]):
    """Token bytes, asked for once each."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        super().__init__()
        self._piece = piece

    def __missing__(self, token: int) -> bytes:
        self[token] = found = self._piece(token)
        return found


def _between_characters(raw: bytes, at: int) -> bool:
    return at >= len(raw) or raw[at] & 0xC0 != 0x80


def _common(a: bytes, b: bytes) -> int:
    """Leading equal bytes of two short strings."""
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
