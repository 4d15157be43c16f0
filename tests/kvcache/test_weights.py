"""Model files are told apart by their bytes, read once, and never mistaken after a change."""

import os
from pathlib import Path
from threading import Event

import pytest

from kvcache.weights import CHUNK, Interrupted, Weights


def model(folder: Path, data: bytes = b"weights" * 1000) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return path


def test_a_file_is_hashed_once_and_remembered_over_processes(tmp_path: Path) -> None:
    path = model(tmp_path)
    assert Weights(tmp_path).known(path) is None
    digest = Weights(tmp_path).measure(path)
    assert len(digest) == 16
    assert Weights(tmp_path).known(path) == digest


def test_a_moved_or_touched_file_matches_after_it_was_read_again(tmp_path: Path) -> None:
    path, weights = model(tmp_path), Weights(tmp_path)
    digest = weights.measure(path)
    moved = path.rename(tmp_path / "elsewhere.gguf")
    assert weights.known(moved) is None
    assert weights.measure(moved) == digest
    os.utime(moved, (1, 1))
    assert weights.known(moved) is None
    assert weights.measure(moved) == digest


def test_a_changed_file_never_matches_even_with_size_and_time_set_back(tmp_path: Path) -> None:
    path, weights = model(tmp_path), Weights(tmp_path)
    digest, before = weights.measure(path), path.stat()
    with path.open("r+b") as file:
        file.write(b"W")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert weights.known(path) is None
    assert weights.measure(path) != digest


def test_identify_calls_back_from_a_thread_the_first_time_and_at_once_later(tmp_path: Path) -> None:
    path, weights, seen = model(tmp_path), Weights(tmp_path), []
    thread = weights.identify(path, seen.append)
    assert thread is not None
    thread.join()
    assert weights.identify(path, seen.append) is None
    assert len(seen) == 2
    assert seen[0] == seen[1] == weights.known(path)


def test_a_file_that_changes_while_it_is_read_has_no_hash(tmp_path: Path) -> None:
    path, weights = model(tmp_path, bytes(CHUNK + 1)), Weights(tmp_path)

    def touch(done: int, total: int) -> None:
        os.utime(path, (done, done))

    with pytest.raises(Interrupted):
        weights.measure(path, progress=touch)
    assert weights.known(path) is None


def test_hashing_stops_when_told(tmp_path: Path) -> None:
    stop = Event()
    stop.set()
    with pytest.raises(Interrupted):
        Weights(tmp_path).measure(model(tmp_path), stop)


def test_a_broken_memory_is_a_memory_of_nothing(tmp_path: Path) -> None:
    path, weights = model(tmp_path), Weights(tmp_path)
    digest = weights.measure(path)
    (tmp_path / "weights.json").write_text("[nonsense")
    assert weights.known(path) is None
    assert weights.measure(path) == digest


def test_a_missing_file_is_an_os_error_and_in_the_background_only_logged(tmp_path: Path) -> None:
    seen: list[bytes] = []
    with pytest.raises(OSError, match="nowhere"):
        Weights(tmp_path).identify(tmp_path / "nowhere.gguf", seen.append)
    assert seen == []
