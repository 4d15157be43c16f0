"""kvalet-bench tope: how fast 4tope is, and what it keeps of real agent histories.

Times are of graph, protected ids and unfold together with a 1,400-byte allowance, on Message values that exist already; reading
them from OpenAI dicts is reported beside it. CPU time stands beside wall time because other work on the machine moves only the
latter; the growth exponent is given for both. The paper's Zig took 0.0177, 0.110, 0.261 and 1.10 ms for its four sizes.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from bench.miniswe import sessions
from bench.report import Column, Plot, Report, number, percent, publish, size
from bench.spans import lookup_span, span_bytes
from bench.tope_traces import (
    ABLATIONS,
    BASELINES,
    SENSITIVITY,
    Choice,
    Cut,
    Interval,
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
from keeper import excerpt
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
    """One size: bytes in and out, protected results, and milliseconds of graph + protected + unfold: wall (median, least, most)
    and CPU (median)."""

    messages: int
    bytes_in: int
    bytes_out: int
    protected: int
    ms: float
    least: float
    most: float
    cpu_ms: float
    read_ms: float


def timed(messages: int, repeats: int, warm_ups: int = 3) -> Timing:
    """Three warm-ups, then `repeats` measured runs, as the paper does."""
    span = lookup_span(messages)
    raw = [message.as_dict() for message in span]
    runs = [_run(span) for _ in range(warm_ups + repeats)][warm_ups:]
    reading = min(_read(raw) for _ in range(min(3, repeats)))
    graph = build(span)
    carried = excerpt.size(unfold(graph, ALLOWANCE).text)
    wall, cpu = ([run[clock] for run in runs] for clock in (0, 1))
    protected = len(graph.protected_ids())
    return Timing(messages, span_bytes(span), carried, protected, median(wall), min(wall), max(wall), median(cpu), reading)


def _run(span: Sequence[Message]) -> tuple[float, float]:
    """Wall and CPU milliseconds of one run."""
    started, used = time.perf_counter(), time.process_time()
    graph = build(span)
    graph.protected_ids()
    unfold(graph, ALLOWANCE)
    return (time.perf_counter() - started) * 1e3, (time.process_time() - used) * 1e3


def _read(raw: Sequence[Mapping[str, Any]]) -> float:
    started = time.perf_counter()
    for place, found in enumerate(raw):
        read(found, place)
    return (time.perf_counter() - started) * 1e3


def growth(messages: Sequence[int], ms: Sequence[float]) -> float:
    """The exponent of time over messages: slope of the least-squares line through the logarithms."""
    slope, _ = np.polyfit(np.log(messages), np.log(ms), 1)
    return float(slope)


def command(
    traces: Annotated[
        Path | None, typer.Argument(help="Folder of full-text agent traces (lmcache-agent-trace); none: speed alone.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Measured runs of each of the paper's sizes; large ones a fifth.", min=1)] = 21,
    largest: Annotated[int, typer.Option(help="The largest synthetic span, in messages.", min=21)] = 100_001,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Small spans, few runs: seconds.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all numbers as JSON here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG of time over messages here.")] = None,
) -> None:
    """4tope: speed and growth on synthetic spans, ablations, and what stays in view on real agent traces."""
    found = [cut for name, history in sessions(traces).items() for cut in cuts(name, history)] if traces else []
    tables = [*on_traces(found, seed)] if found else []
    measured = speed(5 if quick else repeats, min(largest, 3_163) if quick else largest)
    extra = {**measured.extra, **{table.title: table.rows for table in tables}}
    for table in tables:
        publish(table)
    publish(replace(measured, extra=extra), json_path=json, plot_path=plot)


def speed(repeats: int, largest: int) -> Report:
    timings = [timed(messages, repeats) for messages in PAPER_SIZES if messages <= largest]
    grown = [timed(messages, max(3, repeats // 5), warm_ups=1) for messages in GROWTH_SIZES if messages <= largest]
    sizes = [timing.messages for timing in grown]
    exponents = {
        clock: growth(sizes, [getattr(timing, key) for timing in grown])
        for clock, key in (("wall", "ms"), ("CPU", "cpu_ms"))
        if len(grown) > 1
    }
    notes = tuple(f"growth exponent from {sizes[0]:,} to {sizes[-1]:,} messages, {c}: {e:.3f}" for c, e in exponents.items())
    columns = (
        Column("messages", "messages", number()),
        Column("bytes_in", "in", size),
        Column("bytes_out", "carried", size),
        Column("protected", "protected", number()),
        Column("ms", "median ms", number(3)),
        Column("least", "least", number(3)),
        Column("most", "most", number(3)),
        Column("cpu_ms", "median CPU ms", number(3)),
        Column("read_ms", "reading dicts ms", number(3)),
    )
    rows = [{"way": "4tope", **asdict(timing)} for timing in (*timings, *grown)]
    plot = Plot("messages", "ms", "way", log_x=True, log_y=True)
    return Report("graph + protected ids + unfold on synthetic spans", columns, rows, notes, plot, {"exponents": exponents})


def on_traces(found: Sequence[Cut], seed: int) -> list[Report]:
    """The tables over real traces; every interval is 95 %."""
    about = f"{len({cut.session for cut in found})} sessions, {len(found)} cuts after which something from before is used"
    return [
        _shares("baselines", compared(found, BASELINES, ALLOWANCES, seed), (about,)),
        _shares("ablations", compared(found, ABLATIONS, ALLOWANCES, seed)),
        _shares("constants", compared(found, SENSITIVITY, (ALLOWANCE,), seed)),
        _shares("held out: `unread` chosen on the other sessions", out_of_sample(found, seed)),
        _edits(found),
    ]


def _shares(title: str, rows: list[dict[str, Any]], notes: tuple[str, ...] = ()) -> Report:
    columns = (
        Column("allowance", "bytes", number()),
        Column("choice", "choice"),
        Column("share", "needed later and in view", _interval),
        Column("minus", "4tope minus it", _interval),
        Column("reread", "tokens read again", number()),
    )
    return Report(f"{title}: share of the tokens used later that is still in view", columns, rows, notes)


def _interval(found: Interval) -> str:
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def compared(found: Sequence[Cut], choices: Mapping[str, Choice], allowances: Sequence[int], seed: int) -> list[dict[str, Any]]:
    """For each allowance and choice: its share, 4tope's minus its (paired), and the tokens to read again."""
    rows: list[dict[str, Any]] = []
    for allowance in allowances:
        ours = scores(found, tope, allowance)
        rows.append(_row(found, allowance, "4tope", tope, interval(ours, seed)))
        for name, choice in choices.items():
            theirs = scores(found, choice, allowance)
            row = _row(found, allowance, name, choice, interval(theirs, seed))
            rows.append({**row, "minus": difference(ours, theirs, seed)})
    return rows


