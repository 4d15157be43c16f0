"""The first bytes of a model file, read before llama.cpp is given it: a foreign file gets a sentence that says what it is."""

import struct
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelError

_HEADER = struct.Struct("<4sIQQ")  # magic, version, tensors, key-value pairs: the GGUF specification, "File Structure"
_VERSIONS = (2, 3)
_MOST_ENTRIES = 1 << 20  # far beyond any model, far below what would make a reader allocate the machine away
_FOREIGN = (
    (b"version https://git-lfs", "a Git LFS pointer, not the model: run `git lfs pull`"),
    (b"PK\x03\x04", "a zip archive or a PyTorch checkpoint; kvalet reads GGUF"),
    (b"tjgg", "a GGML file from before GGUF; convert it with a newer llama.cpp"),
    (b"lmgg", "a GGML file from before GGUF; convert it with a newer llama.cpp"),
    (b"fmgg", "a GGML file from before GGUF; convert it with a newer llama.cpp"),
    (b"<!DOCTYPE", "a web page: the download went wrong"),
    (b"<html", "a web page: the download went wrong"),
    (b"FUGG", "a big-endian GGUF, which this machine cannot read"),
)


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Version, and how many tensors and key-value pairs follow."""

    version: int
    tensors: int
    pairs: int


def read_header(path: Path) -> GgufHeader:
    """The header of a GGUF file. Raises ModelError for a missing, unreadable, empty or foreign file."""
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except FileNotFoundError:
        raise ModelError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise ModelError(f"{path} is a folder; name the .gguf file in it") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    return _parse(path, start)


def _parse(path: Path, start: bytes) -> GgufHeader:
    if len(start) < _HEADER.size:
        raise ModelError(f"{path} has {len(start)} bytes: it is no model (a broken download?)")
    magic, version, tensors, pairs = _HEADER.unpack_from(start)
    if magic != b"GGUF":
        raise ModelError(f"{path} is {_what_it_is(start)}")
    if version not in _VERSIONS:
        raise ModelError(f"{path} is GGUF version {version}; versions {_VERSIONS} can be read here")
    if not (0 < tensors < _MOST_ENTRIES and 0 < pairs < _MOST_ENTRIES):
        raise ModelError(f"{path} claims {tensors} tensors and {pairs} keys: its header is damaged or it holds no weights")
    return GgufHeader(version, tensors, pairs)


def _what_it_is(start: bytes) -> str:
    for prefix, meaning in _FOREIGN:
        if start.startswith(prefix):
            return meaning
    if start[8:9] == b"{":
        return "a safetensors file; kvalet reads GGUF (llama.cpp's convert_hf_to_gguf.py makes one)"
    return "no GGUF file"
