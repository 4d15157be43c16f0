"""The command `kvalet-bench`: every command prints a table, writes JSON with --json and a picture with --plot."""

import signal
import sys
from importlib import import_module
from importlib.util import find_spec
from types import FrameType
from typing import Any

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
REFUSED: Any = typer.BadParameter.__base__  # the UsageError of all that typer refuses, which it does not export
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
        sys.exit(app(standalone_mode=False))  # errors reach us, where typer would draw a box of many lines
    except REFUSED as error:  # without a text it is the help that was asked for, and it has been shown
        text = " ".join(error.format_message().split())
        fail(f"{text} (see {error.ctx.command_path} --help)" if text and error.ctx else text)
    except typer.Abort:
        fail("stopped")
    except BenchError as error:
        fail(str(error))


def fail(message: str) -> None:
    if message:
        print(f"kvalet-bench: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(2)
