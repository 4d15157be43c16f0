"""States off the grid in the store: found behind the last checkpoint, in RAM alone, the first to go."""

from pathlib import Path

import pytest

from kvcache.chain import chain_ids, child_id, pack_tokens
from kvcache.config import CacheConfig
from kvcache.entry import Block, Checkpoint
from kvcache.eviction import KEYS
from kvcache.store import Store
from tests.kvcache.material import GRID, MIB, ROOT, blocks_of, disk_store, park, tokens


def ram_store(ram: int = MIB) -> Store:
    return Store(CacheConfig(ram_bytes=ram, grid=GRID), ROOT, True)


def tip_of(prompt: tuple[int, ...], position: int, size: int = 100) -> tuple[Block, Checkpoint]:
    start = position // GRID * GRID
    parent = (ROOT, *chain_ids(ROOT, prompt, GRID))[start // GRID]
    part = prompt[start:position]
    id = child_id(parent, pack_tokens(part))
    return Block(id, parent, start, part, bytes(size), False), Checkpoint(id, position, bytes(size), False)


PROMPT = tokens(5 * GRID + 3)
AT = 5 * GRID + 2


def test_a_tip_is_matched_where_its_tokens_are_the_prompts_and_one_is_left_to_read() -> None:
    store = ram_store()
    park(store, PROMPT, 5 * GRID)
    block, checkpoint = tip_of(PROMPT, AT)
    assert store.park_tip(block, checkpoint)
    match = store.match(PROMPT)
    assert match.tip is not None and match.tip.position == AT
    assert match.stored == 5 * GRID and [ref.position for ref in match.checkpoints] == [5 * GRID]
    assert [b.tokens for b in store.restore(match, AT, 4 * GRID)] == [PROMPT[4 * GRID : 5 * GRID], block.tokens]
    assert store.load_checkpoint(match.tip.checkpoint) == checkpoint
    assert store.match(PROMPT[:AT]).tip is None
    assert store.match((*PROMPT[: AT - 1], 9, 9)).tip is None
    assert store.match(PROMPT, canonical_only=True).tip is None


def test_a_tip_before_a_checkpoint_that_can_be_restored_is_not_worth_naming() -> None:
    store = ram_store()
    park(store, PROMPT, 2 * GRID)
    store.park_tip(*tip_of(PROMPT, 3 * GRID + 1))
    assert getattr(store.match(PROMPT).tip, "position", 0) == 3 * GRID + 1
    park(store, PROMPT, 4 * GRID)
    assert store.match(PROMPT).tip is None


def test_the_deepest_of_several_tips_is_named() -> None:
    store = ram_store()
    park(store, PROMPT)
    for at in (GRID + 1, 3 * GRID + 1, 3 * GRID + 2):
        store.park_tip(*tip_of(PROMPT, at))
    assert getattr(store.match(PROMPT).tip, "position", 0) == 3 * GRID + 2
    assert getattr(store.match(PROMPT[: 3 * GRID + 2]).tip, "position", 0) == 3 * GRID + 1


def test_a_tip_without_what_it_stands_on_is_refused() -> None:
    store = ram_store()
    assert not store.park_tip(*tip_of(PROMPT, AT))
    assert not Store(CacheConfig(ram_bytes=0, grid=GRID), ROOT, True).park_tip(*tip_of(PROMPT, 2))
    assert store.entries() == ()


def test_a_tip_never_reaches_the_disk_and_is_not_held_with_ram_off(tmp_path: Path) -> None:
    both = disk_store(tmp_path / "a", ram=MIB)
    park(both, PROMPT, 5 * GRID)
    assert both.park_tip(*tip_of(PROMPT, AT))
    both.flush()
    both.close()
    again = disk_store(tmp_path / "a", ram=MIB)
    match = again.match(PROMPT)
    assert match.stored == 5 * GRID and match.tip is None
    again.close()
    disk = disk_store(tmp_path / "b")
    park(disk, PROMPT, 5 * GRID)
    assert not disk.park_tip(*tip_of(PROMPT, AT))
    disk.close()


@pytest.mark.parametrize("policy", sorted(KEYS))
def test_tips_go_before_anything_else_when_room_is_needed(policy: str) -> None:
    store = Store(CacheConfig(ram_bytes=100_000, grid=GRID, eviction=policy), ROOT, True)
    park(store, PROMPT, 5 * GRID)
    store.park_tip(*tip_of(PROMPT, AT))
    others = iter(blocks_of(tokens(100 * GRID, 7)))
    while store.match(PROMPT).tip is not None:
        assert store.park_block(next(others))
    match = store.match(PROMPT)
    assert match.stored == 5 * GRID and [ref.position for ref in match.checkpoints] == [5 * GRID]
