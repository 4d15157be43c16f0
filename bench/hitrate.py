"""`kvalet-bench hitrate`: traces replayed in the simulator, or the same measure on a live server."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import models
from bench.errors import BadOption
from bench.replay import OPTIMUM_TURNS, Opened, Plan, Runner, optima, replay
from bench.report import Column, Plot, Report, number, percent, publish, size
from bench.tally import distances
from bench.traces import Reading
from kvcache import eviction

CLASSIC = "classic"
SHORT = {CLASSIC: "interval+newest+before-end+branches"}
"""classic: every --interval tokens, the end, one grid step before it, and branch points."""
STANDARD = (
    *((CLASSIC, evict) for evict in ("lru", "marconi", "uniform", "geometric", "adaptive")),
    ("adaptive", "adaptive"),
)
STANDARD_BYTES = (("newest+branches", "lru"), (CLASSIC, "lru"), (CLASSIC, "cost"), ("adaptive", "lru"), ("adaptive", "adaptive"))


def plans(
    placement: Sequence[str], evict: Sequence[str], keep: Sequence[int], budget: Sequence[int], learn: Sequence[str]
) -> list[Plan]:
    """Every combination asked for; the standard comparison where neither placement nor eviction is named."""
    rules = STANDARD_BYTES if budget else STANDARD
    if placement or evict:
        rules = tuple((p, e) for p in placement or ("adaptive",) for e in evict or (eviction.DEFAULT if budget else "adaptive",))
    bounds: list[tuple[int | None, int | None]] = [(None, b) for b in budget] or [(count, None) for count in keep]
    return [
        Plan(p, e, count, nbytes, how) for count, nbytes in bounds for p, e in rules for how in (learn if learns(p, e) else ("",))
    ]


def learns(placement: str, evict: str) -> bool:
    return not {"adaptive", "exact"}.isdisjoint({*placement.split("+"), evict})


def command(
    traces: Annotated[list[Path] | None, typer.Argument(help="Trace files, or folders of *.json and *.jsonl.")] = None,
    placement: Annotated[
        list[str] | None, typer.Option(help="Where checkpoints are made; names joined by + are united. May be repeated.")
    ] = None,
    evict: Annotated[
        list[str] | None, typer.Option(help="What stays: a thinning rule or an eviction order. May be repeated.")
    ] = None,
    keep: Annotated[list[int] | None, typer.Option(help="Checkpoints a conversation may hold. May be repeated.")] = None,
    budget: Annotated[
        list[str] | None, typer.Option(help="Instead of --keep: bytes for all conversations, as 64GiB. May be repeated.")
    ] = None,
    interval: Annotated[int, typer.Option(help="Tokens between regular checkpoints, where a placement has them.", min=0)] = 2048,
    as_: Annotated[str, typer.Option("--as", help="The model whose bytes are counted.")] = "qwen3.5-27b",
    learn: Annotated[
        str, typer.Option(help="online: learn while replaying, from nothing; held-out: on the other half of the files; both.")
    ] = "both",
    optimum: Annotated[bool, typer.Option(help="Compute the exact offline optimum beside every --keep.")] = True,
    url: Annotated[str | None, typer.Option(help="Measure a live OpenAI server instead, black box.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="KVALET_API_KEY", help="Its key.")] = None,
    limit: Annotated[int, typer.Option(help="Stop after so many requests; 0: all.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Of made-up traces.")] = 1,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave broken lines out and count them.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A small made-up trace when none is given: seconds.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all numbers as JSON here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG here.")] = None,
) -> None:
    """Replay TRACES: hit rate, ceiling of an infinite cache, and extra re-read as a share of unavoidable prefill.

    A block without a checkpoint at its end is no hit, as on a hybrid model. Example:
    kvalet-bench hitrate ../shared/traces/kv-cache-tester --keep 8 --keep 32 --plot hitrate.png
    """
    if url is not None:
        from bench.blackbox import measure_url  # httpx, only where it is needed

        publish(measure_url(url, api_key, traces or [], limit or 40, seed), json_path=json, plot_path=plot)
        return
    nbytes = [models.parse_size(text, "--budget") for text in budget or ()]
    asked = plans(placement or (), evict or (), keep or (8, 32), nbytes, _ways(learn))
    if any(plan.keep is not None and plan.keep < 1 for plan in asked):
        raise BadOption("--keep", "a budget of 0 holds nothing; give at least 1")
    reading = Reading(skip_bad)
    opened = Opened(traces or [], quick, seed, limit, reading)
    runners = [
        Runner(replace(plan, placement=SHORT.get(plan.placement, plan.placement)), interval, models.sizes(as_)) for plan in asked
    ]
    replay(opened, runners)
    best = optima(opened, [plan.keep for plan in asked if plan.keep is not None]) if optimum and not nbytes else {}
    publish(report(runners, best, as_, reading), json_path=json, plot_path=plot)


def _ways(learn: str) -> tuple[str, ...]:
    ways = {"online": ("online",), "held-out": ("held-out",), "both": ("held-out", "online")}
    if learn not in ways:
        raise BadOption("--learn", f"{learn}: must be one of {', '.join(sorted(ways))}")
    return ways[learn]


def report(runners: Sequence[Runner], best: dict[int, tuple[int, int, bool]], model: str, reading: Reading) -> Report:
    rows = [_row(runner, best) for runner in runners]
    first = runners[0].tally
    notes = [
        f"{first.all.requests:,} requests of {first.conversations:,} conversations, {first.all.tokens:,} prompt tokens; "
        f"bytes as {model}",
        f"classic: {SHORT[CLASSIC]}",
        "re-read: tokens decoded again over tokens that no cache could save; optimum: the same with the future known",
    ]
    if reading.count:
        notes.append(f"{reading.count} bad lines were left out, the first: {reading.first[0]}")
    if not all(exact for _, _, exact in best.values()):
        notes.append(f"optimum: not exact everywhere (conversations of over {OPTIMUM_TURNS} turns, or too many states)")
    columns = (
        Column("placement", "placement"),
        Column("evict", "evict"),
        Column("learned", "learned"),
        Column("keep", "keep", number()),
        Column("budget", "budget", size),
        Column("hit", "hit rate", percent(3)),
        Column("ceiling", "ceiling", percent(3)),
        Column("reread", "re-read", percent(3)),
        Column("optimum", "optimum", percent(3)),
        Column("peak_bytes", "held", size),
        Column("blocks_per_second", "blocks/s CPU", number()),
    )
    x = "budget" if runners[0].plan.budget is not None else "keep"
    extra = {"skipped": reading.count, "skipped_first": reading.first}
    return Report("hit rate", columns, rows, tuple(notes), Plot(x, "reread", "name", log_x=True, log_y=True), extra)


def _row(runner: Runner, best: dict[int, tuple[int, int, bool]]) -> dict[str, Any]:
    plan, tally = runner.plan, runner.tally
    placement = next((short for short, long in SHORT.items() if long == plan.placement), plan.placement)
    reread, unavoidable, _ = best.get(plan.keep or 0, (0, 0, False))
    return {
        "name": f"{placement} / {plan.evict} {plan.learned}".strip(),
        "placement": placement,
        "evict": plan.evict,
        "learned": plan.learned or None,
        "keep": plan.keep,
        "budget": plan.budget,
        **tally.all.row(),
        "optimum": reread / unavoidable if unavoidable else None,
        "peak_bytes": tally.peak_bytes,
        "blocks": tally.blocks,
        "blocks_per_second": tally.blocks / tally.seconds if tally.seconds else None,
        "conversations": tally.conversations,
        "rollback_distances": distances(tally.rollbacks),
        "reread_distances": distances(tally.rereads),
        "worst": [{"conversation": name, **sums.row()} for name, sums in tally.worst],
    }
