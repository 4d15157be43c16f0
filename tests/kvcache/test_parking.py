"""Write-behind as the engine sees it: parking never waits for the disk, and what waits stays inside the budget."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event

import pytest

from kvcache import disk
from kvcache.batch import Outgoing
from kvcache.config import CacheConfig
from kvcache.facts import EntryKind
from kvcache.store import Store
from tests.kvcache.material import FINGERPRINT, GRID, MIB, ROOT, blocks_of, checkpoint_at, disk_store, entry_files, park, tokens


class Gate:
    """A disk that takes nothing until it is opened."""

    def __init__(self) -> None:
        self.open = Event()
        self.written: list[tuple[EntryKind, int]] = []


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made, write = Gate(), disk.DiskTier.write

    def waits(tier: disk.DiskTier, batch: Sequence[Outgoing]) -> None:
        assert made.open.wait(30)
        made.written += [(item.kind, getattr(item.entry, "end", getattr(item.entry, "position", 0))) for item in batch]
        write(tier, batch)

    monkeypatch.setattr(disk.DiskTier, "write", waits)
    yield made
    made.open.set()


def queued(store: Store) -> int:
    detail = store.stats().disk_detail
    assert detail is not None
    return detail.queued_bytes


def test_parking_does_not_wait_and_everything_can_be_used_meanwhile(tmp_path: Path, gate: Gate) -> None:
    store, prompt = disk_store(tmp_path, ram=MIB), tokens(6 * GRID)
    for block in blocks_of(prompt):
        assert store.park_block(block)
    store.park_checkpoint(checkpoint_at(prompt, 6 * GRID))
    assert queued(store) > 0
    match = store.match(prompt)
    assert list(store.restore(match, 6 * GRID)) == blocks_of(prompt)
    assert entry_files(tmp_path) == []
    gate.open.set()
    store.flush()
    assert (queued(store), len(entry_files(tmp_path))) == (0, 7)
    store.close()


def test_parents_are_written_before_what_stands_on_them(tmp_path: Path, gate: Gate) -> None:
    store, prompt = disk_store(tmp_path, ram=MIB, park_min_tokens=4 * GRID), tokens(6 * GRID)
    store.park_checkpoint(checkpoint_at(prompt, 2 * GRID))
    for block in blocks_of(prompt):
        store.park_block(block)
    gate.open.set()
    store.flush()
    ends = [end for kind, end in gate.written if kind is EntryKind.BLOCK]
    assert ends == [end * GRID for end in range(1, 7)]
    assert gate.written.index((EntryKind.CHECKPOINT, 2 * GRID)) > gate.written.index((EntryKind.BLOCK, 2 * GRID))
    store.close()


@pytest.mark.parametrize("ram", [0, 60_000])
def test_a_disk_that_does_not_keep_up_costs_parked_state_and_never_memory(tmp_path: Path, gate: Gate, ram: int) -> None:
    """With RAM off, what waits is bounded by transit_bytes alone."""
    store = disk_store(tmp_path, ram=ram, transit_bytes=60_000)
    for seed in range(30):
        prompt = tokens(4 * GRID, seed=seed)
        for block in blocks_of(prompt, 2000):
            store.park_block(block)
        assert queued(store) <= 60_000
        assert store.stats().ram.used <= ram
    gate.open.set()
    store.flush()
    assert 0 < len(entry_files(tmp_path)) < 120
    assert store.check().ok
    store.close()


def test_with_ram_off_nothing_stays_in_memory_once_it_is_written(tmp_path: Path) -> None:
    store, prompt = disk_store(tmp_path), tokens(6 * GRID)
    park(store, prompt, 6 * GRID)
    assert {entry.tier.value for entry in store.entries()} == {"disk"}
    assert {ref.tier.value for ref in store.match(prompt).blocks} == {"disk"}
    assert queued(store) == 0
    store.close()


def test_with_ram_off_and_a_folder_that_cannot_be_used_nothing_is_held_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = Store(CacheConfig(ram_bytes=0, disk_bytes=MIB, dir=tmp_path / "file" / "cache", grid=GRID), ROOT, True)
    prompt = tokens(3 * GRID)
    assert store.park_block(blocks_of(prompt)[0])
    assert not store.identify(FINGERPRINT)
    assert not store.enabled
    assert not store.park_block(blocks_of(prompt)[0])
    assert store.match(prompt).stored == 0
    store.close()


def test_closing_writes_what_waits(tmp_path: Path, gate: Gate) -> None:
    store, prompt = disk_store(tmp_path, ram=MIB), tokens(5 * GRID)
    for block in blocks_of(prompt):
        store.park_block(block)
    gate.open.set()
    store.close()
    assert len(entry_files(tmp_path)) == 5


def test_what_trouble_kept_from_the_disk_is_tried_again_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "RETRY_SECONDS", 0.0)
    store, prompt, folder = disk_store(tmp_path, ram=MIB), tokens(4 * GRID), tmp_path / FINGERPRINT.hex()
    folder.write_text("in the way")
    park(store, prompt, 4 * GRID)
    detail = store.stats().disk_detail
    assert detail is not None
    assert detail.warning is not None
    folder.unlink()
    store.close()
    assert len(entry_files(tmp_path)) == 5
