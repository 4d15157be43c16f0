"""Codecs: lossless, never larger than raw, and chosen by what was measured."""

import os

import pytest

from kvcache.codec import SAMPLES, CodecChoice, Sample, decode_into, encode, worth
from kvcache.errors import DamagedEntry
from kvcache.facts import EntryKind
from kvcache.format import CodecId

MB = 1e6


def test_zstd_that_saves_nothing_is_stored_raw() -> None:
    noise = os.urandom(5000)
    assert encode(CodecId.ZSTD, noise) == (CodecId.RAW, noise)
    used, stored = encode(CodecId.ZSTD, bytes(5000))
    assert used is CodecId.ZSTD
    assert len(stored) < 100


@pytest.mark.parametrize("length", [4999, 5001])
def test_a_payload_that_decodes_to_another_length_is_refused(length: int) -> None:
    _, stored = encode(CodecId.ZSTD, bytes(5000))
    with pytest.raises(DamagedEntry):
        decode_into(stored, memoryview(bytearray(length)), "it")


def test_bytes_that_do_not_decode_are_refused() -> None:
    with pytest.raises(DamagedEntry):
        decode_into(b"not zstd at all", memoryview(bytearray(5)), "it")


@pytest.mark.parametrize(
    ("ratio", "decode", "disk", "pays"),
    [
        (0.50, 900 * MB, 150 * MB, True),  # a hard disk: half the bytes, half the time
        (0.94, 900 * MB, 1700 * MB, True),  # two decoders keep up with the disk
        (0.94, 500 * MB, 1700 * MB, False),  # decoding would be the bottleneck
        (0.97, 9000 * MB, 100 * MB, False),  # hardly smaller
    ],
)
def test_auto_weighs_ratio_against_the_speed_of_disk_and_decoder(ratio: float, decode: float, disk: float, pays: bool) -> None:
    assert worth((Sample(ratio, decode, disk),) * 3, readers=2) is pays


def test_auto_starts_raw_measures_the_first_payloads_and_decides_for_each_kind() -> None:
    choice = CodecChoice("auto", readers=2)
    assert choice.codec(EntryKind.BLOCK) is CodecId.RAW
    for _ in range(SAMPLES):
        assert choice.wants_sample(EntryKind.BLOCK)
        choice.learn(EntryKind.BLOCK, bytes(100_000), lambda: 1 * MB)
    assert not choice.wants_sample(EntryKind.BLOCK)
    assert choice.codec(EntryKind.BLOCK) is CodecId.ZSTD
    assert choice.codec(EntryKind.CHECKPOINT) is CodecId.RAW
    assert choice.describe() == "auto (block zstd, checkpoint raw)"


def test_a_fixed_codec_measures_nothing() -> None:
    choice = CodecChoice("zstd", readers=1)
    assert choice.codec(EntryKind.BLOCK) is CodecId.ZSTD
    assert not choice.wants_sample(EntryKind.BLOCK)
