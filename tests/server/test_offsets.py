"""Characters find their tokens by bytes, also across cut characters and a BOS in front."""

from hypothesis import given
from hypothesis import strategies as st

from engine.fake import FakeTokenizer
from server.offsets import offsets

TOKENIZER = FakeTokenizer()


@given(st.text(st.characters(exclude_categories=["Cs"])), st.booleans(), st.data())
def test_the_tokens_before_a_character_are_those_that_say_the_text_before_it(text: str, bos: bool, data: st.DataObject) -> None:
    tokens = TOKENIZER.tokenize(text, special=True, add_bos=bos)
    char = data.draw(st.integers(0, len(text)))
    count = offsets(text, tokens, TOKENIZER.piece).token(char)
    front = TOKENIZER.piece(256) if bos else b""
    assert (front + text[:char].encode()).startswith(TOKENIZER.detokenize(tokens[:count]))
    assert len(TOKENIZER.detokenize(tokens[: count + 1])) > len(front + text[:char].encode()) or count == len(tokens)


def test_a_special_token_counts_as_one_and_only_when_it_is_whole() -> None:
    text = "<|im_start|>user"
    places = offsets(text, TOKENIZER.tokenize(text, special=True), TOKENIZER.piece)
    assert [places.token(char) for char in (5, 12, 13)] == [0, 1, 2]