def _row(found: Sequence[Cut], allowance: int, name: str, choice: Choice, share: Interval) -> dict[str, Any]:
    return {"allowance": allowance, "choice": name, "share": share, "reread": reread_of(found, choice, allowance)}


def out_of_sample(found: Sequence[Cut], seed: int) -> list[dict[str, Any]]:
    """Nothing where there is one session only, since there is no other to choose on."""
    if len({cut.session for cut in found}) < 2:
        return []
    shares = {allowance: interval(held_out(found, allowance), seed) for allowance in ALLOWANCES}
    return [{"allowance": allowance, "choice": "4tope", "share": share} for allowance, share in shares.items()]


def _edits(found: Sequence[Cut]) -> Report:
    """plan_edit against dropping the oldest exchanges, where the view may take a share of the history."""
    rows: list[dict[str, Any]] = []
    for share in LIMITS:
        for name, way in (("plan_edit", planned), ("drop oldest", dropped)):
            rows.append({"limit": share, "choice": name, **asdict(mean_of([way(cut, share) for cut in found]))})
    columns = (
        Column("limit", "of the history", percent(0)),
        Column("choice", "choice"),
        Column("share", "needed later and in view", number(3)),
        Column("tokens", "tokens of the view", number()),
        Column("reread", "tokens read again", number()),
    )
    return Report("edits of the whole history (tokens are bytes / 4)", columns, rows)
