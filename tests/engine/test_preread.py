"""Every token that was read ahead ends as used or as wasted."""

from hypothesis import given
from hypothesis import strategies as st

from engine.foresight import Kind
from engine.preread import Ledger

GRID = 64
READ_AHEAD = (Kind.ANTICIPATE, Kind.EXACT)


def chain(name: str, steps: int) -> list[bytes]:
    return [f"{name}{step}".encode() for step in range(steps)]


def test_a_request_that_goes_on_behind_it_has_used_all_of_a_read() -> None:
    ledger = Ledger(GRID)
    ledger.note(Kind.ANTICIPATE, 1, chain("a", 8), 128, 512)
    ledger.served(chain("a", 10), 512)
    ledger.gone(1, READ_AHEAD)
    fate = ledger.fate()
    assert (fate.read, fate.used, fate.wasted) == ({Kind.ANTICIPATE: 384}, {Kind.ANTICIPATE: 384}, {})


def test_a_request_that_leaves_in_the_middle_has_used_what_lies_before_and_wasted_the_rest() -> None:
    ledger = Ledger(GRID)
    ledger.note(Kind.ANTICIPATE, 1, chain("a", 8), 128, 512)
    ledger.served([*chain("a", 4), *chain("b", 4)], 256)
    ledger.gone(1, READ_AHEAD)
    assert ledger.fate().used == {Kind.ANTICIPATE: 128}
    assert ledger.fate().wasted == {Kind.ANTICIPATE: 256}
    assert ledger.fate().share_wasted() == 256 / 384


def test_the_rest_beyond_the_grid_is_used_by_who_goes_on_behind_it() -> None:
    ledger = Ledger(GRID)
    ledger.note(Kind.ANTICIPATE, 1, chain("a", 8), 448, 530)
    ledger.served(chain("a", 9), 512)
    ledger.note(Kind.ANTICIPATE, 2, chain("b", 8), 448, 530)
    ledger.served(chain("b", 9), 530)
    for owner in (1, 2):
        ledger.gone(owner, READ_AHEAD)
    assert (ledger.fate().used, ledger.fate().wasted) == ({Kind.ANTICIPATE: 64 + 82}, {Kind.ANTICIPATE: 18})


def test_the_view_after_a_cut_waits_for_its_turn() -> None:
    ledger = Ledger(GRID)
    ledger.note(Kind.CUT, 1, chain("c", 4), 0, 256)
    ledger.gone(1, READ_AHEAD)
    ledger.served(chain("c", 4), 256)
    assert ledger.fate().used == {Kind.CUT: 256}
    assert ledger.fate().share_wasted() == 0


def test_a_checkpoint_made_for_its_own_sake_serves_only_who_goes_on_from_it() -> None:
    ledger = Ledger(GRID)
    ledger.note(Kind.DENSIFY, 1, chain("a", 8), 128, 256)
    ledger.served(chain("a", 8), 512)
    assert not ledger.fate().used
    ledger.served(chain("a", 8), 256)
    assert ledger.fate().used == {Kind.DENSIFY: 128}


def test_what_is_read_twice_was_wasted_once() -> None:
    ledger = Ledger(GRID)
    ledger.note(Kind.ANTICIPATE, 1, chain("a", 2), 0, 128)
    ledger.note(Kind.EXACT, 1, chain("a", 2), 0, 128)
    ledger.served(chain("a", 2), 128)
    assert (ledger.fate().used, ledger.fate().wasted) == ({Kind.EXACT: 128}, {Kind.ANTICIPATE: 128})


def test_another_conversations_reads_stay() -> None:
    ledger = Ledger(GRID)
    ledger.note(Kind.ANTICIPATE, 1, chain("a", 2), 0, 128)
    ledger.note(Kind.ANTICIPATE, 2, chain("b", 2), 0, 128)
    ledger.gone(1, READ_AHEAD)
    ledger.served(chain("b", 2), 128)
    assert ledger.fate().used == {Kind.ANTICIPATE: 128}


events = st.one_of(
    st.tuples(st.just("note"), st.sampled_from(Kind), st.integers(1, 3), st.sampled_from("abc"), st.integers(0, 7)),
    st.tuples(st.just("served"), st.just(Kind.CUT), st.just(0), st.sampled_from("abc"), st.integers(0, 8)),
    st.tuples(st.just("gone"), st.sampled_from(Kind), st.integers(1, 3), st.just("a"), st.just(0)),
)


@given(st.lists(events, max_size=40))
def test_no_token_is_counted_twice_or_lost(happened: list[tuple[str, Kind, int, str, int]]) -> None:
    ledger = Ledger(GRID)
    for what, kind, owner, name, step in happened:
        if what == "note":
            ledger.note(kind, owner, chain(name, 8), step * GRID, 8 * GRID)
        elif what == "served":
            ledger.served(chain(name, 8), step * GRID)
        else:
            ledger.gone(owner, [kind])
    for owner in (1, 2, 3):
        ledger.gone(owner, Kind)
    fate = ledger.fate()
    for kind in Kind:
        assert fate.read.get(kind, 0) == fate.used.get(kind, 0) + fate.wasted.get(kind, 0)
