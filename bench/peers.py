"""`kvalet-bench peers`: the same conversations on kvalet and other servers: what each reads again, how long a client waits."""

import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

from bench.environments import PeerMissing
from bench.errors import BadOption, Unreachable
from bench.peer_servers import PEERS, Kvalet, Peer, known_peers
from bench.report import Bars, Column, Report, number, publish
from bench.scenarios import Ask, Event, Scenario, scenarios
from bench.servers import Setup
from engine import catalog

WARM_UP = Ask(({"role": "user", "content": "hello"},))
ANSWER = 1
"""Tokens asked for: the wait for the whole answer is then the time to the first token."""


@dataclass(slots=True)
class Measured:
    """One scenario on one peer, a figure for each round. `tail`: tokens of the last prompt that no earlier prompt had."""

    read: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    failed: str = ""


Results = dict[tuple[str, str], Measured]


def run(peer: Peer, scenario: Scenario, found: Measured) -> None:
    """Plays a scenario; its last request is measured. A peer that refuses is noted, and started again where it died."""
    try:
        for step in scenario.steps[:-1]:
            if isinstance(step, Event):
                time.sleep(peer.settle_seconds)
                peer.end(kill=step.how == "kill")
                peer.start()
                peer.read(peer.ask(WARM_UP, ANSWER))
            else:
                peer.read(peer.ask(step, ANSWER))
        last = scenario.steps[-1]
        assert isinstance(last, Ask)
        started = time.perf_counter()
        body = peer.ask(last, ANSWER)
        found.seconds.append(time.perf_counter() - started)
        found.read.append(peer.read(body))
        found.prompt.append(int(body["usage"]["prompt_tokens"]))
    except Unreachable as error:
        found.failed = error.reason
        peer.end(kill=True)
        peer.start()


def tails(ours: Peer, scenario: Scenario) -> int:
    """Tokens of the last prompt after what it has in common with an earlier one, by kvalet's template and tokenizer."""
    asks = [step for step in scenario.steps if isinstance(step, Ask)]
    prompts = [_tokens(ours, ask) for ask in asks]
    *earlier, last = prompts
    return len(last) - max(_common(prompt, last) for prompt in earlier)


def _tokens(ours: Peer, ask: Ask) -> list[int]:
    body: dict[str, Any] = {"messages": list(ask.messages), **({"tools": list(ask.tools)} if ask.tools else {})}
    prompt = httpx.post(f"{ours.url}/apply-template", json=body, timeout=60).json()["prompt"]
    found = httpx.post(f"{ours.url}/tokenize", json={"content": prompt, "parse_special": True}, timeout=60).json()["tokens"]
    return [int(token) for token in found]


def _common(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def command(
    peer: Annotated[list[str] | None, typer.Option(help="A peer to compare with; may be repeated. None: all.")] = None,
    model: Annotated[str, typer.Option(help="A GGUF or a name.")] = "synthetic:tiny",
    rounds: Annotated[int, typer.Option(min=1, help="Alternating rounds; medians over them.")] = 2,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each server.")] = 2,
    scale: Annotated[float, typer.Option(min=0.02, help="1: prompts of about 4,500 tokens.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the words.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Short prompts, one round, kvalet alone unless peers are named.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write all numbers as JSON here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG here.")] = None,
) -> None:
    """Twelve things that clients do, on kvalet and on other servers with the same GGUF, threads and batch.

    Each peer is installed in an environment of its own under the cache folder; one that cannot be had is skipped and said so.
    """
    unknown = set(peer or ()) - {known.name for known in PEERS}
    if unknown:
        raise BadOption("--peer", f"{', '.join(sorted(unknown))}: must be one of {', '.join(p.name for p in PEERS)}")
    chosen = [Kvalet] if quick and not peer else known_peers(peer or ())
    if quick:
        rounds, scale = 1, min(scale, 0.1)
    setup = Setup(catalog.resolve(model).path, ctx=8192, threads=threads)
    publish(compare(setup, chosen, rounds, scale, seed), json_path=json, plot_path=plot)


def compare(setup: Setup, chosen: Sequence[type[Peer]], rounds: int, scale: float, seed: int) -> Report:
    """Every scenario on every peer that can be had, one after the other, the first changing with the round."""
    console, skipped = Console(stderr=True), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvalet-peers-")))
        peers: list[Peer] = []
        for kind in chosen:
            console.print(f"starting {kind.name}")
            one = kind(setup, folder / kind.name)
            try:
                one.start()
            except PeerMissing as missing:
                skipped.append(str(missing))
                continue
            stack.callback(one.end, kill=True)
            one.read(one.ask(WARM_UP, ANSWER))
            peers.append(one)
        results, tail = _rounds(peers, rounds, scale, seed, console)
    return _report(results, tail, peers, skipped, setup)


def _rounds(peers: Sequence[Peer], rounds: int, scale: float, seed: int, console: Console) -> tuple[Results, dict[str, int]]:
    results: Results = {}
    tail: dict[str, int] = {}
    for number_ in range(rounds):
        order = [*peers[number_ % len(peers) :], *peers[: number_ % len(peers)]]
        for scenario in scenarios(seed + number_, scale):
            console.print(f"round {number_ + 1} of {rounds}: {scenario.name}")
            tail.setdefault(scenario.name, tails(peers[0], scenario))
            for peer in order:
                run(peer, scenario, results.setdefault((scenario.name, peer.name), Measured()))
    return results, tail


def _report(results: Results, tail: dict[str, int], peers: Sequence[Peer], skipped: Sequence[str], setup: Setup) -> Report:
    rows = [_row(name, tail[name], {p.name: results[name, p.name] for p in peers}) for name in tail]
    notes = [
        f"{setup.model.name}, ctx {setup.ctx}, {setup.threads} threads, batch {setup.batch}; medians of {_rounds_of(results)}",
        "tail: tokens that no earlier prompt had, which everybody must read; then prompt tokens read and the time to the first "
        "token, and kvalet's time over the peer's",
        *skipped,
        *dict.fromkeys(f"{peer} failed at {name}: {m.failed}" for (name, peer), m in results.items() if m.failed),
    ]
    columns = [Column("scenario", "scenario"), Column("prompt", "prompt", number()), Column("tail", "tail", number())]
    columns += [Column(f"{peer.name} shown", peer.name) for peer in peers]
    columns += [Column(f"{peer.name} ratio", f"ms / {peer.name}", number(2)) for peer in peers[1:]]
    bars = Bars("scenario", tuple((f"{peer.name} read", peer.name) for peer in peers), "prompt tokens read")
    return Report("re-reading and time to first token", tuple(columns), rows, tuple(notes), bars)


def _rounds_of(results: Results) -> int:
    return max((len(m.read) for m in results.values()), default=0)


def _row(name: str, tail: int, measured: dict[str, Measured]) -> dict[str, Any]:
    row: dict[str, Any] = {"scenario": name, "tail": tail}
    ours = measured[Kvalet.name]
    row["prompt"] = int(statistics.median(ours.prompt)) if ours.prompt else None
    for peer, found in measured.items():
        if not found.read:
            continue
        read, ms = statistics.median(found.read), 1e3 * statistics.median(found.seconds)
        row |= {f"{peer} read": read, f"{peer} ms": ms, f"{peer} shown": f"{read:,.0f} in {ms:,.0f} ms"}
        row[f"{peer} reads"], row[f"{peer} seconds"] = found.read, found.seconds
        if peer != Kvalet.name and len(found.seconds) == len(ours.seconds):
            row[f"{peer} ratio"] = statistics.median(a / b for a, b in zip(ours.seconds, found.seconds, strict=True))
    return row
