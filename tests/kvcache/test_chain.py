"""Chain ids: equal exactly when all tokens before are equal."""

from hypothesis import given
from hypothesis import strategies as st

from kvcache.chain import chain_ids, child_id, pack_tokens, root_id, unpack_tokens

TOKENS = st.lists(st.integers(-1, 2**31 - 1), max_size=40)


@given(tokens=TOKENS)
def test_tokens_survive_packing(tokens: list[int]) -> None:
    assert list(unpack_tokens(pack_tokens(tokens))) == tokens


@given(tokens=TOKENS, grid=st.integers(1, 9))
def test_there_is_one_id_for_each_whole_block_and_each_is_its_parents_child(tokens: list[int], grid: int) -> None:
    ids = chain_ids(root_id(b"x"), tokens, grid)
    assert len(ids) == len(tokens) // grid
    parent = root_id(b"x")
    for index, id in enumerate(ids):
        assert id == child_id(parent, pack_tokens(tokens[index * grid : (index + 1) * grid]))
        parent = id


@given(a=TOKENS, b=TOKENS, grid=st.integers(1, 5))
def test_two_prompts_share_ids_exactly_as_far_as_their_tokens_agree(a: list[int], b: list[int], grid: int) -> None:
    ids_a, ids_b = chain_ids(root_id(b"x"), a, grid), chain_ids(root_id(b"x"), b, grid)
    for index, (one, other) in enumerate(zip(ids_a, ids_b, strict=False)):
        end = (index + 1) * grid
        assert (one == other) == (a[:end] == b[:end])


def test_another_fingerprint_shares_no_id() -> None:
    tokens = list(range(64))
    assert not set(chain_ids(root_id(b"x"), tokens, 8)) & set(chain_ids(root_id(b"y"), tokens, 8))
