"""Restoring a live llama.cpp context from disk and from RAM, against reading the same prompt again."""

import random
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import restore
from bench.report import Row
from bench.servers import Setup, kvalet
from bench.speed import FIRST_WORD, WORDS, ask
from engine import catalog
from engine.config import ContextConfig, ModelConfig
from engine.context import Run
from engine.llama import LlamaContext
from engine.llama_backend import Backend
from engine.llama_model import Model
from engine.probe import may_repack
from kvcache.chain import chain_ids
from kvcache.entry import Block, Checkpoint
from kvcache.store import Store

BATCH = 512


def model_rows(name: str, folder: Path, tokens: int, rounds: int, threads: int = 2) -> list[Row]:
    """Reads a prompt of `tokens` once, parks it, and restores it `rounds` times from a cold disk and from RAM."""
    with ExitStack() as stack:
        context = _open(name, tokens, threads, stack)
        prompt = tuple(token % 1000 + 5 for token in restore.make_prompt(tokens))
        reread = _timed(lambda: _read(context, prompt))
        on_disk, in_ram = restore.make_store(folder / "model", ram=0), restore.make_store(None, ram=64 << 30)
        for store in (on_disk, in_ram):
            stack.callback(store.close)
            _park(context, store, prompt)
        files = list((folder / "model" / restore.FINGERPRINT.hex()).iterdir())
        times: dict[str, list[float]] = {"disk": [], "ram": []}
        for _ in range(rounds):
            restore.drop_page_cache(files)
            time.sleep(restore.SETTLE_SECONDS)
            times["disk"].append(_timed(lambda: _restore(context, on_disk, prompt)))
            times["ram"].append(_timed(lambda: _restore(context, in_ram, prompt)))
        state = sum(path.stat().st_size for path in files)
    return [_row(name, tokens, where, statistics.median(found), reread, state) for where, found in times.items()]


def ttft_rows(name: str, folder: Path, rounds: int, prompt: int = 1024, threads: int = 2) -> list[Row]:
    """Time to first token of new prompts with parking to disk on and off: two servers, asked in turn."""
    setup = Setup(catalog.resolve(name).path, ctx=2 * prompt, threads=threads)
    rng = random.Random(1)
    times: dict[str, list[float]] = {"parking": [], "plain": []}
    with kvalet(setup, cache_dir=folder / "on") as parking, kvalet(setup) as plain:
        servers = {"parking": parking, "plain": plain}
        for number in range(rounds + 1):
            for which in sorted(servers, reverse=bool(number % 2)):
                words = rng.choices(range(FIRST_WORD, FIRST_WORD + WORDS), k=prompt)
                seconds = _timed(partial(ask, servers[which], words, 1))
                times[which] += [seconds] if number else []  # the first round warms both up
                time.sleep(restore.SETTLE_SECONDS)
    value, against = (restore.ms(statistics.median(found)) for found in times.values())
    ratio = restore.paired(times["parking"], times["plain"])
    return [
        restore.row(f"{name}: first token of {prompt:,} new ones, parking", value, f"not parking, {against}", ratio, most=1.01)
    ]


def _row(name: str, tokens: int, where: str, seconds: float, reread: float, state: int) -> Row:
    what = {"disk": "a cold disk", "ram": "RAM"}[where]
    value = f"{restore.ms(seconds)}, {restore.gbs(state / seconds)}"
    against = f"reading again, {reread:.1f} s"
    return restore.row(f"{name}: {tokens:,} tokens into a context from {what}", value, against, reread / seconds, least=300)


def _open(name: str, tokens: int, threads: int, stack: ExitStack) -> LlamaContext:
    found = catalog.resolve(name)
    backend = Backend()
    stack.callback(backend.close)
    model = Model(ModelConfig(found.path, extra_buffers=may_repack().safe), backend)
    stack.callback(model.close)
    context = LlamaContext(model, ContextConfig(ctx=tokens + restore.GRID, batch=BATCH, threads=threads, grid=restore.GRID))
    stack.callback(context.close)
    return context


def _read(context: LlamaContext, prompt: tuple[int, ...]) -> None:
    for start in range(0, len(prompt), BATCH):
        context.decode([Run(0, start, prompt[start : start + BATCH], start + BATCH >= len(prompt))])


def _park(context: LlamaContext, store: Store, prompt: tuple[int, ...]) -> None:
    grid = restore.GRID
    ids = (restore.ROOT, *chain_ids(restore.ROOT, prompt, grid))
    for index in range(len(ids) - 1):
        start, end = index * grid, (index + 1) * grid
        payload = context.save_block(0, start, end)
        store.park_block(Block(ids[index + 1], ids[index], start, prompt[start:end], payload, True))
    store.park_checkpoint(Checkpoint(ids[-1], len(prompt), context.save_checkpoint(0), True))
    store.flush()


def _restore(context: LlamaContext, store: Store, prompt: tuple[int, ...]) -> None:
    context.clear(0)
    match = store.match(prompt)
    for block in store.restore(match, match.stored):
        context.load_block(0, block.start, block.end, block.payload)
    context.load_checkpoint(0, match.stored, store.load_checkpoint(match.checkpoints[-1]).payload)


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
