"""`kvalet-bench exact`: the audit of `kvalet verify` as one table over models, K/V types, grids and slots."""

from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench.live import loaded
from bench.report import Column, Plot, Report, number, publish, size
from engine import catalog
from engine.config import ContextConfig
from engine.errors import ModelError
from engine.selfcheck import GRIDS, GridReport, Promise, verify

DEFAULT_MODELS = ("synthetic:tiny", "synthetic:tiny-q8", "smollm2", "gemma3-270m")
PROMISES = {Promise.BITS: "equal bits", Promise.TOKENS: "equal greedy tokens", Promise.NONE: "NOTHING"}


def command(
    model: Annotated[list[str] | None, typer.Option(help="A GGUF or a name; may be repeated.")] = None,
    kv: Annotated[list[str] | None, typer.Option(help="Number type of K and V: f16, f32, bf16, q8_0; may be repeated.")] = None,
    grid: Annotated[list[int] | None, typer.Option(min=1, help="A grid in tokens; may be repeated.")] = None,
    slots: Annotated[list[int] | None, typer.Option(min=1, help="Slots of the context; may be repeated.")] = None,
    tokens: Annotated[int, typer.Option(min=128, help="Length of the prompt.")] = 320,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="The embedded model, one grid, a short prompt: seconds.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all numbers as JSON here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG here.")] = None,
) -> None:
    """Park, restore and roll back on this machine, and compare the last logits with a cold read's.

    Each line is the worst of all ways back at that grid. A model that is not to be had is skipped and said so.
    """
    console, rows, notes = Console(stderr=True), [], []
    if quick:
        model, grid, tokens = model or ["synthetic:tiny"], grid or [64], min(tokens, 256)
    for name, type_, count in product(model or DEFAULT_MODELS, kv or ("f16", "q8_0"), slots or (1, 4)):
        if quick and (type_, count) != ((kv or ["f16"])[0], (slots or [1])[0]):
            continue
        console.print(f"{name}, K/V {type_}, {count} slots")
        try:
            rows += audit(name, type_, count, sorted(grid or GRIDS), tokens, threads)
        except ModelError as error:
            notes.append(f"{name} with K/V {type_} is skipped: {error}")
    columns = (
        Column("model", "model"),
        Column("kind", "kind"),
        Column("kv", "K/V"),
        Column("slots", "slots", number()),
        Column("grid", "grid", number()),
        Column("promise", "promise"),
        Column("difference", "largest difference", lambda value: f"{value:.3g}"),
        Column("state_bytes", "state", size),
        Column("cold_ms", "cold ms", number(1)),
        Column("park_ms", "park ms", number(1)),
        Column("restore_ms", "restore ms", number(1)),
    )
    for row in rows:
        row["name"] = f"{row['model']}, {row['kv']}, {row['slots']} slots"
    lines = Plot("grid", "restore_ms", "name", log_x=True, log_y=True)
    publish(Report("exactness", columns, rows, tuple(dict.fromkeys(notes)), lines), json_path=json, plot_path=plot)


def audit(name: str, type_: str, slots: int, grids: list[int], tokens: int, threads: int) -> list[dict[str, Any]]:
    """A row for each grid. Raises ModelError."""
    found = catalog.resolve(name)
    batch = -(-512 // grids[-1]) * grids[-1]
    config = ContextConfig(tokens + 64, slots, batch, threads, grids[0], type_k=type_, type_v=type_)
    with loaded(found.path, config) as (_, context):
        verified = verify(context, grids, tokens)
    about = {"model": found.name, "kind": verified.kind.value, "kv": type_, "slots": slots}
    return [{**about, **_row(report)} for report in verified.reports]


def _row(report: GridReport) -> dict[str, Any]:
    restores = [trial.ms for trial in report.trials if trial.way == "restore"]
    return {
        "grid": report.grid,
        "promise": PROMISES[report.promise],
        "difference": max(trial.difference for trial in report.trials),
        "state_bytes": report.state_bytes,
        "cold_ms": report.cold_ms,
        "park_ms": report.park_ms,
        "restore_ms": restores[0] if restores else None,
        "trials": [asdict(trial) for trial in report.trials],
    }
