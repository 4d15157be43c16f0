"""`kvalet verify MODEL`: measures on this machine which promise parked state keeps, at which grid, and how fast it comes back."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from engine.selfcheck import GRIDS, GridReport, Promise, Verification, verify
from server.config import ConfigError, load
from server.loading import load_model
from server.sizes import show_size

WORDS = {Promise.BITS: "equal bits", Promise.TOKENS: "equal greedy tokens", Promise.NONE: "NOTHING: answers change"}
MARGIN = 64  # tokens of context beside the prompt that is tried


def command(
    model: Annotated[str | None, typer.Argument(help="As for `kvalet serve`. None given: the embedded model.")] = None,
    tokens: Annotated[int, typer.Option(help="Length of the prompt that is read, parked and restored.", min=64)] = 1000,
    grid: Annotated[list[int] | None, typer.Option(help="A grid to try; may be repeated. None given: 16 to 256.", min=1)] = None,
    gpu_layers: Annotated[int, typer.Option(help="As for `kvalet serve`.")] = 0,
    threads: Annotated[int, typer.Option(help="As for `kvalet serve`.")] = 0,
    cache_type_k: Annotated[str, typer.Option(help="As for `kvalet serve`.")] = "f16",
    cache_type_v: Annotated[str, typer.Option(help="As for `kvalet serve`.")] = "f16",
    flash_attn: Annotated[bool, typer.Option(help="As for `kvalet serve`.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout, for scripts.")] = False,
) -> None:
    """Measure which promise holds on this machine for MODEL.

    A prompt is read cold; then its state is parked, restored, and rolled back at several grids, the rest is read again, and the
    last logits are compared with the cold read's: equal bits, equal greedy tokens, or neither. Nothing is claimed that was not
    measured. Exit code 1 when some way back changes the answer at the default grid of 64 or above.
    """
    grids = sorted(set(grid or GRIDS))
    if grid and grids[-1] > tokens:
        raise ConfigError(f"--grid {grids[-1]} is longer than the prompt; --tokens must be larger too")
    settings = load(
        {
            "model": model,
            "ctx": tokens + MARGIN,
            "gpu_layers": gpu_layers,
            "threads": threads,
            "cache_type_k": cache_type_k,
            "cache_type_v": cache_type_v,
            "flash_attn": flash_attn,
            "grid": grids[0],
            "batch": -(-512 // grids[-1]) * grids[-1],
        }
    )
    console = Console(stderr=True)
    loaded = load_model(settings)
    try:
        found = verify(loaded.context, grids, tokens, lambda grid: console.print(f"trying a grid of {grid} tokens", style="dim"))
    finally:
        loaded.close()
    if as_json:
        typer.echo(json.dumps(body(loaded.found.name, found), indent=2))
    else:
        show(loaded.found.name, found)
    if any(report.promise is Promise.NONE for report in found.reports if report.grid >= 64):
        raise typer.Exit(1)


def show(name: str, found: Verification) -> None:
    """The table, and what follows from it in words."""
    table = Table(
        "grid", "promise", "largest difference", "state", "cold read", "park", "restore", "re-read after it", title=name
    )
    for report in found.reports:
        restore = next(trial for trial in report.trials if trial.way == "restore")
        table.add_row(
            str(report.grid),
            WORDS[report.promise],
            f"{max(trial.difference for trial in report.trials):.3g}",
            show_size(report.state_bytes),
            f"{report.cold_ms:.1f} ms",
            f"{report.park_ms:.1f} ms",
            f"{restore.ms:.1f} ms",
            f"{restore.reread_ms:.1f} ms",
        )
    Console().print(table)
    typer.echo(verdict(found))


def verdict(found: Verification) -> str:
    """Which grid to use for which promise."""
    bits, tokens = found.smallest(Promise.BITS), found.smallest(Promise.TOKENS)
    lines = [f"State kind: {found.kind.value}."]
    if bits is not None:
        lines.append(f"Restored and rolled back state gives the very bits of a cold read at --grid {bits} and above.")
    if tokens is not None and tokens != bits:
        lines.append(f"At --grid {tokens} and above the greedy tokens are those of a cold read, the last bits are not.")
    if tokens is None:
        lines.append("No grid that was tried keeps a promise here: `kvalet serve` switches reuse off.")
    errors = sorted({trial.error for report in found.reports for trial in report.trials if trial.error})
    return "\n".join([*lines, *errors])


def body(name: str, found: Verification) -> dict[str, Any]:
    """Everything that was measured, for scripts."""
    return {
        "model": name,
        "kind": found.kind.value,
        "bits_from_grid": found.smallest(Promise.BITS),
        "tokens_from_grid": found.smallest(Promise.TOKENS),
        "grids": [grid_body(report) for report in found.reports],
    }


def grid_body(report: GridReport) -> dict[str, Any]:
    trials = [
        {
            "way": trial.way,
            "position": trial.position,
            "promise": trial.promise.value,
            "difference": trial.difference if trial.difference != float("inf") else None,
            "ms": trial.ms,
            "reread": trial.reread,
            "reread_ms": trial.reread_ms,
            "error": trial.error or None,
        }
        for trial in report.trials
    ]
    return {
        "grid": report.grid,
        "promise": report.promise.value,
        "tokens": report.tokens,
        "cold_ms": report.cold_ms,
        "park_ms": report.park_ms,
        "state_bytes": report.state_bytes,
        "trials": trials,
    }
