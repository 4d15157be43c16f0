"""The table of what is resident where."""

from hypothesis import given
from hypothesis import strategies as st

from engine.slots import Slot, SlotTable, common_prefix, victim
from kvcache.chain import chain_ids, root_id

ROOT = root_id(b"test")
GRID = 4


def table(count: int = 2) -> SlotTable:
    return SlotTable(count, GRID, ROOT)


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), max_size=40))
def test_common_prefix_equals_the_naive_one(a: list[int], b: list[int]) -> None:
    naive = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(a, b) == naive


@given(st.integers(0, 5000), st.integers(0, 3000))
def test_common_prefix_of_long_sequences_finds_the_first_difference(at: int, more: int) -> None:
    a = list(range(at + more + 1))
    assert common_prefix(a, [*a[:at], -1, *a[at + 1 :]]) == at


@given(st.lists(st.integers(1, 9), max_size=8))
def test_chain_ids_are_those_of_the_whole_sequence_however_it_grew(lengths: list[int]) -> None:
    slots = table()
    for number, length in enumerate(lengths):
        slots.append(slots[0], [number] * length, prefill=False)
    assert tuple(slots[0].ids) == chain_ids(ROOT, slots[0].tokens, GRID)


def test_a_canonical_read_counts_in_whole_grid_steps() -> None:
    slots = table()
    slots.append(slots[0], range(8), prefill=True)
    slots.append(slots[0], range(3), prefill=True)
    assert slots[0].canonical == 8
    slots.append(slots[0], [1], prefill=False)
    slots.append(slots[0], range(4), prefill=True)
    assert slots[0].canonical == 8


def test_generated_tokens_are_not_canonical_even_where_they_reach_the_grid() -> None:
    slots = table()
    slots.append(slots[0], range(4), prefill=True)
    for token in range(4):
        slots.append(slots[0], [token], prefill=False)
    assert (slots[0].length, slots[0].canonical) == (8, 4)


def test_reading_on_from_a_state_that_is_not_canonical_is_not_canonical() -> None:
    slots = table()
    slots.append(slots[0], range(12), prefill=True)
    slots.cut(slots[0], 8)
    slots.state_from(slots[0], canonical=False)
    slots.append(slots[0], range(4), prefill=True)
    assert slots[0].canonical == 4


def test_a_block_that_is_not_canonical_ends_what_is() -> None:
    slots = table()
    slots.adopt(slots[0], range(4), canonical=True)
    slots.adopt(slots[0], range(4), canonical=False)
    slots.adopt(slots[0], range(4), canonical=True)
    assert (slots[0].canonical, slots[0].parked) == (4, 3)


def test_a_cut_forgets_what_came_after_it() -> None:
    slots = table()
    slots.append(slots[0], range(12), prefill=True)
    slots[0].parked = 3
    slots.cut(slots[0], 9)
    assert (slots[0].length, len(slots[0].ids), slots[0].canonical, slots[0].parked) == (9, 2, 8, 2)
    slots.clear(slots[0])
    assert slots[0] == Slot(0)


def test_a_fork_shares_tokens_ids_and_what_is_known_of_them() -> None:
    slots = table()
    slots.append(slots[0], range(12), prefill=True)
    slots[0].parked = 1
    slots.share(slots[0], slots[1], 8)
    assert (slots[1].tokens, slots[1].canonical, slots[1].parked) == (list(range(8)), 8, 1)
    assert slots.id_at(slots[1], 8) == slots.id_at(slots[0], 8)


def test_the_victim_is_an_empty_slot_then_the_one_unused_the_longest() -> None:
    slots = table(3)
    for slot in slots:
        slots.append(slot, [1], prefill=True)
        slots.touch(slot)
    slots.touch(slots[0])
    assert victim(list(slots)) == 1
    slots.clear(slots[2])
    assert victim(list(slots)) == 2
    slots[1].busy = slots[2].busy = True
    assert victim(list(slots)) == 0
    slots[0].busy = True
    assert victim(list(slots)) is None
