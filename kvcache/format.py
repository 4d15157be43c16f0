"""The file of one block or checkpoint, byte by byte. Integers are little-endian; docs/format.md says the same to readers.

    offset size
         0    8  magic "kvalet\\r\\n"
         8    4  version, 1
        12    4  kind: 1 block, 2 checkpoint
        16   16  fingerprint of model and settings
        32   16  id: chain id of the prefix that ends at `end`
        48   16  parent: chain id of the prefix that ends at `start` (checkpoint: zeros)
        64    8  start: first token position of the block (checkpoint: equal to `end`)
        72    8  end: position after the last token
        80    4  codec: 0 raw, 1 zstd
        84    4  flags: bit 0 canonical
        88    8  stored: payload bytes in this file
        96    8  raw: payload bytes once decoded
       104   16  xxh3-128 of the stored payload
       120   16  xxh3-128 of the raw payload
       136   32  label, UTF-8, zero-padded: why a checkpoint was kept
       168    4  header: bytes before the payload, a multiple of 512
       172    4  tokens: count of token ids that follow, end - start for a block, 0 for a checkpoint
       176   4n  token ids, int32
         .    .  zeros up to header - 16
    header-16 16  xxh3-128 of all header bytes before it
    header   ..  payload, `stored` bytes; the file ends with it

The payload starts at a multiple of 512, so it can be mapped, and the file can be read with O_DIRECT into one aligned
buffer. Every byte is covered: by the header's checksum, by a payload's checksum, or by the file's exact length.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from xxhash import xxh3_128_digest

from kvcache.chain import ID_BYTES, child_id, pack_tokens, unpack_tokens
from kvcache.entry import Block, Checkpoint, Payload
from kvcache.errors import DamagedEntry
from kvcache.facts import EntryKind

MAGIC = b"kvalet\r\n"
VERSION = 1
ALIGN = 512
LABEL_BYTES = 32
_FIXED = struct.Struct("<8s I I 16s 16s 16s Q Q I I Q Q 16s 16s 32s I I")
_CHECKSUM_BYTES = 16
MAX_HEADER = 1 << 20
_KIND_CODES = {EntryKind.BLOCK: 1, EntryKind.CHECKPOINT: 2}
_KINDS = {code: kind for kind, code in _KIND_CODES.items()}


class CodecId(IntEnum):
    """How a payload is stored; the number is in the file."""

    RAW = 0
    ZSTD = 1


@dataclass(frozen=True, slots=True)
class Header:
    """Everything of a file but its payload. `packed` are a block's token ids as in the file (chain.pack_tokens)."""

    kind: EntryKind
    fingerprint: bytes
    id: bytes
    parent: bytes
    start: int
    end: int
    packed: bytes
    canonical: bool
    label: str
    codec: CodecId
    stored_bytes: int
    raw_bytes: int
    stored_sum: bytes
    raw_sum: bytes

    @property
    def header_bytes(self) -> int:
        return header_bytes(len(self.packed) // 4)

    @property
    def file_bytes(self) -> int:
        return self.header_bytes + self.stored_bytes

    @property
    def tokens(self) -> tuple[int, ...]:
        return unpack_tokens(self.packed)

    def block(self, payload: Payload) -> Block:
        return Block(self.id, self.parent, self.start, self.tokens, payload, self.canonical)

    def checkpoint(self, payload: Payload) -> Checkpoint:
        return Checkpoint(self.id, self.end, payload, self.canonical)


def header_bytes(tokens: int) -> int:
    """Length of the header of an entry with that many token ids."""
    return -(-(_FIXED.size + 4 * tokens + _CHECKSUM_BYTES) // ALIGN) * ALIGN


def checksum(data: Payload) -> bytes:
    """xxh3-128: guards against damage, not against forgery; about 12 GB/s where blake2b does 0.9."""
    return xxh3_128_digest(data)


def header_of(
    entry: Block | Checkpoint, fingerprint: bytes, codec: CodecId, stored: Payload, raw_sum: bytes, label: str = ""
) -> Header:
    """The header for an entry whose payload is stored as `stored`; a label longer than 32 bytes is cut."""
    stored_sum = raw_sum if codec is CodecId.RAW else checksum(stored)
    sizes = (codec, len(stored), entry.nbytes, stored_sum, raw_sum)
    if isinstance(entry, Checkpoint):
        nothing, at = bytes(ID_BYTES), entry.position
        return Header(
            EntryKind.CHECKPOINT, fingerprint, entry.id, nothing, at, at, b"", entry.canonical, _fit_label(label), *sizes
        )
    packed = pack_tokens(entry.tokens)
    return Header(
        EntryKind.BLOCK, fingerprint, entry.id, entry.parent, entry.start, entry.end, packed, entry.canonical, "", *sizes
    )


def pack(header: Header) -> bytes:
    """The header's bytes; the payload follows them."""
    fixed = _FIXED.pack(
        MAGIC,
        VERSION,
        _KIND_CODES[header.kind],
        header.fingerprint,
        header.id,
        header.parent,
        header.start,
        header.end,
        header.codec,
        int(header.canonical),
        header.stored_bytes,
        header.raw_bytes,
        header.stored_sum,
        header.raw_sum,
        header.label.encode(),
        header.header_bytes,
        len(header.packed) // 4,
    )
    body = (fixed + header.packed).ljust(header.header_bytes - _CHECKSUM_BYTES, b"\0")
    return body + checksum(body)


def unpack(data: Payload, what: str) -> Header:
    """Reads and proves a header from a file's first bytes. Raises DamagedEntry, naming `what`, if anything is off."""
    if len(data) < _FIXED.size:
        raise DamagedEntry(what, f"only {len(data)} bytes long")
    fields = _FIXED.unpack_from(data)
    magic, version, kind_code, *_, length, count = fields
    if magic != MAGIC:
        raise DamagedEntry(what, "not a kvalet file")
    if version != VERSION:
        raise DamagedEntry(what, f"written in format version {version}, this is version {VERSION}")
    if length != header_bytes(min(count, MAX_HEADER)) or length > len(data):
        raise DamagedEntry(what, "the header's length is wrong")
    body = bytes(data[: length - _CHECKSUM_BYTES])
    if checksum(body) != bytes(data[length - _CHECKSUM_BYTES : length]):
        raise DamagedEntry(what, "the header's checksum is wrong")
    if kind_code not in _KINDS or fields[8] not in set(CodecId):
        raise DamagedEntry(what, "unknown kind or codec")
    return _proved(_header(fields, body), what)


def check_name(header: Header, kind: EntryKind, fingerprint: bytes, id: bytes, what: str) -> None:
    """Raises DamagedEntry unless the file holds the entry that its name says."""
    if (header.kind, header.fingerprint, header.id) != (kind, fingerprint, id):
        raise DamagedEntry(what, "it holds another entry than its name says")


def check_size(header: Header, file_bytes: int, what: str) -> None:
    """Raises DamagedEntry unless the file is exactly as long as its header says."""
    if file_bytes != header.file_bytes:
        raise DamagedEntry(what, f"{file_bytes} bytes long, its header says {header.file_bytes}")


def check_stored(header: Header, stored: Payload, what: str) -> None:
    """Raises DamagedEntry unless these are the payload bytes that were written."""
    if len(stored) != header.stored_bytes or checksum(stored) != header.stored_sum:
        raise DamagedEntry(what, "the stored payload's checksum is wrong")


def check_raw(header: Header, raw: Payload, what: str) -> None:
    """Raises DamagedEntry unless the decoded payload is the one that was parked. For raw files check_stored is the same."""
    if len(raw) != header.raw_bytes or checksum(raw) != header.raw_sum:
        raise DamagedEntry(what, "the decoded payload's checksum is wrong")


def _header(fields: tuple[Any, ...], body: bytes) -> Header:
    _, _, kind, fingerprint, id, parent, start, end, codec, flags, stored, raw, stored_sum, raw_sum, label, _, count = fields
    return Header(
        kind=_KINDS[kind],
        fingerprint=fingerprint,
        id=id,
        parent=parent,
        start=start,
        end=end,
        packed=body[_FIXED.size : _FIXED.size + 4 * count],
        canonical=bool(flags & 1),
        label=label.rstrip(b"\0").decode("utf-8", "replace"),
        codec=CodecId(codec),
        stored_bytes=stored,
        raw_bytes=raw,
        stored_sum=stored_sum,
        raw_sum=raw_sum,
    )


def _proved(header: Header, what: str) -> Header:
    """Proves what a checksum cannot: that the id is the chain id of parent and tokens, and the positions agree."""
    if header.kind is EntryKind.CHECKPOINT:
        wrong = header.start != header.end or bool(header.packed)
    else:
        wrong = header.end - header.start != len(header.packed) // 4 or header.id != child_id(header.parent, header.packed)
    if wrong:
        raise DamagedEntry(what, "its id, positions and tokens do not agree")
    return header


def _fit_label(label: str) -> str:
    return label.encode()[:LABEL_BYTES].decode("utf-8", "ignore")
