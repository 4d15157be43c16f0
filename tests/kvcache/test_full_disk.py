"""The disk is really full: parking stops with a warning, what is there stays good, and RAM goes on serving."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcache import disk
from kvcache.config import CacheConfig
from kvcache.store import Store
from tests.kvcache.material import FINGERPRINT, GRID, MIB, ROOT, blocks_of, disk_store, entry_files, park, tokens


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB. Needs the right to mount."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small tmpfs cannot be mounted here: {mounted.stderr.strip() or mounted.returncode}")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.fixture
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "RETRY_SECONDS", 0.0)


def warning_of(store: Store) -> str | None:
    detail = store.stats().disk_detail
    assert detail is not None
    return detail.warning


def park_until_full(store: Store, prompt: tuple[int, ...]) -> None:
    for block in blocks_of(prompt, 50_000):
        assert store.park_block(block)
    store.flush()


def test_a_full_disk_stops_parking_with_a_warning_and_nothing_half_written_stays(small_disk: Path) -> None:
    store = disk_store(small_disk, ram=32 * MIB, disk=1 << 30, codec="raw")
    prompt = tokens(120 * GRID)
    park_until_full(store, prompt)
    warning = warning_of(store)
    assert warning is not None
    assert "parking to disk rests" in warning
    assert store.match(prompt).stored == 120 * GRID
    assert list(store.restore(store.match(prompt), 120 * GRID)) == blocks_of(prompt, 50_000)
    assert not list(small_disk.rglob(".tmp-*"))
    store.close()
    again = disk_store(small_disk, disk=1 << 30)
    match = again.match(prompt)
    assert 0 < match.stored < 120 * GRID
    assert list(again.restore(match, match.stored)) == blocks_of(prompt, 50_000)[: match.stored // GRID]
    assert again.check().ok
    again.close()


def test_parking_goes_on_by_itself_when_there_is_room_again(small_disk: Path, no_rest: None) -> None:
    filler = small_disk / "filler"
    store = disk_store(small_disk, ram=32 * MIB, disk=1 << 30, codec="raw")
    filler.write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096 - 100_000))
    park_until_full(store, tokens(10 * GRID))
    assert warning_of(store) is not None
    filler.unlink()
    other = tokens(10 * GRID, seed=1)
    park(store, other)
    assert warning_of(store) is None
    store.close()
    again = disk_store(small_disk)
    assert again.match(other).stored == 10 * GRID
    again.close()


def test_a_disk_that_is_full_from_the_start_leaves_a_server_that_serves_from_ram(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096))
    store = Store(CacheConfig(ram_bytes=MIB, disk_bytes=MIB, dir=small_disk, grid=GRID), ROOT, True)
    assert not store.identify(FINGERPRINT)
    park(store, tokens(3 * GRID))
    assert store.match(tokens(3 * GRID)).stored == 3 * GRID
    assert warning_of(store) is not None
    assert entry_files(small_disk) == []
    store.close()
