"""Parking and restoring: what comes back from disk and RAM against what disk and memory can do, and what parking costs.

Payloads have the sizes of a real model but random bytes, so nothing here needs a model: the numbers are the store's own. With
`--model` the same is done on a live context, and re-reading is timed too (bench/restore_model.py).
"""

import mmap
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from bench.errors import BadOption
from bench.models import MODELS, sizes
from bench.report import Bars, Column, Report, Row, number, publish
from engine.probe import prepare_environment
from kvcache.chain import chain_ids, root_id
from kvcache.config import GIB, CacheConfig
from kvcache.entry import Block, Checkpoint
from kvcache.store import Store

GRID = 64
SETTLE_SECONDS = 0.3
"""Before each cold read: disks of virtual machines allow bursts, and each reading shall start with the same allowance."""
ROOT = root_id(b"bench")
FINGERPRINT = bytes(16)
COLUMNS = (
    Column("what", "what"),
    Column("value", "measured"),
    Column("against", "against"),
    Column("ratio", "ratio", number(2)),
    Column("must", "must be"),
    Column("verdict", ""),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one model's entries, in bytes, and the length of the prompt to restore, in tokens."""

    block: int
    checkpoint: int
    tokens: int

    @property
    def blocks(self) -> int:
        return self.tokens // GRID

    @property
    def state(self) -> int:
        return self.blocks * self.block + self.checkpoint


def command(
    like: Annotated[str, typer.Option("--as", help=f"Sizes of the state: {', '.join(sorted(MODELS))}.")] = "qwen3.5-0.8b",
    tokens: Annotated[int, typer.Option(help="Tokens of the prompt that is restored.", min=GRID)] = 8192,
    rounds: Annotated[int, typer.Option(help="Rounds; what is compared alternates within each.", min=1)] = 15,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="A folder on the disk to measure. None given: the working one.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Also on this model's live context, as synthetic:0.8b; minutes.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small and coarse, in seconds.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
    plot_path: Annotated[Path | None, typer.Option("--plot", help="Draw them here.")] = None,
) -> None:
    """Restore from disk and RAM against disk and memory speed; bytes on disk, bytes written, lookup time."""
    place = folder or Path()
    if not place.is_dir():
        raise BadOption("--dir", f"{place} is no folder")
    if quick:
        tokens, rounds = min(tokens, 2048), min(rounds, 3)
    measured = sizes(like)
    shape = Shape(measured.token * GRID, measured.checkpoint, tokens // GRID * GRID)
    with tempfile.TemporaryDirectory(dir=place, prefix="kvalet-bench-") as name:
        rows = [*_disk_rows(Path(name), shape, rounds), *_ram_rows(shape, rounds), *_growth_rows(Path(name), shape)]
        rows += _lookup_rows(10_000 if quick else 100_000)
        if model is not None:
            prepare_environment()
            from bench.restore_model import model_rows, ttft_rows  # loads llama.cpp, which reads the environment then

            rows += model_rows(model, Path(name), shape.tokens, rounds)
            rows += ttft_rows(model, Path(name), 4 if quick else rounds)
    notes = (f"entries as {like}: blocks of {shape.block:,} B, checkpoints of {shape.checkpoint:,} B; {shape.tokens:,} tokens",)
    bars = Bars("what", (("ratio", "measured over what it is held against"),), "ratio")
    publish(Report("Parking and restoring", COLUMNS, rows, notes, bars), json_path=json_path, plot_path=plot_path)


def row(
    what: str, value: str, against: str = "", ratio: float | None = None, most: float | None = None, least: float | None = None
) -> Row:
    """One line of the table; `ratio` is judged against the bound that is given."""
    good = (most is None or (ratio or 0) <= most) and (least is None or (ratio or 0) >= least)
    must = f"at most {most:g}" if most is not None else f"at least {least:g}" if least is not None else None
    return {
        "what": what,
        "value": value,
        "against": against,
        "ratio": ratio,
        "must": must,
        "verdict": None if must is None else "ok" if good else "MISSED",
    }


def make_store(folder: Path | None, ram: int, disk: int = 64 * GIB) -> Store:
    config = CacheConfig(ram_bytes=ram, disk_bytes=disk if folder else 0, dir=folder, grid=GRID, park_min_tokens=0, codec="raw")
    store = Store(config, ROOT, needs_checkpoint=True)
    if folder is not None and not store.identify(FINGERPRINT, "bench"):
        raise BadOption("--dir", f"{folder} cannot be used as a cache folder")
    return store


def make_prompt(tokens: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(150_000), k=tokens))


def entries(prompt: Sequence[int], shape: Shape) -> Iterator[Block]:
    """Blocks of random bytes, each different, made one at a time."""
    ids = (ROOT, *chain_ids(ROOT, prompt, GRID))
    noise = os.urandom(shape.block)
    for index in range(len(ids) - 1):
        start = index * GRID
        payload = ids[index + 1] + noise[16:]
        yield Block(ids[index + 1], ids[index], start, tuple(prompt[start : start + GRID]), payload, True)


def checkpoint(prompt: Sequence[int], position: int, shape: Shape) -> Checkpoint:
    return Checkpoint(chain_ids(ROOT, prompt[:position], GRID)[-1], position, os.urandom(shape.checkpoint), True)


def park_prompt(store: Store, prompt: Sequence[int], shape: Shape) -> float:
    """Parks a prompt's blocks and its last checkpoint; the seconds its caller's thread spent in the store."""
    spent = 0.0
    last = checkpoint(prompt, len(prompt), shape)
    for block in entries(prompt, shape):
        started = time.perf_counter()
        store.park_block(Block(block.id, block.parent, block.start, block.tokens, memoryview(block.payload), True))
        spent += time.perf_counter() - started
    started = time.perf_counter()
    store.park_checkpoint(Checkpoint(last.id, last.position, memoryview(last.payload), True))
    return spent + time.perf_counter() - started


def restore(store: Store, prompt: Sequence[int], into: Callable[[bytes | memoryview], None]) -> int:
    """Hands all blocks and the last checkpoint to `into`; returns their bytes."""
    match = store.match(prompt)
    done = 0
    for block in store.restore(match, match.stored):
        into(block.payload)
        done += block.nbytes
    last = store.load_checkpoint(match.checkpoints[-1])
    into(last.payload)
    return done + last.nbytes


def paired(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median over rounds of ours / theirs: what else the machine does hits both of a round alike."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


@contextmanager
def timed(into: list[float]) -> Iterator[None]:
    started = time.perf_counter()
    yield
    into.append(time.perf_counter() - started)


def drop_page_cache(paths: Sequence[Path]) -> None:
    """Forgets these files' pages, after they were written out; needs no rights."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def read_in_sequence(path: Path, buffer: memoryview, *, direct: bool) -> None:
    """Reads a file from its beginning to its end in pieces of the buffer's size."""
    fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    try:
        at = 0
        while n := os.preadv(fd, [buffer], at):
            at += n
    finally:
        os.close(fd)


class Sink:
    """Where payloads go: a warm buffer, as a context's memory would be."""

    def __init__(self, nbytes: int) -> None:
        self._view = memoryview(bytearray(nbytes))
        self._view[:] = bytes(nbytes)

    def __call__(self, payload: bytes | memoryview) -> None:
        self._view[: len(payload)] = payload


def _disk_rows(folder: Path, shape: Shape, rounds: int) -> list[Row]:
    prompt, big, sink = make_prompt(shape.tokens), folder / "big", Sink(max(shape.block, shape.checkpoint))
    store = make_store(folder / "cache", ram=0)
    written: list[float] = []
    with timed(written):
        park_prompt(store, prompt, shape)
        store.flush()
    with big.open("wb") as file:
        for path in (folder / "cache" / FINGERPRINT.hex()).iterdir():
            file.write(path.read_bytes())
    times: dict[str, list[float]] = {name: [] for name in ("restore", "buffered", "direct", "cached")}
    files = [*(folder / "cache" / FINGERPRINT.hex()).iterdir(), big]
    piece = memoryview(mmap.mmap(-1, 8 << 20))
    for _ in range(rounds):
        for name, work in (
            ("restore", lambda: restore(store, prompt, sink)),
            ("buffered", lambda: read_in_sequence(big, piece[: 1 << 20], direct=False)),
            ("direct", lambda: read_in_sequence(big, piece, direct=True)),
        ):
            drop_page_cache(files)
            time.sleep(SETTLE_SECONDS)
            with timed(times[name]):
                work()
        for path in files[:-1]:
            path.read_bytes()
        with timed(times["cached"]):
            restore(store, prompt, sink)
    store.close()
    big.unlink()
    speed = {name: shape.state / statistics.median(found) for name, found in times.items()}
    best = max(("buffered", "direct"), key=lambda name: speed[name])
    return [
        row(
            f"restore {shape.tokens:,} tokens, cold page cache",
            gbs(speed["restore"]),
            f"one file in sequence, {gbs(speed[best])}",
            paired(times[best], times["restore"]),
            least=0.8,
        ),
        row("  the time of that", ms(statistics.median(times["restore"]))),
        row("  the same from the page cache", gbs(speed["cached"])),
        row("park to disk, flushed", gbs(shape.state / written[0])),
    ]


def _ram_rows(shape: Shape, rounds: int) -> list[Row]:
    prompt, sink = make_prompt(shape.tokens), Sink(max(shape.block, shape.checkpoint))
    store = make_store(None, ram=4 * shape.state)
    cold = park_prompt(store, prompt, shape)
    plain = [bytes(os.urandom(shape.block)) for _ in range(shape.blocks)] + [os.urandom(shape.checkpoint)]
    times: dict[str, list[float]] = {"restore": [], "memcpy": []}
    for _ in range(max(rounds, 9)):
        with timed(times["restore"]):
            restore(store, prompt, sink)
        with timed(times["memcpy"]):
            for payload in plain:
                sink(payload)
    store.close()
    speed = {name: shape.state / statistics.median(found) for name, found in times.items()}
    return [
        row(
            f"restore {shape.tokens:,} tokens from RAM",
            gbs(speed["restore"]),
            f"memcpy, {gbs(speed['memcpy'])}",
            paired(times["memcpy"], times["restore"]),
            least=0.6,
        ),
        row("park to RAM, the engine thread's part", f"{1e3 * cold / shape.blocks:.2f} ms a block"),
    ]


def _growth_rows(folder: Path, shape: Shape) -> list[Row]:
    """A conversation of 13 turns that grows to 5,000 tokens, parked after each turn as a server would."""
    where, prompt = folder / "growing", make_prompt(5000)
    store = make_store(where, ram=16 * GIB)
    before, state = _written(), 0
    blocks = list(entries(prompt, shape))
    for turn in range(1, 14):
        end = 5000 * turn // 13 // GRID * GRID
        for block in blocks[: end // GRID]:
            if not store.has_block(block.id):
                state += block.nbytes
                store.park_block(block)
        store.park_checkpoint(checkpoint(prompt, end, shape), kind="turn_end")
        state += shape.checkpoint
        store.flush()
    store.close()
    written = _written() - before
    on_disk = sum(path.stat().st_blocks * 512 for path in where.rglob("*") if path.is_file())
    shutil.rmtree(where)
    return [
        row(
            "disk bytes of a 13-turn conversation of 5,000 tokens",
            mib(on_disk),
            f"its unique state, {mib(state)}",
            on_disk / state,
            most=1.1,
        ),
        row("bytes written for it (/proc/self/io)", mib(written), f"its unique state, {mib(state)}", written / state, most=1.2),
    ]


def _lookup_rows(blocks: int) -> list[Row]:
    """Lookups among many stored blocks, with small payloads: the index does not know the difference."""
    shape, length = Shape(16, 16, 0), 8192
    store = make_store(None, ram=4 * GIB)
    prompts = [make_prompt(length, seed) for seed in range(blocks // (length // GRID) + 1)]
    for prompt in prompts:
        for block in entries(prompt, shape):
            store.park_block(block)
        store.park_checkpoint(checkpoint(prompt, length, shape))
    times: list[float] = []
    for prompt in prompts[:200]:
        with timed(times):
            store.match(prompt)
    held = store.stats().ram.blocks
    store.close()
    found = statistics.median(times)
    return [row(f"look up {length:,} tokens among {held:,} blocks", ms(found), "1 ms", found / 1e-3, most=1.0)]


def _written() -> int:
    """Bytes this process sent to the disk so far (Linux)."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def gbs(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f} GB/s"


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def mib(nbytes: float) -> str:
    return f"{nbytes / (1 << 20):,.1f} MiB"
