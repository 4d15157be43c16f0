"""Which model the store keeps state of: known at once or after hashing, all parts of a split file, never a changed one."""

import threading
from pathlib import Path

import pytest

from kvcache.weights import Weights
from server.identity import Identity, files_of


def found(weights: Weights, path: Path) -> bytes:
    """The hash that an Identity reports, at once or from its thread."""
    seen: list[bytes] = []
    ready = threading.Event()
    identity = Identity(weights, path, lambda hash: (seen.append(hash), ready.set()))
    identity.start()
    assert ready.wait(10)
    identity.close()
    return seen[0]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + b"w" * 100)
    return path


def test_a_file_has_the_same_hash_the_second_time_without_being_read(model: Path, tmp_path: Path) -> None:
    weights = Weights(tmp_path)
    first = found(weights, model)
    seen: list[bytes] = []
    Identity(weights, model, seen.append).start()
    assert seen == [first]


def test_a_changed_file_has_another_hash(model: Path, tmp_path: Path) -> None:
    first = found(Weights(tmp_path), model)
    model.write_bytes(b"GGUF" + b"v" * 100)
    assert found(Weights(tmp_path), model) != first


def test_every_part_of_a_split_model_counts(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
    for part in parts:
        part.write_bytes(b"GGUF")
    assert files_of(parts[0]) == parts
    first = found(Weights(tmp_path), parts[0])
    parts[1].write_bytes(b"GGUFx")
    assert found(Weights(tmp_path), parts[0]) != first


def test_hashing_that_is_stopped_leaves_the_model_unknown(model: Path, tmp_path: Path) -> None:
    seen: list[bytes] = []
    identity = Identity(Weights(tmp_path), model, seen.append)
    identity._stop.set()  # as close() does while a large file is being read
    identity.start()
    identity.close()
    assert seen == []
