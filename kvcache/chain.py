"""Token ranges to chained ids: equal ids mean equal tokens from position 0 on, under one fingerprint."""

import struct
from collections.abc import Sequence
from hashlib import blake2b

ID_BYTES = 16


def root_id(fingerprint: bytes) -> bytes:
    """Id of the empty prefix; another fingerprint gives another root, so none of its ids can ever match."""
    return blake2b(fingerprint, digest_size=ID_BYTES).digest()


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Tokens as little-endian int32, the form that is hashed and stored."""
    return struct.pack(f"<{len(tokens)}i", *tokens)


def unpack_tokens(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 4}i", packed)


def child_id(parent: bytes, packed: bytes) -> bytes:
    """Chain id after `packed` tokens (pack_tokens) that follow the prefix `parent`."""
    return blake2b(parent + packed, digest_size=ID_BYTES).digest()


def chain_ids(root: bytes, tokens: Sequence[int], grid: int) -> tuple[bytes, ...]:
    """Ids at positions grid, 2*grid, ... up to len(tokens): one a whole block; a tail shorter than `grid` has none."""
    packed = pack_tokens(tokens)
    step = 4 * grid
    ids = []
    for start in range(0, len(tokens) // grid * step, step):
        root = child_id(root, packed[start : start + step])
        ids.append(root)
    return tuple(ids)
