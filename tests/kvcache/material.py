"""Small prompts, blocks and checkpoints whose bytes depend on all tokens before them, and stores to put them in."""

import random
from contextlib import suppress
from hashlib import shake_128
from pathlib import Path

from kvcache.chain import chain_ids, pack_tokens, root_id
from kvcache.config import CacheConfig
from kvcache.entry import Block, Checkpoint
from kvcache.store import Store

GRID = 4
ROOT = root_id(b"test")
FINGERPRINT = bytes(range(16))
MIB = 1 << 20


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


def park(store: Store, prompt: tuple[int, ...], *positions: int, size: int = 100, canonical: bool = True) -> None:
    """Parks all blocks of a prompt and checkpoints at `positions`, and waits until they are where they belong."""
    for block in blocks_of(prompt, size, canonical):
        assert store.park_block(block)
    for position in positions:
        assert store.park_checkpoint(checkpoint_at(prompt, position, size, canonical))
    store.flush()


def disk_store(
    folder: Path, *, ram: int = 0, disk: int = 64 * MIB, fingerprint: bytes = FINGERPRINT, **settings: object
) -> Store:
    """A store whose disk tier is open; everything is long enough to be parked unless `park_min_tokens` says else."""
    fields = {"grid": GRID, "park_min_tokens": 0, **settings}
    store = Store(CacheConfig(ram_bytes=ram, disk_bytes=disk, dir=folder, **fields), ROOT, needs_checkpoint=True)  # type: ignore[arg-type]
    assert store.identify(fingerprint, "test model", "{}"), store.stats()
    return store


def entry_files(folder: Path) -> list[Path]:
    """The published entry files of the test model, by name."""
    return sorted(path for path in (folder / FINGERPRINT.hex()).glob("*") if not path.name.startswith("."))


def disk_use(folder: Path) -> int:
    """Bytes that a folder's files occupy; files may vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512 if path.is_file() else 0
    return total


def _bytes(seed: bytes, size: int, canonical: bool) -> bytes:
    return shake_128(seed + bytes([canonical])).digest(size)
