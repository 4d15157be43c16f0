"""`kvalet-bench pair`: the same conversations with one engine and with two, of which the idle one reads ahead.

A recorded chat is played with its own answers: a grammar lets the model say nothing else.
"""

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench.errors import BadOption
from bench.pair_talk import Client, Step, recorded_steps, steps, trace_pauses
from bench.report import Column, Plot, Report, draw, number, percent, publish
from bench.servers import Setup, kvalet
from engine import catalog

TEMPLATE = Path(__file__).with_name("thinking.jinja")
WINDOW = 3072  # of the keeper: some ten turns
RECORDED_CTX = 65536


@dataclass(frozen=True, slots=True)
class Play:
    """A scenario: options for both servers, whether they are started again halfway, whether the person pauses at all."""

    name: str
    options: tuple[str, ...]
    thinks: bool = True
    restarts: bool = False
    pauses: bool = True


PLAYS = (
    Play("thinking chat", ("--chat-template", str(TEMPLATE))),
    Play("with a restart", ("--chat-template", str(TEMPLATE)), restarts=True),
    Play("with a keeper's cut", ("--keeper", "in_place"), thinks=False),
    Play("no pause", ("--chat-template", str(TEMPLATE)), pauses=False),
)
RECORDED = Play("recorded chats", ("--chat-template", str(TEMPLATE)))


@dataclass(frozen=True, slots=True)
class Played:
    """Both clients after a scenario, and what the second server said of its background."""

    play: Play
    one: Client
    two: Client
    preread: dict[str, Any]


def play(setup: Setup, what: Play, pair: Sequence[str], script: Sequence[Step], rounds: int, seed: int) -> Played:
    """With pauses both servers are asked in turn, the first changing, and the pause comes when both have answered; without,
    each plays the whole conversation in turn, `rounds` times, because silence is what the background waits for."""
    clients = Client(what.thinks), Client(what.thinks)
    if "--keeper" in what.options or what is RECORDED:
        setup = replace(setup, ctx=RECORDED_CTX if what is RECORDED else WINDOW)
    with tempfile.TemporaryDirectory(prefix="kvalet-pair-") as folder:
        places = [Path(folder) / name for name in ("one", "two")]
        with ExitStack() as stack:
            _start(stack, setup, what, pair, clients, places)
            for client in clients:
                client.begin(seed)
            if not what.pauses:
                _without_pauses(clients, script, rounds, seed)
                return Played(what, *clients, clients[1].preread())
            half = len(script) // 2 if what.restarts else len(script)
            _with_pauses(clients, script[:half])
            before = clients[1].preread()
        if not what.restarts:
            return Played(what, *clients, before)
        with ExitStack() as stack:
            _start(stack, setup, what, pair, clients, places)
            _with_pauses(clients, script[half:])
            return Played(what, *clients, _sum(before, clients[1].preread()))


def _start(
    stack: ExitStack, setup: Setup, what: Play, pair: Sequence[str], clients: Sequence[Client], places: Sequence[Path]
) -> None:
    for client, place, own in zip(clients, places, ((), pair), strict=True):
        archive = ("--archive", str(place / "archive")) if "--keeper" in what.options else ()
        disk = place if what.restarts else None
        client.url = stack.enter_context(kvalet(setup, (*what.options, *archive, *own), cache_dir=disk)).url


def _with_pauses(clients: Sequence[Client], script: Sequence[Step]) -> None:
    for turn, step in enumerate(script):
        for client in clients if turn % 2 == 0 else clients[::-1]:
            client.say(step)
        clients[1].pause(step.pause)


def _without_pauses(clients: Sequence[Client], script: Sequence[Step], rounds: int, seed: int) -> None:
    turns: tuple[list[Any], list[Any]] = ([], [])
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            clients[which].begin(seed + 1 + turn)
            for step in script:
                clients[which].say(step)
            turns[which].extend(clients[which].turns)
    for client, found in zip(clients, turns, strict=True):
        client.turns = found


