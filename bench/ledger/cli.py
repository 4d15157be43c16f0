"""`kvalet-bench ledger train | eval | export`: the embedded model's making. Only eval works without the extra `train`."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench.errors import BadOption, BenchError
from bench.report import publish
from engine import catalog
from engine.errors import ModelError

if TYPE_CHECKING:
    from bench.ledger.train import Step

TOKENIZER = "tokenizer.json"
app = typer.Typer(help="Train, evaluate and export the embedded ledger model.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(help="Where checkpoint and tokenizer are kept.")]


def need_torch() -> None:
    """Raises BenchError where the extra is not installed."""
    missing = [name for name in ("torch", "tokenizers") if find_spec(name) is None]
    if missing:
        raise BenchError(f"{' and '.join(missing)} not installed: pip install 'kvalet[train]' (training is not needed to serve)")


def bar() -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def _path(model: str, option: str) -> Path:
    try:
        return catalog.resolve(model).path
    except ModelError as error:
        raise BadOption(option, str(error)) from None


@app.command()
def train(
    folder: Folder = Path("ledger-model"),
    start: Annotated[str | None, typer.Option(help="A GGUF, or a name, to begin from; none: random weights.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of about 4,600 tokens; the rate falls over the second half.", min=1)] = 1400,
    seed: Annotated[int, typer.Option(help="The same seed gives the same episodes in the same order.", min=0)] = 7,
    threads: Annotated[int, typer.Option(help="Threads of PyTorch.", min=1)] = 2,
    compile_: Annotated[bool, typer.Option("--compile/--no-compile", help="A third faster; needs a C++ compiler.")] = True,
) -> None:
    """Train in FOLDER, or go on from the checkpoint that is there (one every 50 steps)."""
    need_torch()
    from bench.ledger.tokenizer import load_or_train
    from bench.ledger.train import Plan
    from bench.ledger.train import train as run

    tokenizer = load_or_train(folder / TOKENIZER)
    plan = Plan(steps=steps, seed=seed, start=_path(start, "--start") if start else None, threads=threads)
    with bar() as progress:
        task = progress.add_task("training", total=steps)

        def report(step: "Step") -> None:
            progress.update(task, completed=step.number + 1, description=said(step))

        run(folder, tokenizer, plan, report, compile_)


def said(step: "Step") -> str:
    """How often whole answers were wrong lately, by grade and kind."""
    return "wrong answers: " + ", ".join(f"{skill} {error:.0%}" for skill, error in sorted(step.errors.items()))


@app.command()
def export(
    folder: Folder = Path("ledger-model"),
    out: Annotated[Path, typer.Option(help="The GGUF to write.")] = Path("ledger.gguf"),
    kind: Annotated[str, typer.Option(help="Type of the matrices: F32, F16 or Q8_0.")] = "F16",
) -> None:
    """Write the checkpoint in FOLDER as a GGUF that llama.cpp runs."""
    need_torch()
    from bench.ledger.export import KINDS
    from bench.ledger.export import export as write
    from bench.ledger.train import CHECKPOINT

    if kind not in KINDS:
        raise BadOption("--kind", f"{kind}: must be one of {', '.join(KINDS)}")
    for name in (CHECKPOINT, TOKENIZER):
        if not (folder / name).exists():
            raise BadOption("FOLDER", f"{folder / name} is not there: train first")
    write(folder / CHECKPOINT, folder / TOKENIZER, out, kind)


@app.command("eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="A GGUF, or a name.")] = "ledger",
    episodes: Annotated[int, typer.Option(help="Held-out episodes of each size.", min=1)] = 300,
    first_seed: Annotated[int, typer.Option(help="The first of their seeds; training uses those from 10,000,000 on.", min=0)] = 0,
    threads: Annotated[int, typer.Option(help="Threads of the engine.", min=1)] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Twenty episodes: seconds.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all numbers and the first misses as JSON here.")] = None,
) -> None:
    """Exact whole answers on held-out episodes at temperature 0, in the real engine, by kind and size."""
    from bench.ledger.evaluate import SIZES, Reader
    from bench.ledger.evaluate import evaluate as score
    from bench.ledger.scores import report

    episodes = min(episodes, 20) if quick else episodes
    reader = Reader(_path(model, "MODEL"), threads)
    scores = []
    with bar() as progress:
        task = progress.add_task("episodes", total=episodes * len(SIZES))
        for size in SIZES:
            scores.append(score(reader, size, episodes, first_seed, progress=lambda: progress.advance(task)))
    reader.close()
    publish(report(scores, model, episodes, first_seed), json_path=json)
