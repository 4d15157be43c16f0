"""Characters and tokens find each other by bytes, also across cut characters and a BOS in front."""

from hypothesis import given
from hypothesis import strategies as st

from engine.fake import FakeTokenizer
from server.offsets import offsets

TOKENIZER = FakeTokenizer()


def tokens_of(text: str, bos: bool = False) -> list[int]:
    return TOKENIZER.tokenize(text, special=True, add_bos=bos)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<")), st.booleans())
def test_a_char_found_from_its_token_count_is_the_same_char_again(text: str, bos: bool) -> None:
    tokens = tokens_of(text, bos)
    places = offsets(text, tokens, TOKENIZER.piece)
    for char in range(len(text) + 1):
        assert places.char(places.token(char)) == char


def test_a_special_token_counts_as_one() -> None:
    text = "<|im_start|>user"
    places = offsets(text, tokens_of(text), TOKENIZER.piece)
    assert places.token(12) == 1
    assert places.token(5) == 0
    assert places.char(1) == 12


def test_a_character_cut_in_two_by_a_token_border_is_not_covered() -> None:
    places = offsets("aé", tokens_of("aé"), TOKENIZER.piece)
    assert [places.char(n) for n in range(4)] == [0, 1, 1, 2]


def test_a_bos_in_front_shifts_tokens_and_not_characters() -> None:
    places = offsets("ab", tokens_of("ab", bos=True), TOKENIZER.piece)
    assert places.token(0) == 1
    assert places.char(1) == 0
    assert places.char(2) == 1
