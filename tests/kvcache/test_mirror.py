"""The mirror of a shared index: trouble in the middle leaves it right, and a replaced index is followed."""

from pathlib import Path
from threading import RLock

import pytest

from kvcache.entry import Block
from kvcache.errors import DiskTrouble
from kvcache.eviction import by_name
from kvcache.facts import EntryKind
from kvcache.mirror import Mirror
from tests.kvcache.material import GRID, blocks_of, disk_store, park, tokens


def mirror_of(folder: Path) -> Mirror:
    mirror = Mirror(folder, by_name("lru"), True, RLock())
    with mirror.transaction():
        pass
    return mirror


def test_a_transaction_that_fails_changes_nothing_once_the_next_one_ran(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    park(store, tokens(4 * GRID), 4 * GRID)
    store.close()
    mirror = mirror_of(tmp_path)
    held = {(kind, node.id) for kind, node, _ in mirror.tree.all()}
    assert len(held) == 5
    with pytest.raises(DiskTrouble), mirror.transaction() as txn:
        gone = mirror.tree.make_room(0, 0)
        txn.delete(gone)
        raise DiskTrouble("the disk is full")
    assert mirror.has_news
    with mirror.transaction():
        pass
    assert {(kind, node.id) for kind, node, _ in mirror.tree.all()} == held
    mirror.close()


def test_two_servers_go_on_when_the_index_is_lost_under_them(tmp_path: Path) -> None:
    one, two = disk_store(tmp_path), disk_store(tmp_path)
    first, second, third = (tokens(3 * GRID, seed=seed) for seed in range(3))
    park(one, first, 3 * GRID)
    for path in tmp_path.glob("index.sqlite*"):
        path.unlink()
    park(two, second, 3 * GRID)
    park(one, third, 3 * GRID)
    two.match(first)
    park(two, tokens(GRID, seed=9))
    for store in (one, two):
        for prompt in (first, second, third):
            match = store.match(prompt)
            assert list(store.restore(match, match.stored)) == blocks_of(prompt)
    assert one.check().ok
    one.close()
    two.close()


def test_losses_are_told_to_the_index(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    prompt = tokens(2 * GRID)
    park(store, prompt)
    store.close()
    mirror = mirror_of(tmp_path)
    [second] = [node.id for _, node, _ in mirror.tree.all() if node.position == 2 * GRID]
    mirror.folder.files.remove(EntryKind.BLOCK, second[:16], second[16:])
    mirror.lose(EntryKind.BLOCK, second, damaged=False)
    with mirror.transaction() as txn:
        assert [row.end for row in txn.rows()] == [GRID]
    mirror.close()


def test_a_row_that_changed_replaces_the_old_one_and_its_children_stay(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    prompt = tokens(3 * GRID)
    park(store, prompt, canonical=False)
    other = disk_store(tmp_path)
    assert other.match(prompt).stored == 3 * GRID
    canonical: Block = blocks_of(prompt, canonical=True)[0]
    store.park_block(canonical)
    store.flush()
    assert other.match(prompt, canonical_only=True).stored == GRID
    assert other.match(prompt).stored == 3 * GRID
    assert other.load_block(other.match(prompt).blocks[0]) == canonical
    store.close()
    other.close()
