"""Foreign and broken model files get a sentence that says what they are, before llama.cpp sees them."""

import struct
from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.gguf_header import GgufHeader, read_header

GOOD = struct.pack("<4sIQQ", b"GGUF", 3, 10, 20)
BROKEN = {
    "empty": (b"", "0 bytes"),
    "cut in the header": (GOOD[:20], "20 bytes"),
    "a safetensors file": (struct.pack("<Q", 99) + b'{"weight":' + b" " * 40, "safetensors"),
    "a zip": (b"PK\x03\x04" + b"\0" * 60, "zip"),
    "a Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS"),
    "a web page": (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
    "text": (b"hello, this is no model at all", "no GGUF"),
    "big-endian": (b"FUGG" + GOOD[4:], "big-endian"),
    "a version to come": (struct.pack("<4sIQQ", b"GGUF", 9, 10, 20), "version 9"),
    "no tensors": (struct.pack("<4sIQQ", b"GGUF", 3, 0, 20), "0 tensors"),
    "absurd counts": (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 20), "damaged"),
}


@pytest.mark.parametrize(("content", "says"), BROKEN.values(), ids=BROKEN.keys())
def test_a_file_that_is_no_model_says_what_it_is(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=says):
        read_header(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file"):
        read_header(tmp_path / "missing.gguf")
    with pytest.raises(ModelError, match="is a folder"):
        read_header(tmp_path)


def test_a_good_header_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(GOOD)
    assert read_header(path) == GgufHeader(version=3, tensors=10, pairs=20)
