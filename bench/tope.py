"""kvalet-bench tope: how fast 4tope is, and what it keeps of real agent histories.

Times are of graph, protected ids and unfold together with a 1,400-byte allowance, on Message values that exist already; reading
them from OpenAI dicts is reported beside it. The paper's Zig took 0.0177, 0.110, 0.261 and 1.10 ms for its four sizes.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from bench.miniswe import NotATrace, sessions
from bench.spans import lookup_span, span_bytes
from bench.tope_traces import (
    ABLATIONS,
    BASELINES,
    SENSITIVITY,
    Choice,
    Cut,
    cuts,
    difference,
    dropped,
    held_out,
    interval,
    mean_of,
    planned,
    reread_of,
    scores,
    tope,
)
from keeper.excerpt import size
from keeper.graph import build
from keeper.message import Message, read
from keeper.unfold import unfold

ALLOWANCE = 1_400
PAPER_SIZES = (21, 101, 201, 501)
GROWTH_SIZES = (1_001, 3_163, 10_001, 31_623, 100_001)
ALLOWANCES = (500, 1_000, 1_400, 2_000, 4_000, 8_000)
LIMITS = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Timing:
    """One size: bytes in and out, protected results, and milliseconds (median, least, most) of graph + protected + unfold."""

    messages: int
    bytes_in: int
    bytes_out: int
    protected: int
    ms: float
    least: float
    most: float
    read_ms: float


def timed(messages: int, repeats: int, warm_ups: int = 3) -> Timing:
    """Three warm-ups, then `repeats` measured runs, as the paper does."""
    span = lookup_span(messages)
    raw = [message.as_dict() for message in span]
    runs = [_run(span) for _ in range(warm_ups + repeats)][warm_ups:]
    reading = min(_read(raw) for _ in range(min(3, repeats)))
    graph = build(span)
    carried = size(unfold(graph, ALLOWANCE).text)
    return Timing(messages, span_bytes(span), carried, len(graph.protected_ids()), median(runs), min(runs), max(runs), reading)


def _run(span: Sequence[Message]) -> float:
    started = time.perf_counter()
    graph = build(span)
    graph.protected_ids()
    unfold(graph, ALLOWANCE)
    return (time.perf_counter() - started) * 1e3


def _read(raw: Sequence[Mapping[str, Any]]) -> float:
    started = time.perf_counter()
    for place, found in enumerate(raw):
        read(found, place)
    return (time.perf_counter() - started) * 1e3


def growth(timings: Sequence[Timing]) -> float:
    """The exponent of time over messages: slope of the least-squares line through the logarithms."""
    slope, _ = np.polyfit(np.log([t.messages for t in timings]), np.log([t.ms for t in timings]), 1)
    return float(slope)


def compared(found: Sequence[Cut], choices: Mapping[str, Choice], allowances: Sequence[int], seed: int) -> list[dict[str, Any]]:
    """For each allowance and choice: its share, 4tope's minus its, both with intervals, and the tokens to read again."""
    rows = []
    for allowance in allowances:
        ours = scores(found, tope, allowance)
        rows.append(
            {
                "allowance": allowance,
                "choice": "4tope",
                "share": interval(ours, seed),
                "reread": reread_of(found, tope, allowance),
            }
        )
        for name, choice in choices.items():
            theirs = scores(found, choice, allowance)
            rows.append(
                {
                    "allowance": allowance,
                    "choice": name,
                    "share": interval(theirs, seed),
                    "4tope_minus": difference(ours, theirs, seed),
                    "reread": reread_of(found, choice, allowance),
                }
            )
    return rows


def edits(found: Sequence[Cut]) -> list[dict[str, Any]]:
    """plan_edit against dropping the oldest exchanges, where the view may take a share of the history."""
    rows: list[dict[str, Any]] = []
    for share in LIMITS:
        rows.append({"limit": share, "choice": "plan_edit", **asdict(mean_of([planned(cut, share) for cut in found]))})
        rows.append({"limit": share, "choice": "drop oldest", **asdict(mean_of([dropped(cut, share) for cut in found]))})
    return rows


