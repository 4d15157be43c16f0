"""Small prompts, blocks and checkpoints whose bytes depend on all tokens before them."""

import random
from hashlib import shake_128

from kvcache.chain import chain_ids, pack_tokens, root_id
from kvcache.entry import Block, Checkpoint

GRID = 4
ROOT = root_id(b"test")


def tokens(n: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(250_000), k=n))


def blocks_of(prompt: tuple[int, ...], size: int = 100, canonical: bool = True, grid: int = GRID) -> list[Block]:
    """All whole blocks of a prompt; each payload is a function of the whole prefix, `size` and `canonical`."""
    ids = (ROOT, *chain_ids(ROOT, prompt, grid))
    return [
        Block(ids[i + 1], ids[i], i * grid, prompt[i * grid : (i + 1) * grid], _bytes(ids[i + 1], size, canonical), canonical)
        for i in range(len(ids) - 1)
    ]


def checkpoint_at(
    prompt: tuple[int, ...], position: int, size: int = 100, canonical: bool = True, grid: int = GRID
) -> Checkpoint:
    id = chain_ids(ROOT, prompt[:position], grid)[-1]
    return Checkpoint(id, position, _bytes(id + pack_tokens([position]), size, canonical), canonical)


def _bytes(seed: bytes, size: int, canonical: bool) -> bytes:
    return shake_128(seed + bytes([canonical])).digest(size)
