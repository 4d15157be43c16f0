"""`kvalet proxy` and `kvalet keeper ls | show | notes | search | export | plan | verify`: commands around keeper and archive."""

import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.table import Table

from keeper.archive import Archive, Track
from keeper.config import KeeperConfig, Thinking
from keeper.dry_run import dry_run
from keeper.edit import render_plan
from keeper.errors import KeeperError
from keeper.library import Conversation, conversation, conversations, verify
from keeper.past import Past
from keeper.recall import Query, rendered
from keeper.search import Limits
from keeper.strategies.registry import make, names
from keeper.strategies.tope import MARK as EDIT_MARK
from keeper.versions import versions
from server.config import ConfigError
from server.folders import archive_folder

keeper = typer.Typer(help="Look into the keeper's archive: conversations, notes, search, export.", no_args_is_help=True)
Folder = Annotated[Path | None, typer.Option("--archive", help="The archive's folder. Default: the one `serve` and `proxy` use.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="A conversation's id, its beginning, or its session (`kvalet keeper ls`).")]


def opened(folder: Path | None) -> Archive:
    """The archive that is there; ConfigError where there is none, so that looking never makes one."""
    root = folder or archive_folder()
    if not (root / "keeper.db").is_file():
        raise ConfigError(f"--archive {root}: there is no archive (keeper.db) in this folder")
    try:
        return Archive(root)
    except KeeperError as error:
        raise ConfigError(f"--archive {root}: {error}") from error


@keeper.command("ls")
def ls(archive: Folder = None, limit: Annotated[int, typer.Option(help="How many.", min=1)] = 50) -> None:
    """The conversations, the one last changed first."""
    table = Table("id", "messages", "forked from", "session", "last", "begins", box=None)
    for one in conversations(opened(archive), limit):
        forked = f"{one.forked_from} after {one.fork}" if one.forked_from else ""
        last = datetime.fromtimestamp(one.updated).strftime("%Y-%m-%d %H:%M")
        table.add_row(one.id, str(one.messages), forked, one.session or "", last, one.title)
    Console(width=None if sys.stdout.isatty() else 200).print(table)


@keeper.command("show")
def show(
    id: Id, archive: Folder = None, last: Annotated[int, typer.Option(help="The newest messages; 0 for all.", min=0)] = 20
) -> None:
    """The messages of a conversation, word for word."""
    opened_archive = opened(archive)
    _, track = found(opened_archive, id)
    first = max(0, track.length - last) if last else 0
    for index, message in enumerate(opened_archive.messages(track, first), first):
        calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
        typer.echo("\n".join([f"--- {index} {message.role}", *([message.text] if message.text else []), *calls]))


@keeper.command("notes")
def notes(
    id: Id, archive: Folder = None, all: Annotated[bool, typer.Option("--all", help="Every version's changes.")] = False
) -> None:
    """The newest notes of a conversation, or what each version changed."""
    opened_archive = opened(archive)
    _, track = found(opened_archive, id)
    every = list(versions(opened_archive, track))
    if not every:
        typer.echo("no notes yet")
    elif not all:
        typer.echo(every[-1]["notes"])
    for version in every if all else ():
        typer.echo("\n".join([f"--- after {version['covers_messages']} messages", *version["diff"]]))


@keeper.command("search")
def search(
    id: Id,
    query: str,
    archive: Folder = None,
    before: Annotated[int | None, typer.Option(help="Only items numbered below this.")] = None,
    after: Annotated[int | None, typer.Option(help="Only items numbered above this.")] = None,
    item: Annotated[int | None, typer.Option(help="Only the item with this number.")] = None,
    limit: Annotated[int, typer.Option(help="How many matches.", min=1)] = 20,
) -> None:
    """Searches one conversation as the model would."""
    opened_archive = opened(archive)
    _, track = found(opened_archive, id)
    wanted = Query(query, Limits(before, after, item), limit)
    typer.echo(rendered(Past(opened_archive, track).search(query, wanted.limits, limit), wanted))


@keeper.command("export")
def export(id: Id, archive: Folder = None) -> None:
    """A conversation as JSON lines, one message each, oldest first."""
    opened_archive = opened(archive)
    _, track = found(opened_archive, id)
    for message in opened_archive.messages(track):
        typer.echo(json.dumps(message.as_dict(), ensure_ascii=False))


@keeper.command("plan")
def plan(
    id: Id,
    archive: Folder = None,
    window: Annotated[int, typer.Option(help="Tokens of the window to plan for.", min=256)] = 32768,
) -> None:
    """What an edit would remove, keep and make the server read again (strategy tope): the one in force, and one made now."""
    opened_archive = opened(archive)
    _, track = found(opened_archive, id)
    mark = Past(opened_archive, track).latest(EDIT_MARK)
    if mark is not None:
        typer.echo(f"in force since message {mark.place}:\n{mark.body['plan']}")
    now = render_plan(dry_run(list(opened_archive.messages(track)), window))
    typer.echo(f"now, for a window of {window:,} (tokens are bytes / 4, 1 ms each assumed):\n{now}", nl=False)


@keeper.command("verify")
def check(archive: Folder = None) -> None:
    """Derives every hash of the archive again; exit code 1 where one is wrong."""
    report = verify(opened(archive))
    typer.echo(f"{report.messages} messages at {report.nodes} places: {'all right' if not report.problems else ''}")
    for problem in report.problems:
        typer.echo(problem)
    if report.problems:
        raise typer.Exit(1)


def found(archive: Archive, id: str) -> tuple[Conversation, Track]:
    """The conversation; ConfigError where there is none."""
    try:
        return conversation(archive, id)
    except KeeperError as error:
        raise ConfigError(str(error)) from error


def proxy(
    upstream: Annotated[str, typer.Option(help="URL of an OpenAI-compatible server, such as http://127.0.0.1:8000.")],
    upstream_key_env: Annotated[str | None, typer.Option(help="Environment variable that holds the upstream's key.")] = None,
    keeper: Annotated[str, typer.Option(metavar="STRATEGY", help="How the window is managed.")] = "in_place",
    window: Annotated[int, typer.Option(help="Tokens of the live window, reply included.")] = 32768,
    archive: Folder = None,
    notes_every: Annotated[int, typer.Option(help="Take notes every so many tokens; 0: half the window.", min=0)] = 0,
    thinking: Annotated[
        Thinking, typer.Option(help="as_sent, or questions: on until a question is answered, else off.")
    ] = Thinking.AS_SENT,
    thinking_effort: Annotated[str, typer.Option(help="reasoning_effort of every call that passes.")] = "",
    tool_tree: Annotated[bool, typer.Option("--tool-tree", help="Show many tools as groups that the model opens.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the upstream's next byte.", min=0.001)] = 600.0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one, which is printed.", min=0, max=65535)] = 8081,
    api_key: Annotated[str | None, typer.Option(envvar="KVALET_API_KEY", help="Key that clients must send.")] = None,
) -> None:
    """Holds an agent's whole history behind a small window, in front of any OpenAI-compatible server.

    The agent sends everything on every call and manages nothing: point it at this address. What leaves the window is archived
    word for word, NOTES stay in view, rules are repeated next to questions, and the model can search the archive.
    """
    from server.proxy_run import run  # so that --help is quick

    checked_url(upstream)
    config = proxy_config(keeper, window, archive, notes_every, thinking, thinking_effort, tool_tree)
    run(config, upstream, key_from(upstream_key_env), timeout, host, port, api_key)


def proxy_config(
    strategy: str, window: int, archive: Path | None, notes_every: int, thinking: Thinking, effort: str, tool_tree: bool = False
) -> KeeperConfig:
    """The options as settings of the keeper; ConfigError names the option that cannot be used."""
    try:
        make(strategy)
        root = archive or archive_folder()
        return KeeperConfig(
            window,
            strategy,
            root,
            notes_every_tokens=notes_every,
            thinking=thinking,
            thinking_effort=effort,
            tool_tree=tool_tree,
        )
    except KeeperError as error:
        raise ConfigError(f"--keeper: {error}") from error
    except ValueError as error:
        raise ConfigError(f"--window: {error}") from error


def checked_url(upstream: str) -> None:
    """Raises ConfigError for what is no http URL, before the first client finds out."""
    try:
        parts = urlsplit(upstream)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"--upstream {upstream}: this is no URL such as http://127.0.0.1:8000")


def key_from(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise ConfigError(f"--upstream-key-env {variable}: this environment variable is not set")
    return os.environ[variable]


def with_default_strategy(arguments: Sequence[str]) -> list[str]:
    """`--keeper` without a name means in_place: the name is put in where none of ours follows."""
    given = list(arguments)
    known = {name.replace("_", "-") for name in names()} | set(names())
    for place in [i for i, argument in enumerate(given) if argument == "--keeper"]:
        following = given[place + 1] if place + 1 < len(given) else "--"
        if following.startswith("-") or (following not in known and (following.endswith(".gguf") or ":" in following)):
            given[place] = "--keeper=in_place"
    return given


def add_to(app: typer.Typer) -> None:
    """The commands of this module, in kvalet's own."""
    app.command()(proxy)
    app.add_typer(keeper, name="keeper")
