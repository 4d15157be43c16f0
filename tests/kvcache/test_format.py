"""The file format: what goes in comes out, and any other byte is refused."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.codec import encode
from kvcache.entry import Block, Checkpoint
from kvcache.errors import DamagedEntry
from kvcache.format import ALIGN, CodecId, Header, checksum, header_bytes, header_of, pack, unpack
from kvcache.reading import Buffers, read_entry
from tests.kvcache.material import FINGERPRINT, GRID, blocks_of, checkpoint_at, tokens


def file_bytes(entry: Block | Checkpoint, codec: CodecId = CodecId.RAW, label: str = "") -> bytes:
    used, stored = encode(codec, entry.payload)
    return pack(header_of(entry, FINGERPRINT, used, stored, checksum(entry.payload), label)) + bytes(stored)


def read(path: Path, data: bytes) -> tuple[Header, bytes]:
    path.unlink(missing_ok=True)  # ext4 syncs a file that is truncated and written again
    path.write_bytes(data)
    header, payload = read_entry(path, Buffers(spare=1 << 20))
    return header, bytes(payload)


@settings(max_examples=60)
@given(
    count=st.integers(1, 300), size=st.integers(0, 4000), canonical=st.booleans(), label=st.text(max_size=40), zstd=st.booleans()
)
def test_any_entry_comes_back_as_it_was_with_its_payload_aligned(
    count: int, size: int, canonical: bool, label: str, zstd: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, codec = tmp_path_factory.mktemp("one") / "file", CodecId.ZSTD if zstd else CodecId.RAW
    block = blocks_of(tokens(count), size, canonical, grid=count)[0]
    header, payload = read(path, file_bytes(block, codec))
    assert header.block(payload) == block
    assert header.header_bytes % ALIGN == 0
    assert header.header_bytes == header_bytes(count)
    checkpoint = checkpoint_at(tokens(count), count, size, canonical, grid=count)
    header, payload = read(path, file_bytes(checkpoint, codec, label))
    assert header.checkpoint(payload) == checkpoint
    assert label.startswith(header.label.rstrip("\0")) or "\0" in label


@pytest.mark.parametrize("codec", [CodecId.RAW, CodecId.ZSTD])
@pytest.mark.parametrize("kind", ["block", "checkpoint"])
def test_every_single_flipped_byte_is_refused(tmp_path: Path, codec: CodecId, kind: str) -> None:
    prompt = tokens(GRID)
    entry: Block | Checkpoint = blocks_of(prompt, 60)[0] if kind == "block" else checkpoint_at(prompt, GRID, 60)
    entry = type(entry)(**{f: getattr(entry, f) for f in entry.__slots__} | {"payload": bytes(entry.payload) * 20})
    good = file_bytes(entry, codec, "label")
    assert read(tmp_path / "file", good)
    for at in range(len(good)):
        flipped = bytearray(good)
        flipped[at] ^= 0x40
        with pytest.raises(DamagedEntry):
            read(tmp_path / "file", bytes(flipped))


def test_a_file_cut_anywhere_or_lengthened_is_refused(tmp_path: Path) -> None:
    good = file_bytes(blocks_of(tokens(GRID), 700)[0])
    for length in range(len(good)):
        with pytest.raises(DamagedEntry):
            read(tmp_path / "file", good[:length])
    with pytest.raises(DamagedEntry):
        read(tmp_path / "file", good + b"\0")


def test_a_large_file_cut_at_every_4_kib_is_refused(tmp_path: Path) -> None:
    good = file_bytes(checkpoint_at(tokens(GRID), GRID, 300_000))
    for length in range(0, len(good), 4096):
        with pytest.raises(DamagedEntry):
            read(tmp_path / "file", good[:length])


def test_another_version_is_named_in_the_refusal(tmp_path: Path) -> None:
    good = bytearray(file_bytes(blocks_of(tokens(GRID))[0]))
    good[8] = 7
    with pytest.raises(DamagedEntry, match="version 7"):
        read(tmp_path / "file", bytes(good))


def test_a_header_whose_id_is_not_the_hash_of_its_tokens_is_refused_although_its_checksum_fits() -> None:
    block = blocks_of(tokens(GRID))[0]
    forged = Block(block.id, block.parent, 0, (1, 2, 3, 4), block.payload, True)
    with pytest.raises(DamagedEntry, match="do not agree"):
        unpack(file_bytes(forged), "forged")


def test_the_layout_is_what_the_page_says() -> None:
    block = blocks_of(tokens(64), 1000, grid=64)[0]
    data = file_bytes(block)
    assert data[:8] == b"kvalet\r\n"
    assert int.from_bytes(data[8:12], "little") == 1
    assert data[16:32] == FINGERPRINT
    assert (data[32:48], data[48:64]) == (block.id, block.parent)
    assert int.from_bytes(data[88:96], "little") == 1000
    assert int.from_bytes(data[168:172], "little") == 512
    assert int.from_bytes(data[176:180], "little") == block.tokens[0]
    assert data[496:512] == checksum(data[:496])
    assert data[512:] == block.payload
