"""The Store's contract, the same over RAM alone, disk alone, and both."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcache.chain import chain_ids, root_id
from kvcache.config import CacheConfig
from kvcache.entry import Block
from kvcache.errors import BadCacheConfig, EntryGone
from kvcache.facts import EntryKind
from kvcache.store import Store
from tests.kvcache.material import GRID, MIB, ROOT, blocks_of, checkpoint_at, disk_store, park, tokens


def ram_store(ram: int = MIB, needs_checkpoint: bool = True) -> Store:
    return Store(CacheConfig(ram_bytes=ram, grid=GRID), ROOT, needs_checkpoint)


def stored_blocks(store: Store) -> set[bytes]:
    return {entry.id for entry in store.entries() if entry.kind is EntryKind.BLOCK}


@pytest.fixture(params=["ram", "disk", "ram and disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = {
        "ram": ram_store,
        "disk": lambda: disk_store(tmp_path / "cache"),
        "ram and disk": lambda: disk_store(tmp_path / "cache", ram=MIB),
    }[request.param]()
    yield made
    made.close()


def test_a_parked_prefix_is_matched_up_to_the_first_different_token(store: Store) -> None:
    prompt = tokens(5 * GRID)
    park(store, prompt, 2 * GRID, 5 * GRID)
    other = prompt[: 3 * GRID + 1] + tokens(2 * GRID, seed=9)
    match = store.match(other)
    assert match.stored == 3 * GRID
    assert [ref.position for ref in match.checkpoints] == [2 * GRID]
    assert match.ids == chain_ids(ROOT, other, GRID)


def test_what_comes_back_is_byte_for_byte_what_was_parked(store: Store) -> None:
    prompt = tokens(3 * GRID)
    park(store, prompt, 3 * GRID)
    match = store.match(prompt)
    assert list(store.restore(match, 3 * GRID)) == blocks_of(prompt)
    assert list(store.restore(match, 3 * GRID, from_=GRID)) == blocks_of(prompt)[1:]
    assert list(store.restore(match, 2 * GRID)) == blocks_of(prompt)[:2]
    assert store.load_checkpoint(match.checkpoints[0]) == checkpoint_at(prompt, 3 * GRID)


def test_a_buffer_may_be_reused_after_it_was_parked_as_a_writable_view(store: Store) -> None:
    prompt = tokens(GRID)
    block = blocks_of(prompt)[0]
    buffer = bytearray(block.payload)
    store.park_block(Block(block.id, block.parent, 0, block.tokens, memoryview(buffer), True))
    buffer[:] = bytes(len(buffer))
    assert store.load_block(store.match(prompt).blocks[0]).payload == block.payload


def test_a_read_only_view_is_kept_without_a_copy_and_given_back_as_equal_bytes() -> None:
    store, prompt = ram_store(), tokens(GRID)
    block = blocks_of(prompt)[0]
    view = memoryview(bytearray(block.payload)).toreadonly()
    store.park_block(Block(block.id, block.parent, 0, block.tokens, view, True))
    assert store.load_block(store.match(prompt).blocks[0]).payload is view


def test_a_strict_request_sees_canonical_entries_alone(store: Store) -> None:
    prompt = tokens(3 * GRID)
    for index, block in enumerate(blocks_of(prompt, canonical=True)):
        store.park_block(block if index < 2 else blocks_of(prompt, canonical=False)[index])
    store.park_checkpoint(checkpoint_at(prompt, GRID, canonical=False))
    strict = store.match(prompt, canonical_only=True)
    assert strict.stored == 2 * GRID
    assert strict.checkpoints == ()
    assert store.match(prompt).stored == 3 * GRID
    assert not store.has_block(strict.ids[2], canonical=True)


def test_a_canonical_entry_replaces_another_and_never_the_other_way_round(store: Store) -> None:
    prompt = tokens(GRID)
    plain, canonical = blocks_of(prompt, 80, canonical=False)[0], blocks_of(prompt, 120, canonical=True)[0]
    store.park_block(plain)
    store.park_block(canonical)
    store.park_block(plain)
    for _ in range(2):
        ref = store.match(prompt, canonical_only=True).blocks[0]
        assert store.load_block(ref) == canonical
        store.flush()
    assert len(stored_blocks(store)) == 1


def test_a_block_after_a_gap_is_not_kept(store: Store) -> None:
    prompt = tokens(3 * GRID)
    assert not store.park_block(blocks_of(prompt)[1])
    assert store.stats().ram.used == 0


def test_branches_share_their_common_blocks(store: Store) -> None:
    prompt = tokens(4 * GRID)
    branch = prompt[: 2 * GRID] + tokens(2 * GRID, seed=5)
    park(store, prompt)
    park(store, branch)
    assert len(stored_blocks(store)) == 6
    fork = chain_ids(ROOT, prompt, GRID)[1]
    assert dict(store.children(fork)) == {
        chain_ids(ROOT, prompt, GRID)[2]: prompt[2 * GRID : 3 * GRID],
        chain_ids(ROOT, branch, GRID)[2]: branch[2 * GRID : 3 * GRID],
    }


def test_a_checkpoint_beyond_the_blocks_is_named_for_rollback_but_is_no_hit(store: Store) -> None:
    prompt = tokens(4 * GRID)
    park(store, prompt[: 2 * GRID])
    store.park_checkpoint(checkpoint_at(prompt, 4 * GRID))
    match = store.match(prompt)
    assert (match.stored, [ref.position for ref in match.checkpoints]) == (2 * GRID, [4 * GRID])
    assert store.stats().hits == 0


def test_with_a_budget_of_zero_nothing_is_held_anywhere() -> None:
    store, prompt = ram_store(ram=0), tokens(2 * GRID)
    assert not store.park_block(blocks_of(prompt)[0])
    assert not store.park_checkpoint(checkpoint_at(prompt, GRID))
    assert store.match(prompt).ids == ()
    assert store.stats().ram.used == 0
    assert store.entries() == ()


def test_another_fingerprint_matches_nothing(store: Store) -> None:
    prompt = tokens(2 * GRID)
    park(store, prompt, GRID)
    assert chain_ids(root_id(b"another model"), prompt, GRID)[0] not in {entry.id for entry in store.entries()}


def test_loading_what_was_dropped_meanwhile_says_so() -> None:
    store, prompt, other = ram_store(ram=12_000), tokens(2 * GRID), tokens(3 * GRID, seed=1)
    park(store, prompt, 2 * GRID, size=2000)
    match = store.match(prompt)
    for block in blocks_of(other, 2000):
        store.park_block(block)
    with pytest.raises(EntryGone):
        list(store.restore(match, 2 * GRID))


def test_a_pinned_checkpoint_and_its_blocks_outlive_unpinned_newer_ones() -> None:
    store, prompt = ram_store(ram=30_000), tokens(2 * GRID)
    park(store, prompt, 2 * GRID, size=2000)
    store.pin(chain_ids(ROOT, prompt, GRID)[1])
    for seed in range(1, 20):
        park(store, tokens(2 * GRID, seed=seed), 2 * GRID, size=2000)
    match = store.match(prompt)
    assert match.stored == 2 * GRID
    assert [ref.position for ref in match.checkpoints] == [2 * GRID]
    store.unpin(match.ids[1])
    for seed in range(20, 40):
        park(store, tokens(2 * GRID, seed=seed), 2 * GRID, size=2000)
    assert store.match(prompt).stored == 0


def test_sessions_are_counted_and_change_no_match(store: Store) -> None:
    prompt = tokens(2 * GRID)
    for block in blocks_of(prompt):
        store.park_block(block, session="alpha")
    [seen] = store.stats().sessions
    assert (seen.name, seen.blocks, seen.bytes, seen.position) == ("alpha", 2, 200, 2 * GRID)


@pytest.mark.parametrize("field", ["ram_bytes", "disk_bytes", "park_min_tokens"])
def test_a_negative_setting_is_refused_by_name(field: str) -> None:
    with pytest.raises(BadCacheConfig, match=field):
        CacheConfig(**{"ram_bytes": 0, field: -1})