def command(
    traces: Annotated[Path | None, typer.Option(help="folder of lmcache-agent-trace; without it speed alone is measured")] = None,
    repeats: Annotated[int, typer.Option(help="measured runs for each of the paper's sizes; large sizes take a fifth")] = 21,
    largest: Annotated[int, typer.Option(help="the largest synthetic span, in messages")] = 100_001,
    seed: Annotated[int, typer.Option(help="of the bootstrap")] = 1,
    out: Annotated[Path | None, typer.Option(help="write all numbers as JSON here")] = None,
) -> None:
    """4tope: speed and growth on synthetic spans, ablations, and what stays in view on real agent traces."""
    result: dict[str, Any] = {"speed": speed(repeats, largest)}
    if traces is not None:
        try:
            result |= on_traces(traces, seed)
        except NotATrace as error:
            raise typer.BadParameter(str(error), param_hint="--traces") from error
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def speed(repeats: int, largest: int) -> dict[str, Any]:
    timings = [timed(messages, repeats) for messages in PAPER_SIZES if messages <= largest]
    grown = [timed(messages, max(3, repeats // 5), warm_ups=1) for messages in GROWTH_SIZES if messages <= largest]
    typer.echo("messages  bytes in  bytes out  protected  median ms      range ms         reading dicts ms")
    for t in (*timings, *grown):
        sizes = f"{t.messages:>8} {t.bytes_in:>10} {t.bytes_out:>9} {t.protected:>9}"
        typer.echo(f"{sizes} {t.ms:>11.3f}   {t.least:.3f}-{t.most:.3f}   {t.read_ms:.3f}")
    exponent = growth(grown) if len(grown) > 1 else None
    if exponent is not None:
        typer.echo(f"growth exponent from {grown[0].messages} to {grown[-1].messages} messages: {exponent:.3f}")
    return {"timings": [asdict(t) for t in (*timings, *grown)], "exponent": exponent}


def on_traces(folder: Path, seed: int) -> dict[str, Any]:
    histories = sessions(folder)
    found = [cut for name, history in histories.items() for cut in cuts(name, history)]
    typer.echo(
        f"\n{len(histories)} sessions, {len(found)} cuts after which something from before is used; 95 % intervals, seed {seed}"
    )
    main = compared(found, BASELINES, ALLOWANCES, seed)
    ablated = compared(found, ABLATIONS, ALLOWANCES, seed)
    varied = compared(found, SENSITIVITY, (ALLOWANCE,), seed)
    for title, rows in (("baselines", main), ("ablations", ablated), ("constants", varied)):
        typer.echo(f"\n{title}: share of the tokens needed later that is still in view")
        for row in rows:
            minus = f"   4tope minus it {row['4tope_minus']}" if "4tope_minus" in row else ""
            typer.echo(f"{row['allowance']:>6} B  {row['choice']:<32} {row['share']}   re-read {row['reread']:>6.0f}{minus}")
    out_of_sample = {allowance: interval(held_out(found, allowance), seed) for allowance in ALLOWANCES}
    typer.echo("\n4tope with `unread` chosen on the other sessions")
    for allowance, share in out_of_sample.items():
        typer.echo(f"{allowance:>6} B  {share}")
    edited = edits(found)
    typer.echo("\nedits of the whole history: share in view, tokens of the view, tokens read again (bytes / 4)")
    for row in edited:
        typer.echo(f"{row['limit']:>6.0%}  {row['choice']:<12} {row['share']:.3f} {row['tokens']:>8.0f} {row['reread']:>8.0f}")
    return {
        "sessions": list(histories),
        "cuts": len(found),
        "baselines": main,
        "ablations": ablated,
        "constants": varied,
        "held_out": out_of_sample,
        "edits": edited,
    }
