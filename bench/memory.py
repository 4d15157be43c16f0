"""`kvalet-bench memory`: what a model still knows of a long ledger stream, by the way its window is managed."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer
from rich.progress import Progress

from bench.errors import BadOption
from bench.ledger.stream import DISTANCES, KINDS, NEVER
from bench.memory_run import FULL, Answer, Outcome, Settings, run
from bench.report import Column, Plot, Report, Row, draw, number, percent, publish
from engine import catalog
from engine.errors import ModelError
from engine.probe import default_threads, prepare_environment
from keeper.errors import UnknownStrategy
from keeper.strategies.registry import make

STANDARD = (FULL, "drop", "compact", "summarise", "retrieval", "in_place", "in_place_retrieval", "tope_notes")
LONGEST = 32_768  # tokens of the embedded model's context; full context is left out beyond
QUICK_TOKENS, QUICK_STRATEGIES = 600, ("drop", "in_place")
RANGES = tuple(label for _, label in DISTANCES)


def command(
    strategy: Annotated[list[str] | None, typer.Option(help="How the window is managed. May be repeated.")] = None,
    tokens: Annotated[int, typer.Option(help="Length of the stream, questions and answers included.", min=100)] = 20_000,
    window: Annotated[int, typer.Option(help="Tokens the model may see.", min=640)] = 1024,
    seeds: Annotated[int, typer.Option(help="Streams, from seed 0 on.", min=1)] = 1,
    model: Annotated[str, typer.Option(help="The model; another than the ledger's needs its texts to be of use.")] = "ledger",
    threads: Annotated[int, typer.Option(help="Of each run.", min=1)] = 1,
    jobs: Annotated[int, typer.Option(help="Runs side by side; 0: as many as there are cores for.", min=0)] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="One short stream, two strategies: seconds.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all numbers as JSON here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG here.")] = None,
) -> None:
    """A stream of short stories through a small window, with questions about what they said 1 to 400 and more batches back.

    The real model and engine, nothing scripted; temperature 0, whole answers. Example:
    kvalet-bench memory --strategy drop --strategy in_place --seeds 1 --plot memory.png
    """
    chosen = tuple(strategy or (QUICK_STRATEGIES if quick else STANDARD))
    if quick:
        tokens, seeds = min(tokens, QUICK_TOKENS), 1
    settings = Settings(_model(model), tokens, window, threads)
    measured = [name for name in chosen if _known(name) != FULL or tokens * 3 // 2 + 1024 <= LONGEST]
    if not measured:
        raise BadOption(
            "--tokens", f"{tokens}: {FULL} needs a context of more than {LONGEST:,} tokens, and nothing else was asked for"
        )
    outcomes = measure(settings, measured, range(seeds), jobs or default_threads(threads))
    result = report(outcomes, settings)
    publish(result, json_path=json)
    if plot is not None:
        draw(curves(outcomes, settings), plot)


def _model(name: str) -> Path:
    try:
        return catalog.resolve(name).path
    except ModelError as error:
        raise BadOption("--model", str(error)) from None


def _known(strategy: str) -> str:
    try:
        return make(strategy).name
    except UnknownStrategy as error:
        raise BadOption("--strategy", str(error)) from None


def measure(settings: Settings, strategies: Sequence[str], seeds: Sequence[int], jobs: int = 1) -> list[Outcome]:
    """Every strategy on every stream, `jobs` at a time, each in a process of its own: answers do not depend on it, seconds do."""
    wanted = [(name, seed) for name in strategies for seed in seeds]
    with ProcessPoolExecutor(min(jobs, len(wanted)), get_context("spawn"), prepare_environment) as pool, Progress() as progress:
        task = progress.add_task("memory", total=len(wanted))
        running = [pool.submit(played, settings, *one) for one in wanted]
        try:
            for future in as_completed(running):
                future.result()
                progress.advance(task)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.terminate()
            raise
    return [future.result() for future in running]


def played(settings: Settings, name: str, seed: int) -> Outcome:
    """One strategy on one stream."""
    return asyncio.run(run(settings, name, seed))


def share(answers: Sequence[Answer]) -> float | None:
    """Right of asked; None where nothing was asked."""
    return sum(answer.right for answer in answers) / len(answers) if answers else None


def report(outcomes: Sequence[Outcome], settings: Settings) -> Report:
    """A row a strategy, its runs pooled; the JSON holds every run."""
    names = dict.fromkeys(outcome.strategy for outcome in outcomes)
    rows = [_row([o for o in outcomes if o.strategy == name]) for name in names]
    ranges = tuple(Column(label, label, percent(0)) for label in RANGES)
    columns = (
        Column("strategy", "strategy"),
        Column("right", "right", percent(1)),
        Column("spread", "of seeds"),
        *ranges,
        Column("rule", "rule", percent(0)),
        Column("rule_seen", "rule, if in view", percent(0)),
        Column("unknown", "unknown", percent(0)),
        Column("prompt", "prompt tokens", number()),
        Column("reread", "re-read", number()),
        Column("own", "note tokens", number()),
        Column("seconds", "s", number()),
        Column("wrong", "wrong lines/version", number(2)),
        Column("clean", "clean versions", percent(0)),
    )
    first = outcomes[0]
    notes = (
        f"{settings.tokens:,} tokens, {first.batches} batches, {len(first.answers)} questions of the first stream, "
        f"window {settings.window:,}, {len({o.seed for o in outcomes})} seeds",
        "columns 1-4 to 400+: current value and who set it, by batches back; right: all questions, whole answers, temperature 0",
        "note tokens: prompt and reply of the strategy's own calls; wrong lines: STATE lines wrong, missing or invented",
        "the model was trained for this one narrow domain, and never to summarise",
    )
    return Report("What is still known of a ledger stream", columns, rows, notes, extra={"runs": [_run(o) for o in outcomes]})


def _row(runs: Sequence[Outcome]) -> Row:
    answers = [answer for outcome in runs for answer in outcome.answers]
    shares = [share(outcome.answers) or 0.0 for outcome in runs]
    versions = [version for outcome in runs for version in outcome.versions]
    told = [a for a in answers if a.question.kind in ("value", "who")]
    of_kind = {kind: [a for a in answers if a.question.kind == kind] for kind in KINDS}
    row: Row = {
        "strategy": runs[0].strategy,
        "right": mean(shares),
        "spread": f"{100 * min(shares):.0f}–{100 * max(shares):.0f} %",
    }
    row |= {label: share([a for a in told if a.question.distance == label]) for label in RANGES}
    row |= {kind: share(of_kind[kind]) for kind in KINDS}
    row["rule_seen"] = share([a for a in of_kind["rule"] if a.rule_in_view])
    row |= {"prompt": mean(o.spent.prompt for o in runs), "reread": mean(o.spent.reread for o in runs)}
    row |= {"own": mean(_own(o) for o in runs), "seconds": mean(o.seconds for o in runs)}
    if versions:
        row["wrong"] = mean(len(v.wrong) + len(v.missing) + len(v.invented) for v in versions)
        row["clean"] = mean(version.clean for version in versions)
    return row


def _own(outcome: Outcome) -> int:
    return outcome.counters.get("own_prompt_tokens", 0) + outcome.counters.get("own_completion_tokens", 0)


def _run(outcome: Outcome) -> dict[str, Any]:
    """One run as plain values: right and asked by kind and distance, costs, and the audit of every version."""
    cells = {
        kind: {
            label: {
                "right": sum(a.right for a in outcome.answers if (a.question.kind, a.question.distance) == (kind, label)),
                "asked": sum((a.question.kind, a.question.distance) == (kind, label) for a in outcome.answers),
            }
            for label in (*RANGES, NEVER)
        }
        for kind in KINDS
    }
    misses = [
        {"asked": a.question.name, "kind": a.question.kind, "right": a.question.answer, "said": a.said}
        for a in outcome.answers
        if not a.right
    ]
    return {
        "strategy": outcome.strategy,
        "seed": outcome.seed,
        "right": sum(a.right for a in outcome.answers),
        "asked": len(outcome.answers),
        "rule_in_view": sum(a.rule_in_view for a in outcome.answers),
        "by_kind": cells,
        "batches": outcome.batches,
        "largest_view": outcome.largest_view,
        "failed": outcome.failed,
        "seconds": outcome.seconds,
        "tokens": vars(outcome.spent),
        "keeper": outcome.counters,
        "versions": [vars(version) for version in outcome.versions],
        "misses": misses,
    }


def curves(outcomes: Sequence[Outcome], settings: Settings) -> Report:
    """The share of right answers over the distance, a line a strategy."""
    x, y = "batches back", "right answers (value and who)"
    rows: list[Row] = []
    for name in dict.fromkeys(outcome.strategy for outcome in outcomes):
        told = [a for o in outcomes if o.strategy == name for a in o.answers if a.question.kind in ("value", "who")]
        for least, label in DISTANCES:
            rows.append({"strategy": name, x: least, y: share([a for a in told if a.question.distance == label])})
    title = f"{settings.tokens:,} tokens through a window of {settings.window:,}"
    return Report(title, (), rows, plot=Plot(x, y, "strategy", log_x=True))
