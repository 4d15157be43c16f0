"""The command `kvalet`. Options of `serve` are made from server/config.py, so that TOML and command line cannot differ."""

import inspect
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from engine.errors import EngineError
from engine.probe import prepare_environment
from server import cache_cli, keeper_cli, verify_cli
from server.config import ConfigError, Settings, load

HELP = "A local model server that never reads twice what it has already read."
SERVE = """Serve MODEL over an OpenAI-compatible API.

What was read once is kept: attention blocks and checkpoints of the running state, in RAM (--cache-ram) and on disk
(--cache-disk). Change something in the middle of a conversation and only what follows the nearest checkpoint is read again;
every reply says so, in its `kvalet` object.

Examples: `kvalet serve` (the embedded model), `kvalet serve qwen.gguf --gpu-layers -1 --cache-ram 8GiB --parallel 2`,
`kvalet serve --config kvalet.toml` (the same names as here: cache_ram = "8GiB").
"""

app = typer.Typer(help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown")
REFUSED: Any = typer.BadParameter.__base__  # the UsageError of all that typer refuses, which it does not export


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvalet {metadata.version('kvalet')}")
        raise typer.Exit


@app.callback()
def kvalet(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Global options."""


def parameter(name: str) -> inspect.Parameter:
    """The command-line parameter of one field of Settings; unset is None, so that the TOML file can speak."""
    field = Settings.model_fields[name]
    extra = dict(field.json_schema_extra) if isinstance(field.json_schema_extra, dict) else {}
    help_text = f"{field.description} {default_text(name)}".strip()
    common: dict[str, Any] = {
        "help": help_text,
        "rich_help_panel": extra["panel"],
        "metavar": extra.get("metavar"),
        "show_default": False,
    }
    if name == "model":
        info: Any = typer.Argument(**common)
    else:
        flag = name.replace("_", "-")
        names = f"--{flag}/--no-{flag}" if field.annotation is bool else f"--{flag}"
        info = typer.Option(names, envvar="KVALET_API_KEY" if name == "api_key" else None, show_envvar=False, **common)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[cli_type(name), info])


def default_text(name: str) -> str:
    default = Settings.model_fields[name].default
    if default is None or default == ():
        return ""
    return f"Default: {'on' if default is True else 'off' if default is False else default}."


def cli_type(name: str) -> Any:
    """What typer parses a field as: sizes stay text, tuples are options that repeat."""
    annotation: Any = Settings.model_fields[name].annotation
    if isinstance(Settings.model_fields[name].default, str) and get_origin(annotation) is not Literal:
        return str | None
    if get_origin(annotation) is tuple:
        return list[get_args(annotation)[0]] | None  # type: ignore[misc]
    return annotation | None


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command every field of Settings as an option, after its own parameters."""
    own = [p for p in inspect.signature(command).parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    made = [parameter(name) for name in Settings.model_fields]
    command.__signature__ = inspect.Signature([*own, *made])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in (*own, *made)}
    return command


@app.command(help=SERVE)
@with_settings
def serve(
    *,
    config: Annotated[Path | None, typer.Option("--config", help="A TOML file with any of these options.")] = None,
    **given: Any,
) -> None:
    settings = load({name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}, config)
    from server.listen import run  # not with this module, so that --help is quick

    run(settings)


keeper_cli.add_to(app)
app.add_typer(cache_cli.app, name="cache")
app.command("verify")(verify_cli.command)


def main() -> None:
    """Entry point. A wrong option ends with one line on stderr and code 2, a model that cannot be served with code 1."""
    prepare_environment()  # OpenMP reads its waiting policy when llama.cpp is loaded
    sys.argv = keeper_cli.with_default_strategy(sys.argv)
    try:
        sys.exit(app(standalone_mode=False))  # errors reach us, where typer would draw a box of many lines
    except REFUSED as error:
        refuse(error)
    except typer.Abort:
        fail("stopped", 1)
    except ConfigError as error:
        fail(str(error), 2)
    except EngineError as error:
        fail(str(error), 1)


def refuse(error: Any) -> None:
    """An option that typer refuses; where its text is empty, the help was asked for and has been shown."""
    if message := " ".join(error.format_message().split()):
        fail(f"{message} (see {error.ctx.command_path} --help)" if error.ctx else message, error.exit_code)
    sys.exit(error.exit_code)


def fail(message: str, code: int) -> None:
    print(f"kvalet: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)