def _sum(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Both lives of a server that was started again."""
    kinds = {
        kind: {name: before[kind][name] + count for name, count in found.items()}
        for kind, found in after.items()
        if isinstance(found, dict)
    }
    used, wasted = (sum(found[name] for found in kinds.values()) for name in ("used", "wasted"))
    return {**after, **kinds, "share_wasted": wasted / (used + wasted) if used + wasted else 0.0}


def row(played: Played) -> dict[str, Any]:
    """Medians over the turns after a conversation's first, which is cold everywhere; ratios are medians of the turns' own."""
    one, two = ([turn for turn in client.turns if turn.number] for client in (played.one, played.two))
    ms = [a.ms / b.ms for a, b in zip(one, two, strict=True)]
    cuts = [a.ms / b.ms for a, b in zip(one, two, strict=True) if a.cut]
    return {
        "scenario": played.play.name,
        "turns": len(two),
        "only_new_one": sum(turn.only_new for turn in one) / len(one),
        "only_new_two": sum(turn.only_new for turn in two) / len(two),
        "read_one": statistics.median(turn.read for turn in one),
        "read_two": statistics.median(turn.read for turn in two),
        "ms_one": statistics.median(turn.ms for turn in one),
        "ms_two": statistics.median(turn.ms for turn in two),
        "ratio": statistics.median(ms),
        "at_cuts": statistics.median(cuts) if cuts else None,
        "rate": statistics.median(b.rate for b in two) / statistics.median(a.rate for a in one),
        "wasted": played.preread["share_wasted"] if played.play.pauses else None,
    }


def report(played: Sequence[Played], setup: Setup, pair: Sequence[str]) -> Report:
    columns = (
        Column("scenario", "scenario"),
        Column("turns", "turns", number()),
        Column("only_new_one", "only new read, one", percent(0)),
        Column("only_new_two", "two", percent(0)),
        Column("read_one", "tokens read, one", number()),
        Column("read_two", "two", number()),
        Column("ms_one", "ms to first token, one", number(1)),
        Column("ms_two", "two", number(1)),
        Column("ratio", "one / two", number(2)),
        Column("at_cuts", "at cuts", number(1)),
        Column("rate", "tokens/s, two / one", number(3)),
        Column("wasted", "wasted", percent(0)),
    )
    notes = (
        f"{setup.model.name}, {setup.threads} thread(s) an engine, two engines by {' '.join(pair)}; medians over turns",
        "only new read: turns that read at most the new message and 64 tokens; wasted: pre-read tokens nobody went on from",
        "pauses as people make them, cut short when nothing is left to read; the time to the first token is the client's",
    )
    return Report("one engine and two", columns, [row(one) for one in played], notes, None, details(played))


def details(played: Sequence[Played]) -> dict[str, Any]:
    """Every turn, and what was read ahead by kind."""
    return {
        "turns": {one.play.name: {"one": _turns(one.one), "two": _turns(one.two)} for one in played},
        "preread": {one.play.name: one.preread for one in played},
    }


def _turns(client: Client) -> list[dict[str, Any]]:
    return [asdict(turn) for turn in client.turns]


def picture(played: Sequence[Played]) -> Report:
    """Time to first token by turn."""
    rows = [
        {"turn": turn.number + 1, "ms to first token": turn.ms, "engines": f"{one.play.name}, {name}"}
        for one in played
        if one.play.pauses
        for name, client in (("one", one.one), ("two", one.two))
        for turn in client.turns
    ]
    return Report("time to first token", (), rows, (), Plot("turn", "ms to first token", "engines", log_y=True))


def command(
    model: Annotated[str, typer.Option(help="A GGUF or a name.")] = "synthetic:tiny",
    turns: Annotated[int, typer.Option(min=2, help="Turns of each conversation.")] = 20,
    trace: Annotated[Path | None, typer.Option(help="Also the chats of a folder of full-text traces.")] = None,
    sessions: Annotated[int, typer.Option(min=1, help="How many of its chats.")] = 2,
    threads: Annotated[int, typer.Option(min=1, help="Threads of an engine.")] = 1,
    devices: Annotated[str, typer.Option(help="--devices of the pair; empty: --background-slots 1.")] = "cpu,cpu",
    scenario: Annotated[list[str] | None, typer.Option(help="A scenario by name; may be repeated. None: all.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Conversations without pauses on each server, in turn.")] = 2,
    pauses: Annotated[Path | None, typer.Option(help="A kv-cache-tester session whose pauses of people are used.")] = None,
    seed: Annotated[int, typer.Option(help="Of the words.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Four short turns, one round.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all numbers as JSON here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG here.")] = None,
) -> None:
    """One engine and two on the same conversations: a person's pauses, a restart, a keeper's cut, no pause."""
    known = {one.name for one in PLAYS}
    if unknown := set(scenario or ()) - known:
        raise BadOption("--scenario", f"{', '.join(sorted(unknown))}: must be one of {', '.join(sorted(known))}")
    drawn = trace_pauses(pauses) if pauses else ()
    if pauses and not drawn:
        raise BadOption("--pauses", f"{pauses}: nobody pauses there")
    recorded = recorded_steps(trace, sessions) if trace else ()
    if quick:
        turns, rounds = 4, 1
    pair = ("--devices", devices) if devices else ("--background-slots", "1")
    setup = Setup(catalog.resolve(model).path, ctx=16384, threads=threads)
    script = steps(turns, seed, scale=0.2 if quick else 1.0, pauses=drawn)
    console, played = Console(stderr=True), []
    for what in PLAYS:
        if not scenario or what.name in scenario:
            console.print(what.name)
            played.append(play(setup, what, pair, script, rounds, seed))
    if recorded:
        console.print(RECORDED.name)
        played.append(play(setup, RECORDED, pair, recorded, rounds, seed))
    publish(report(played, setup, pair), json_path=json)
    if plot is not None:
        try:
            draw(picture(played), plot)
        except OSError as error:
            raise BadOption("--plot", f"{plot}: {error.strerror or error}") from None
