"""What the idle engine reads next, from frozen values alone."""

from hypothesis import given
from hypothesis import strategies as st

from engine.foresight import Ahead, Held, Kind, Prompt, Read, held_of, reads
from engine.request import Anchor, AnchorKind, Exact
from kvcache.entry import BlockRef, CheckpointRef, Match, Tier

GRID = 64


def prompt(length: int) -> Prompt:
    return Prompt(tuple(range(length)))


def planned(*aheads: Ahead, exact: Exact = Exact.APPEND, budget: int = 10_000) -> list[tuple[Kind, int, int, Exact]]:
    return [(read.kind, read.start, read.end, read.exact) for read in reads(aheads, exact, GRID, budget)]


def test_the_next_prompt_is_read_from_the_deepest_state_up_to_its_last_token() -> None:
    ahead = Ahead(Kind.ANTICIPATE, prompt(1000), Held((256, 512), (256, 512)))
    assert planned(ahead)[0] == (Kind.ANTICIPATE, 512, 999, Exact.STRICT)


def test_a_strict_one_is_read_up_to_the_grid_before_its_last_token_which_the_client_may_change() -> None:
    assert planned(Ahead(Kind.ANTICIPATE, prompt(1000), Held()), exact=Exact.STRICT)[0][2] == 960
    assert planned(Ahead(Kind.ANTICIPATE, prompt(128), Held()), exact=Exact.STRICT)[0][2] == 64


def test_a_prompt_shorter_than_the_grid_is_not_worth_a_read() -> None:
    assert planned(Ahead(Kind.ANTICIPATE, prompt(60), Held())) == []


def test_nothing_is_anticipated_where_a_slot_is_that_far_already() -> None:
    ahead = Ahead(Kind.ANTICIPATE, prompt(1000), Held((64 * 13,), (64,), live=990))
    assert [read[0] for read in planned(ahead)] == [Kind.EXACT]


def test_a_strict_conversation_has_no_use_for_a_live_slot() -> None:
    ahead = Ahead(Kind.ANTICIPATE, prompt(1000), Held((), (), live=990))
    assert planned(ahead, exact=Exact.STRICT)[0] == (Kind.ANTICIPATE, 0, 960, Exact.STRICT)


def test_an_append_conversation_is_first_made_ready_and_then_exact() -> None:
    ahead = Ahead(Kind.ANTICIPATE, prompt(2000), Held((64, 1600), (64,)))
    assert planned(ahead) == [(Kind.ANTICIPATE, 1600, 1999, Exact.APPEND), (Kind.EXACT, 64, 1984, Exact.STRICT)]


def test_one_canonical_read_does_for_both_where_it_takes_little_more() -> None:
    ahead = Ahead(Kind.ANTICIPATE, prompt(2000), Held((64, 1536, 1600), (64, 1536)))
    assert planned(ahead)[0] == (Kind.ANTICIPATE, 1536, 1999, Exact.STRICT)


def test_an_append_conversation_is_made_exact_only_where_it_takes_a_share_of_the_budget() -> None:
    ahead = Ahead(Kind.ANTICIPATE, prompt(2000), Held((1984,), (), live=1999))
    assert [read[0] for read in planned(ahead, budget=8000)] == [Kind.EXACT]
    assert planned(ahead, budget=7000) == []
    assert [read[2] for read in planned(ahead, budget=1000, exact=Exact.STRICT)] == [960, 960]


def test_the_order_is_anticipate_exact_cut_densify() -> None:
    aheads = (
        Ahead(Kind.CUT, prompt(700), Held()),
        Ahead(Kind.ANTICIPATE, prompt(2000), Held((1600,), ()), wanted=(640, 1600)),
    )
    assert [read[0] for read in planned(*aheads)] == [Kind.ANTICIPATE, Kind.EXACT, Kind.CUT, Kind.DENSIFY]


def test_missing_checkpoints_are_made_the_cheapest_first_each_from_the_one_before_it() -> None:
    held = Held((512, 960), (512, 960), live=999)
    ahead = Ahead(Kind.ANTICIPATE, prompt(1000), held, wanted=(320, 512, 576, 832, 960))
    assert planned(ahead) == [(Kind.DENSIFY, 0, 320, Exact.APPEND), (Kind.DENSIFY, 512, 832, Exact.APPEND)]


def test_a_read_never_takes_more_than_the_budget() -> None:
    ahead = Ahead(Kind.ANTICIPATE, prompt(5000), Held((128,), (128,)))
    assert planned(ahead, budget=1000)[0] == (Kind.ANTICIPATE, 128, 128 + 960, Exact.STRICT)
    assert planned(ahead, budget=63) == []


def test_anchors_beyond_what_is_read_are_left_out() -> None:
    anchors = (Anchor(10, AnchorKind.SYSTEM_END), Anchor(90, AnchorKind.USER_END))
    assert Prompt(tuple(range(100)), anchors).upto(64) == Prompt(tuple(range(64)), anchors[:1])


@given(
    st.integers(0, 40),
    st.sets(st.integers(1, 40)),
    st.sets(st.integers(1, 40)),
    st.integers(0, 2600),
    st.integers(0, 3000),
    st.sets(st.integers(1, 40)),
    st.sampled_from(Exact),
)
def test_every_read_starts_at_held_state_and_ends_on_the_grid_within_prompt_and_budget(
    steps: int, positions: set[int], canonical: set[int], live: int, budget: int, wanted: set[int], exact: Exact
) -> None:
    length = steps * GRID + 17
    both = tuple(sorted(GRID * step for step in positions | canonical))
    held = Held(both, tuple(sorted(GRID * step for step in canonical)), live)
    aheads = [Ahead(kind, prompt(length), held, tuple(GRID * w for w in wanted if w <= steps)) for kind in Kind]
    for read in reads(aheads, exact, GRID, budget):
        usable = held.canonical if read.exact is Exact.STRICT else held.positions
        assert isinstance(read, Read)
        assert read.start == 0 or read.start in usable
        assert read.start < read.end < length
        assert read.end % GRID == 0 or (read.kind, exact) == (Kind.ANTICIPATE, Exact.APPEND)
        assert read.end - read.start <= budget


def test_what_is_held_is_where_the_model_can_go_on() -> None:
    blocks = tuple(BlockRef(bytes([n]), n * GRID, (n + 1) * GRID, Tier.RAM, 10) for n in range(3))
    checkpoints = tuple(CheckpointRef(bytes([n]), n * GRID, Tier.RAM, 10) for n in (1, 3, 5))
    match = Match((), blocks, checkpoints)
    nothing = Match((), (), ())
    assert held_of(match, nothing, 7, checkpoints=True) == Held((64, 192), (), 7)
    assert held_of(match, match, 0, checkpoints=False) == Held((64, 128, 192), (64, 128, 192), 0)
