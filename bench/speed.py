"""Prefill and decode speed against stock llama-server, what checkpoints cost, and what Python costs a token.

Both servers get the same GGUF, threads and batch, stand side by side, and are asked in turn, so that what else the machine does
hits both alike; ratios are medians over rounds. Prompts are random tokens, new in every round, so nothing can be cached.
"""

import json
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.environments import PeerMissing
from bench.overhead import Overhead, measure_overhead
from bench.servers import Running, Setup, kvalet, stock
from engine import catalog

TIMEOUT = 1200.0
FIRST_WORD, WORDS = 320, 1000  # random prompts use these token ids: plain words in every model of ours


@dataclass(frozen=True, slots=True)
class Load:
    """One thing to measure: `requests` at once, each with a prompt of `prompt` tokens and `answer` tokens to generate."""

    name: str
    requests: int
    prompt: int
    answer: int

    @property
    def prefill(self) -> bool:
        return self.answer == 1


# Decodes start from a prompt of 8 tokens, so that reading the prompts of the others is no part of a request's generation time.
LOADS = (
    Load("prefill, 1 request", 1, 1024, 1),
    Load("decode, 1 request", 1, 8, 48),
    Load("prefill, 4 requests", 4, 512, 1),
    Load("decode, 4 requests", 4, 8, 48),
)
QUICK = (Load("prefill, 1 request", 1, 256, 1), Load("decode, 4 requests", 4, 8, 16))


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens a second of kvalet and of stock, a figure for each round."""

    load: str
    kvalet: tuple[float, ...]
    stock: tuple[float, ...]

    @property
    def ratio(self) -> float | None:
        """Median over rounds of kvalet / stock."""
        return statistics.median(a / b for a, b in zip(self.kvalet, self.stock, strict=True)) if self.stock else None


def ask(server: Running, prompt: Sequence[int], answer: int) -> dict[str, float]:
    """One completion over HTTP; the server's own timings."""
    body = {"prompt": list(prompt), "max_tokens": answer, "n_predict": answer, "temperature": 0, "ignore_eos": True}
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=TIMEOUT)
    reply.raise_for_status()
    timings: dict[str, float] = reply.json()["timings"]
    return timings


def tokens_per_second(server: Running, load: Load, rng: random.Random) -> float:
    """Prefill: prompt tokens over the wall time of all requests. Decode: generated tokens over the longest generation."""
    prompts = [[rng.randrange(FIRST_WORD, FIRST_WORD + WORDS) for _ in range(load.prompt)] for _ in range(load.requests)]
    start = time.perf_counter()
    with ThreadPoolExecutor(load.requests) as pool:
        timings = list(pool.map(lambda prompt: ask(server, prompt, load.answer), prompts))
    wall = time.perf_counter() - start
    if load.prefill:
        return load.requests * load.prompt / wall
    return sum(t["predicted_n"] - 1 for t in timings) / max(t["predicted_ms"] for t in timings) * 1000


def compare(setup: Setup, loads: Sequence[Load], rounds: int, console: Console) -> list[Row]:
    """Every load on both servers in turn, `rounds` times; the first to be asked changes with the round. Stock is left out
    (with its reason printed by the caller) where it is not to be had: PeerMissing."""
    found: dict[str, dict[str, list[float]]] = {load.name: {"kvalet": [], "llama-server": []} for load in loads}
    with ExitStack() as stack:
        servers = [stack.enter_context(kvalet(setup)), stack.enter_context(stock(setup))]
        for server in servers:
            tokens_per_second(server, loads[0], random.Random("warm-up"))
        for number in track(range(rounds), "alternating rounds", console=console):
            for load in loads:
                for server in servers if number % 2 == 0 else servers[::-1]:
                    found[load.name][server.name].append(tokens_per_second(server, load, random.Random(f"{number} {load.name}")))
    return [Row(name, tuple(by["kvalet"]), tuple(by["llama-server"])) for name, by in found.items()]


def show(console: Console, rows: Sequence[Row], overhead: Overhead) -> None:
    table = Table("load", "kvalet tok/s", "llama-server tok/s", "ratio", title="same GGUF, threads and batch; medians")
    for row in rows:
        ratio = f"{row.ratio:.3f}" if row.ratio is not None else "not measured"
        table.add_row(row.load, f"{statistics.median(row.kvalet):.1f}", f"{statistics.median(row.stock):.1f}", ratio)
    console.print(table)
    share = f"{overhead.checkpoint_share:.2%} of prefill time ({overhead.checkpoints} over {overhead.prompt_tokens} tokens)"
    console.print(f"checkpoints: {share}; Python: {overhead.python_ms:.3f} ms of CPU a generated token")


def command(
    model: Annotated[
        str, typer.Option(help="A GGUF or a name; the geometry decides the speed, not the words.")
    ] = "synthetic:0.8b",
    rounds: Annotated[int, typer.Option(min=1, help="Alternating rounds; ratios are medians over them.")] = 2,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each server.")] = 2,
    batch: Annotated[int, typer.Option(min=64, help="Batch of each server, a multiple of 64.")] = 512,
    quick: Annotated[bool, typer.Option(help="Seconds instead of minutes: the tiny model, short loads, one round.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every figure to this file.")] = None,
) -> None:
    """Prefill and decode speed against stock llama-server, the cost of checkpoints, the cost of Python a token."""
    console = Console()
    found = catalog.resolve("synthetic:tiny" if quick else model)
    loads, rounds = (QUICK, 1) if quick else (LOADS, rounds)
    setup = Setup(found.path, parallel=4, threads=threads, batch=batch)
    try:
        rows = compare(setup, loads, rounds, console)
    except PeerMissing as missing:
        console.print(str(missing))
        rows = []
    overhead = measure_overhead(found.path, threads, prompt=512 if quick else 2048, answer=64 if quick else 128)
    show(console, rows, overhead)
    if json_file:
        figures = {"rows": [{**asdict(row), "ratio": row.ratio} for row in rows], "overhead": asdict(overhead)}
        json_file.write_text(json.dumps(figures, indent=1), "utf-8")
