"""The command `kvalet-bench`: every command prints a table, writes JSON with --json and a picture with --plot."""

import signal
import sys
from importlib import import_module
from importlib.util import find_spec
from types import FrameType

import typer

from bench.errors import BenchError
from bench.ledger import cli as ledger
from engine import matmul

HELP = """Measure prefix caches on real traces and live servers.

hitrate replays traces in the simulator, with the placement and eviction code that serves. The other commands start what they
measure themselves. Every command has --quick (seconds), --json FILE and --help."""

COMMANDS = ("hitrate", "rollback", "restore", "exact", "speed", "peers", "keeper", "memory", "tope", "pair")
"""Modules of this package; each has a function `command`."""

app = typer.Typer(help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown")
for _name in COMMANDS:
    if find_spec(f"bench.{_name}") is not None:
        app.command(_name)(import_module(f"bench.{_name}").command)
app.add_typer(ledger.app, name="ledger")


def leave(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signal.SIGTERM)


def main() -> None:
    """Entry point: one line on stderr and exit code 2 for what cannot be measured."""
    signal.signal(signal.SIGTERM, leave)  # so that the servers that were started are ended, too
    matmul.preload()  # llama.cpp in this process computes as in the server; the OpenMP settings would leak into the peers
    try:
        app()
    except BenchError as error:
        print(f"kvalet-bench: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
