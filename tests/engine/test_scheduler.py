"""Batches are planned so that every prompt is a canonical read and nobody starves."""

from hypothesis import given
from hypothesis import strategies as st

from engine.scheduler import Limits, Piece, Work, admission_order, beside_limit, next_cut, plan

HYBRID = Limits(batch=512, beside=128, grid=64, mixed=False)
ATTENTION = Limits(batch=512, beside=128, grid=64, mixed=True)


def reading(slot: int, end: int, position: int = 0, stop: int | None = None, served: int = 0) -> Work:
    return Work(slot, position, end, end if stop is None else stop, False, served)


def decoding(slot: int, position: int) -> Work:
    return Work(slot, position, position + 1, position + 1, True, 0)


def cuts(end: int, position: int = 0, stops: tuple[int, ...] = (), room: int = 512, grid: int = 64) -> list[int]:
    """Every cut of one prompt read alone."""
    found = []
    while position < end:
        stop = min((s for s in stops if s > position), default=end)
        position = next_cut(position, end, stop, room, grid)
        found.append(position)
    return found


def test_a_cold_prompt_is_read_in_grid_batches_and_its_remainder_alone() -> None:
    assert cuts(1000) == [512, 960, 1000]


def test_wanted_checkpoints_cut_the_batches() -> None:
    assert cuts(1000, stops=(64, 768)) == [64, 576, 768, 960, 1000]


def test_a_prompt_of_whole_grid_steps_has_no_remainder() -> None:
    assert cuts(1024) == [512, 1024]


def test_an_append_off_the_grid_goes_to_the_next_wanted_checkpoint_first() -> None:
    assert cuts(1400, position=1000, stops=(1024, 1344)) == [1024, 1344, 1400]


@given(
    st.integers(1, 3000),
    st.integers(0, 3000),
    st.lists(st.integers(1, 46).map(lambda k: k * 64)),
    st.sampled_from([64, 128, 512]),
)
def test_cuts_always_progress_and_from_the_grid_on_they_are_canonical(end: int, start: int, stops: list[int], room: int) -> None:
    start = min(start, end - 1)
    at = start
    for cut in cuts(end, start, tuple(s for s in stops if s < end), room):
        assert at < cut <= end
        assert cut - at <= room
        if start % 64 == 0:
            assert cut % 64 == 0 or (cut == end and at == end // 64 * 64)
        at = cut
    assert at == end


def test_running_turns_decode_in_one_batch() -> None:
    assert plan([decoding(0, 10), decoding(2, 99)], HYBRID, True) == (Piece(0, 10, 11), Piece(2, 99, 100))


def test_on_recurrent_models_prefill_and_decode_take_turns() -> None:
    works = [decoding(0, 10), reading(1, 1000)]
    assert plan(works, HYBRID, True) == (Piece(1, 0, 128),)
    assert plan(works, HYBRID, False) == (Piece(0, 10, 11),)


def test_on_attention_models_they_share_a_batch_within_the_bound() -> None:
    assert plan([decoding(0, 10), reading(1, 1000)], ATTENTION, False) == (Piece(0, 10, 11), Piece(1, 0, 128))


def test_equally_long_runs_of_several_prefills_share_a_batch() -> None:
    works = [reading(slot, 100) for slot in range(4)]
    assert plan(works, HYBRID, True) == tuple(Piece(slot, 0, 64) for slot in range(4))


def test_unequal_remainders_are_read_apart_on_recurrent_models() -> None:
    works = [reading(0, 100, 64), reading(1, 90, 64)]
    assert plan(works, HYBRID, True) == (Piece(1, 64, 90),)
    assert plan(works, ATTENTION, True) == (Piece(1, 64, 90), Piece(0, 64, 100))


def test_the_prompt_with_the_least_left_goes_first() -> None:
    works = [reading(0, 5000), reading(1, 5000, 4992), reading(2, 5000, 64)]
    assert plan(works, HYBRID, True) == (Piece(1, 4992, 5000),)


def test_now_and_then_the_one_unserved_the_longest_goes_first() -> None:
    works = [reading(0, 600, served=7), reading(1, 5000, served=3)]
    assert plan(works, HYBRID, True, fair=True) == (Piece(1, 0, 512),)


@given(st.lists(st.tuples(st.integers(1, 2000), st.booleans()), min_size=1, max_size=6), st.booleans(), st.booleans())
def test_every_plan_progresses_within_the_batch(shapes: list[tuple[int, bool]], mixed: bool, first: bool) -> None:
    works = [decoding(i, n) if d else reading(i, n) for i, (n, d) in enumerate(shapes)]
    limits = ATTENTION if mixed else HYBRID
    pieces = plan(works, limits, first)
    assert pieces
    assert sum(p.end - p.start for p in pieces) <= limits.batch
    if not mixed:
        assert len({p.end - p.start for p in pieces}) == 1


def test_the_bound_beside_decodes_is_whole_grid_steps_and_at_least_one() -> None:
    assert beside_limit(10.0, 0.0, 1000.0, 512, 64) == 64
    assert beside_limit(100.0, 0.0, 1000.0, 512, 64) == 64
    assert beside_limit(0.5, 0.0, 1000.0, 512, 64) == 512


def test_slow_decodes_get_longer_gaps_so_that_reading_does_not_suffer() -> None:
    assert beside_limit(10.0, 100.0, 1000.0, 512, 64) == 320


def test_a_session_with_running_turns_waits_behind_others() -> None:
    assert admission_order(["a", "a", "b", None], ["a"]) == (2, 3, 0, 1)


def test_requests_without_a_session_keep_their_order() -> None:
    assert admission_order([None, None], [None, None]) == (0, 1)
