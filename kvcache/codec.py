"""How payloads are stored: raw, or zstd where measuring on this data and this disk says that it pays. Lossless only."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import zstandard

from kvcache.entry import Payload
from kvcache.errors import DamagedEntry
from kvcache.facts import EntryKind
from kvcache.format import CodecId

LEVEL = 1
SAMPLES = 4
SAMPLE_EVERY = 512
WORTH_RATIO = 0.95
SLOWER_AT_MOST = 1.1


@dataclass(frozen=True, slots=True)
class Sample:
    """What zstd did to one payload. `ratio`: stored / raw bytes. `decode`: raw bytes a second. `disk`: bytes read a second."""

    ratio: float
    decode: float
    disk: float


def encode(codec: CodecId, raw: Payload) -> tuple[CodecId, Payload]:
    """The payload as stored, and the codec really used: zstd that saves nothing is stored raw."""
    if codec is CodecId.ZSTD:
        packed = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False).compress(raw)
        if len(packed) < len(raw):
            return CodecId.ZSTD, packed
    return CodecId.RAW, raw


def decode_into(stored: Payload, target: memoryview, what: str) -> None:
    """Fills `target` with the decoded payload. Raises DamagedEntry, naming `what`, unless it fills it exactly."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(stored) as reader:
            filled = 0
            while filled < len(target) and (n := reader.readinto(target[filled:])):
                filled += n
            if filled < len(target) or reader.read(1):
                raise DamagedEntry(what, "it decodes to another length than its header says")
    except zstandard.ZstdError as error:
        raise DamagedEntry(what, f"it does not decode: {error}") from error


def worth(samples: tuple[Sample, ...], readers: int) -> bool:
    """Whether zstd pays: it saves at least 5 % of the bytes, and a restore takes at most 1.1 times as long.

    Reading and decoding overlap (`readers` threads), so a restored raw byte takes the longer of ratio / disk and
    1 / (decode * readers) seconds, against 1 / disk for raw. Medians, so that one slow measurement decides nothing.
    """
    if not samples:
        return False
    ratio, decode, disk = (_median([getattr(s, name) for s in samples]) for name in ("ratio", "decode", "disk"))
    return ratio <= WORTH_RATIO and max(ratio / disk, 1 / (decode * readers)) <= SLOWER_AT_MOST / disk


@dataclass(slots=True)
class CodecChoice:
    """Chooses by entry kind, since recurrent states and attention KV compress differently. Used by one thread."""

    setting: str
    readers: int
    _samples: dict[EntryKind, list[Sample]] = field(default_factory=dict)
    _seen: dict[EntryKind, int] = field(default_factory=dict)

    def codec(self, kind: EntryKind) -> CodecId:
        """What to store the next payload of this kind with; raw until enough was measured."""
        if self.setting != "auto":
            return CodecId[self.setting.upper()]
        return CodecId.ZSTD if worth(tuple(self._samples.get(kind, ())), self.readers) else CodecId.RAW

    def wants_sample(self, kind: EntryKind) -> bool:
        """Counts a payload; true for the first 4 of a kind and one in 512 after that."""
        seen = self._seen[kind] = self._seen.get(kind, 0) + 1
        return self.setting == "auto" and (seen <= SAMPLES or seen % SAMPLE_EVERY == 0)

    def learn(self, kind: EntryKind, raw: Payload, disk: Callable[[], float]) -> None:
        """Measures zstd on a payload; `disk` measures how many bytes a second the disk reads."""
        self._samples.setdefault(kind, []).append(measure(raw, disk()))
        del self._samples[kind][: -2 * SAMPLES]

    def describe(self) -> str:
        """The setting, and under auto what is in use for each kind."""
        if self.setting != "auto":
            return self.setting
        return "auto (" + ", ".join(f"{kind.value} {self.codec(kind).name.lower()}" for kind in EntryKind) + ")"


def measure(raw: Payload, disk: float) -> Sample:
    """Runs zstd over a payload, there and back, on this thread."""
    packed = zstandard.ZstdCompressor(level=LEVEL).compress(raw)
    target = memoryview(bytearray(len(raw)))
    target[:] = raw  # the first touch of fresh memory would be measured otherwise
    started = time.perf_counter()
    decode_into(packed, target, "sample")
    return Sample(len(packed) / max(1, len(raw)), len(raw) / max(1e-9, time.perf_counter() - started), disk)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
