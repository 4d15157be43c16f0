"""`kvalet-bench rollback`: an edit at many distances from the end, on a live engine: tokens read again and ms, way by way."""

import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench.errors import BadOption
from bench.live import answering, loaded
from bench.report import Column, Plot, Report, number, publish
from engine import catalog
from engine.config import ContextConfig, EngineConfig
from engine.context import StateKind
from engine.llama import LlamaContext
from engine.llama_model import Model
from kvcache import placement
from kvcache.config import GIB, CacheConfig
from kvcache.placement import POLICIES

DISTANCES = (1, 64, 192, 512, 1024, 2048, 3200)
DEFAULT_STRATEGIES = ("anchors", "geometric", "end-512", "newest", "none")
FIRST_WORD, WORDS = 320, 1000
RAM = CacheConfig(ram_bytes=2 * GIB)


def command(
    model: Annotated[str, typer.Option(help="A GGUF or a name.")] = "synthetic:tiny",
    strategy: Annotated[list[str] | None, typer.Option(help="A placement to try; may be repeated.")] = None,
    tokens: Annotated[int, typer.Option(min=512, help="Length of the prompt that is edited.")] = 4096,
    distance: Annotated[
        list[int] | None, typer.Option(min=1, help="Tokens between the edit and the end; may be repeated.")
    ] = None,
    interval: Annotated[int, typer.Option(min=0, help="Tokens between regular checkpoints; 0: as the server derives it.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Medians over so many.")] = 2,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Of the random prompts.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="One short prompt, one round: seconds.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all numbers as JSON here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG here.")] = None,
) -> None:
    """Edit a prompt at several distances from its end and read it again: cold, by appending, from RAM, and from disk.

    Cold reads everything; append adds one token to what is live; RAM rolls the live slot back; disk starts a new engine over the
    parked files first. Prompts are random tokens without anchors, so placement alone decides.
    """
    if unknown := set(strategy or ()) - set(POLICIES):
        raise BadOption("--strategy", f"{', '.join(sorted(unknown))}: must be one of {', '.join(sorted(POLICIES))}")
    if quick:
        tokens, rounds, distance, strategy = 768, 1, distance or [64, 400], strategy or ["anchors"]
    wanted = [at for at in distance or DISTANCES if at < tokens]
    found = catalog.resolve(model)
    rows: list[dict[str, Any]] = []
    with loaded(found.path, ContextConfig(ctx=tokens + 512, threads=threads)) as (weights, context):
        if context.kind is StateKind.ATTENTION:
            raise BadOption("--model", f"{found.name} keeps attention state alone: every cut is exact and nothing is read again")
        trial = Trial(weights, context, tokens, interval, rounds, seed)
        console = Console(stderr=True)
        rows += trial.baselines()
        for name in strategy or DEFAULT_STRATEGIES:
            console.print(f"{name}: RAM, then disk")
            rows += trial.strategy(name, wanted)
    notes = (
        f"{found.name}, prompts of {tokens} tokens, {threads} threads, medians of {rounds}",
        "re-read includes the edited tail",
    )
    columns = (
        Column("way", "way"),
        Column("placement", "placement"),
        Column("distance", "distance", number()),
        Column("resumed", "resumed at", number()),
        Column("read", "read", number()),
        Column("extra", "beyond the tail", number()),
        Column("ms", "ms", number(1)),
        Column("kept", "checkpoints", number()),
    )
    publish(
        Report("rollback", columns, rows, notes, Plot("distance", "read", "name", log_x=True)), json_path=json, plot_path=plot
    )


class Trial:
    """One model and one length of prompt; every prompt is new, so that nothing else can be found of it."""

    def __init__(self, model: Model, context: LlamaContext, tokens: int, interval: int, rounds: int, seed: int) -> None:
        self._model, self._context, self._tokens, self._interval = model, context, tokens, interval
        self._rounds, self._rng = rounds, random.Random(seed)

    def baselines(self) -> Iterator[dict[str, Any]]:
        """Read from nothing, and continued by one token."""
        with answering(self._model, self._context, CacheConfig(ram_bytes=0), EngineConfig(reuse=False)) as ask:
            self._read(ask, self._prompt())  # first touch of memory
            cold = [self._read(ask, self._prompt()) for _ in range(self._rounds)]
        with answering(self._model, self._context, RAM, EngineConfig()) as ask:
            appended = []
            for _ in range(self._rounds):
                done = ask(prompt := self._prompt())
                appended.append(self._read(ask, [*prompt, *done.generated, FIRST_WORD]))
        yield self._row("cold", "", self._tokens, cold, 0)
        yield self._row("append", "", None, appended, 0)

    def strategy(self, name: str, distances: Sequence[int]) -> Iterator[dict[str, Any]]:
        config = EngineConfig(placement=name, checkpoint_interval=self._interval)
        kept = self._kept(name)
        with answering(self._model, self._context, RAM, config) as ask:
            for distance in distances:
                yield self._row("RAM", name, distance, [self._edit(ask, distance) for _ in range(self._rounds)], kept)
        for distance in distances:
            yield self._row("disk", name, distance, [self._restart(config, distance) for _ in range(self._rounds)], kept)

    def _edit(self, ask: Any, distance: int) -> dict[str, float]:
        ask(prompt := self._prompt())
        return self._read(ask, self._edited(prompt, distance))

    def _restart(self, config: EngineConfig, distance: int) -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="kvalet-rollback-") as folder:
            cache = CacheConfig(ram_bytes=2 * GIB, disk_bytes=8 * GIB, dir=Path(folder), park_min_tokens=0)
            with answering(self._model, self._context, cache, config) as ask:
                ask(prompt := self._prompt())
            with answering(self._model, self._context, cache, config) as ask:
                return self._read(ask, self._edited(prompt, distance))

    def _read(self, ask: Any, prompt: Sequence[int]) -> dict[str, float]:
        done = ask(prompt)
        ms = done.timings.prompt_ms + done.timings.restore_ms
        return {"resumed": done.resume.position, "read": done.timings.prompt_n, "ms": ms}

    def _prompt(self) -> list[int]:
        return [self._rng.randrange(FIRST_WORD, FIRST_WORD + WORDS) for _ in range(self._tokens)]

    def _edited(self, prompt: Sequence[int], distance: int) -> list[int]:
        at = len(prompt) - distance
        return [*prompt[:at], (prompt[at] - FIRST_WORD + 1) % WORDS + FIRST_WORD, *prompt[at + 1 :]]

    def _kept(self, name: str) -> int:
        interval = self._interval or placement.derive_interval(
            RAM.ram_bytes, self._context.checkpoint_bytes, self._context.n_ctx, RAM.grid
        )
        return len(placement.positions(name, placement.PlacementFacts(self._tokens, 0, RAM.grid, interval)))

    @staticmethod
    def _row(way: str, name: str, distance: int | None, runs: Sequence[dict[str, float]], kept: int) -> dict[str, Any]:
        medians = {key: statistics.median(run[key] for run in runs) for key in ("resumed", "read", "ms")}
        extra = None if distance is None else max(0, medians["read"] - distance)
        return {
            "way": way,
            "placement": name or None,
            "name": f"{way} {name}".strip(),
            "distance": distance,
            "extra": extra,
            "kept": kept,
            **medians,
        }
