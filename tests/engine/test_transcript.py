"""Prompts are read with the tokens decoded before: against a naive matcher, and at the seams where a tokenizer would differ."""

from collections.abc import Sequence
from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.fake import FakeTokenizer
from engine.transcript import Difference, Reading, Transcript
from kvcache.chain import chain_ids, root_id

GRID = 4
ROOT = root_id(b"transcript")


class Tree:
    """Block chains as a Store has them."""

    def __init__(self, *sequences: Sequence[int]) -> None:
        self.root = ROOT
        self._kids: dict[bytes, dict[bytes, tuple[int, ...]]] = {}
        self.asked = 0
        for tokens in sequences:
            parent = ROOT
            for at, id in enumerate(chain_ids(ROOT, tokens, GRID)):
                self._kids.setdefault(parent, {})[id] = tuple(tokens[at * GRID : (at + 1) * GRID])
                parent = id

    def children(self, parent_id: bytes) -> tuple[tuple[bytes, tuple[int, ...]], ...]:
        self.asked += 1
        return tuple(self._kids.get(parent_id, {}).items())


class Merging(FakeTokenizer):
    """Bytes, specials, and a few merged tokens, taken greedily: a sampled sequence need not be one that it would make."""

    MERGES = (b"aa", b"ab", b"aab", b" a", "é".encode(), "é".encode() + b"a")

    @property
    def n_vocab(self) -> int:
        return super().n_vocab + len(self.MERGES)

    def piece(self, token: int) -> bytes:
        return self.MERGES[token - super().n_vocab] if token >= super().n_vocab else super().piece(token)

    def tokenize(self, text: str | bytes, *, special: bool, add_bos: bool = False) -> list[int]:
        tokens = super().tokenize(text, special=special, add_bos=add_bos)
        found: list[int] = []
        while tokens:
            best = max((m for m in self.MERGES if tokens[: len(m)] == list(m)), key=len, default=None)
            found.append(super().n_vocab + self.MERGES.index(best) if best else tokens[0])
            tokens = tokens[len(best) if best else 1 :]
        return found


TOKENIZER = Merging()
texts = st.lists(st.sampled_from(["a", "b", " ", "é", "<|im_end|>", "aab"]), max_size=12).map("".join)
sequences = st.lists(st.sampled_from([97, 98, 32, 195, 169, 258, *range(265, 271)]), max_size=24)


def read(text: str, resident: Sequence[Sequence[int]] = (), stored: Sequence[Sequence[int]] = (), **options: bool) -> Reading:
    return Transcript(TOKENIZER).read(text, resident, Tree(*stored), **options)


def agreeing(text: str, tokens: Sequence[int]) -> int:
    """Naive: how many bytes of the text the sequence's leading whole tokens are."""
    raw = text.encode()
    ends = accumulate(len(TOKENIZER.piece(token)) for token in tokens)
    return max((end for n, end in enumerate(ends, 1) if raw.startswith(TOKENIZER.detokenize(tokens[:n]))), default=0)


def whole(tokens: Sequence[int]) -> Sequence[int]:
    return tokens[: len(tokens) // GRID * GRID]


@settings(max_examples=300)
@given(texts, st.lists(sequences, max_size=3), st.lists(sequences, max_size=3), st.booleans())
def test_the_tokens_always_are_the_text(text: str, resident: list[list[int]], stored: list[list[int]], strict: bool) -> None:
    reading = read(text, resident, stored, strict=strict)
    assert TOKENIZER.detokenize(reading.tokens) == text.encode()
    if strict:
        assert list(reading.tokens) == TOKENIZER.tokenize(text, special=True)


@settings(max_examples=300)
@given(texts, sequences, st.integers(0, 24), st.booleans())
def test_a_prompt_that_only_goes_on_keeps_every_earlier_token(more: str, tokens: list[int], cut: int, live: bool) -> None:
    earlier = [*tokens[:cut], 258] if live else whole([*tokens[:cut], 258, 258, 258, 258])
    text = TOKENIZER.detokenize(earlier).decode("utf-8", "ignore")
    if text.encode() == TOKENIZER.detokenize(earlier) and earlier[-1:] == [258]:
        reading = read(text + more, [earlier] if live else [], [] if live else [earlier])
        assert list(reading.tokens[: len(earlier)]) == list(earlier)
        assert (reading.known >= len(earlier), reading.differs) == (True, None)


@settings(max_examples=300)
@given(texts, st.lists(sequences, max_size=3), st.lists(sequences, max_size=3))
def test_the_longest_agreement_is_found_as_the_naive_way_finds_it(
    text: str, live: list[list[int]], stored: list[list[int]]
) -> None:
    reading = read(text, live, stored)
    longest = max((agreeing(text, s) for s in [*live, *map(whole, stored)]), default=0)
    assert len(TOKENIZER.detokenize(reading.tokens[: reading.known])) <= longest
    if reading.differs is not None:
        assert reading.differs.byte >= longest
        assert len(TOKENIZER.detokenize(reading.tokens[: reading.differs.token])) <= reading.differs.byte
    elif longest < len(text.encode()):
        assert any(agreeing(text, s) == len(TOKENIZER.detokenize(s)) for s in [*live, *map(whole, stored), []])


def test_what_the_model_said_keeps_its_own_tokens() -> None:
    said = [97, 97, 98, 258]
    assert TOKENIZER.tokenize("aab<|im_end|>", special=True) != said
    reading = read("aab<|im_end|>\nb", [said])
    assert reading == Reading((*said, 10, 98), 4, None)


def test_strict_takes_the_tokenizers_word_and_still_tells_where_the_prompt_differs() -> None:
    reading = read("aab<|im_end|>b", [[97, 97, 98, 258, 97]], strict=True)
    assert reading.tokens == (*TOKENIZER.tokenize("aab<|im_end|>b", special=True),)
    assert reading.differs == Difference(13, 2)


def test_a_seam_inside_a_word_moves_back_to_the_space_before_it() -> None:
    earlier = TOKENIZER.tokenize("b b aa", special=True)
    reading = read("b b aab", [earlier])
    assert list(reading.tokens) == TOKENIZER.tokenize("b b aab", special=True)
    assert reading.known == 4


def test_a_seam_is_never_inside_a_character() -> None:
    reading = read("bé", [[98, 195, 97]])
    assert list(reading.tokens) == TOKENIZER.tokenize("bé", special=True)
    assert reading.differs == Difference(2, 1)


def test_a_difference_inside_a_token_is_reported_at_its_byte() -> None:
    reading = read("b aab", [[98, 32, 97, 97, 97]])
    assert reading.differs == Difference(4, 2)


def test_the_beginning_of_sequence_token_is_no_text() -> None:
    first = TOKENIZER.bos
    assert first is not None
    for known in ({"resident": [[first, 97, 97, 258]]}, {"stored": [[first, 97, 97, 258]]}):
        assert read("aa<|im_end|>b", **known, add_bos=True) == Reading((first, 97, 97, 258, 98), 4, None)
        assert read("aa<|im_end|>b", **known).known == 0


def test_a_stored_chain_is_followed_block_by_block_and_others_are_left_alone() -> None:
    chain = [97, 98] * 200
    others = [[98, number % 2 + 97, 32, 32] * 4 for number in range(2)]
    tree = Tree(chain, *others)
    reading = Transcript(TOKENIZER).read("ab" * 200 + " b", [], tree)
    assert reading.known == 400
    assert tree.asked == 101


def test_lone_surrogates_do_not_break_a_prompt() -> None:
    assert TOKENIZER.detokenize(read("a\ud800b").tokens) == b"a?b"
