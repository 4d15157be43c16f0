"""`kvalet keeper …` and `kvalet proxy`: what they print, what they refuse, and a proxy killed with -9."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from keeper.archive import Archive
from keeper.config import Thinking
from keeper.library import verify
from keeper.message import History
from keeper.notes import Entry, Notes
from keeper.noting import MARK
from keeper.window import Cut
from server.cli import app
from server.config import ConfigError
from server.keeper_cli import checked_url, key_from, proxy_config, with_default_strategy
from server.proxy_run import run
from tests.keeper.helpers import a, called, s, u
from tests.keeper.reader import Reader
from tests.keeper.stories import Stream
from tests.keeper.upstream import Upstream, reading, upstream

HISTORY = [
    s(),
    u("Item 1: doma86 = 342 by Ada.\nIt was Monday."),
    a("Noted."),
    u("Item 2: rain."),
    called("1", "read", '{"path": "x"}'),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    archive = Archive(tmp_path)
    track = archive.enter(History(HISTORY), "ticket-7")
    for place, value in ((2, "342"), (4, "347")):
        notes = Notes(("be brief",), (Entry("doma86", value, "Ada"),))
        archive.put(track, MARK, place, {**Cut(notes, 1, place).as_json(), "taken": None})
    archive.close()
    return tmp_path


def kvalet(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, ConfigError), result.output
    return str(result.exception)


def test_ls_lists_conversations(folder: Path) -> None:
    shown = kvalet("keeper", "ls", "--archive", str(folder))
    assert "ticket-7" in shown and "Item 1: doma86 = 342 by Ada. It was Monday." in shown


def test_show_prints_messages_word_for_word_newest_last(folder: Path) -> None:
    shown = kvalet("keeper", "show", "ticket-7", "--archive", str(folder), "--last", "0")
    assert "--- 1 user\nItem 1: doma86 = 342 by Ada.\nIt was Monday.\n" in shown
    assert shown.endswith('--- 4 assistant\nread({"path": "x"})\n')
    assert kvalet("keeper", "show", "ticket-7", "--archive", str(folder), "--last", "1").startswith("--- 4")


def test_notes_prints_the_newest_or_every_versions_changes(folder: Path) -> None:
    assert kvalet("keeper", "notes", "ticket-7", "--archive", str(folder)).splitlines()[4] == "doma86 = 347 by Ada"
    every = kvalet("keeper", "notes", "ticket-7", "--archive", str(folder), "--all")
    assert "--- after 4 messages\n-doma86 = 342 by Ada\n+doma86 = 347 by Ada" in every


def test_search_finds_as_the_model_would(folder: Path) -> None:
    found = kvalet("keeper", "search", "ticket-7", "doma86", "--archive", str(folder))
    assert found == "1 match.\n[item 1, user] Item 1: doma86 = 342 by Ada. | It was Monday.\n"
    assert kvalet("keeper", "search", "ticket-7", "doma86", "--after", "1", "--archive", str(folder)).startswith("Nothing found")


def test_export_gives_the_messages_back_as_they_came(folder: Path) -> None:
    lines = kvalet("keeper", "export", "ticket-7", "--archive", str(folder)).splitlines()
    assert [json.loads(line) for line in lines] == HISTORY


def test_verify_says_all_right_or_what_is_wrong(folder: Path) -> None:
    assert "all right" in kvalet("keeper", "verify", "--archive", str(folder))
    archive = Archive(folder)
    archive.rows("UPDATE message SET body = '{}' WHERE id = 1")
    archive.close()
    result = CliRunner().invoke(app, ["keeper", "verify", "--archive", str(folder)])
    assert result.exit_code == 1 and "message 1" in result.stdout


def test_what_is_not_there_is_said(folder: Path, tmp_path: Path) -> None:
    assert "no conversation 'nobody'" in refused("keeper", "show", "nobody", "--archive", str(folder))
    empty = tmp_path / "empty"
    assert "there is no archive" in refused("keeper", "ls", "--archive", str(empty))
    assert not empty.exists(), "looking makes nothing"
    empty.mkdir()
    (empty / "keeper.db").write_bytes(b"no database at all, and long enough to be looked at" * 9)
    assert "not a database" in refused("keeper", "ls", "--archive", str(empty))


def test_options_of_the_proxy_that_cannot_be_used_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_config("in-place", 4096, Path("x"), 0, Thinking.QUESTIONS, "").strategy == "in-place"
    assert [proxy_config("drop", 4096, None, 0, Thinking.AS_SENT, "", on).tool_tree for on in (False, True)] == [False, True]
    with pytest.raises(ConfigError, match="--keeper"):
        proxy_config("sliding", 4096, None, 0, Thinking.AS_SENT, "")
    with pytest.raises(ConfigError, match="--window"):
        proxy_config("in_place", 10, None, 0, Thinking.AS_SENT, "")
    for url in ("foo", "127.0.0.1:8000", "ftp://x", "http://", "http://x:y"):
        with pytest.raises(ConfigError, match="--upstream"):
            checked_url(url)
    checked_url("https://x/v1")
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        key_from("NO_SUCH_KEY")
    monkeypatch.setenv("NO_SUCH_KEY", "secret")
    assert key_from("NO_SUCH_KEY") == "secret" and key_from(None) is None


@pytest.mark.parametrize(
    "wrong",
    [
        ["keeper", "ls", "--limit", "-1"],
        ["keeper", "show", "x", "--last", "-2"],
        ["keeper", "search", "x", "y", "--limit", "0"],
        ["keeper", "plan", "x", "--window", "-4"],
        ["proxy", "--upstream", "http://x", "--port", "70000"],
        ["proxy", "--upstream", "http://x", "--timeout", "-1"],
        ["proxy", "--upstream", "http://x", "--notes-every", "-1"],
    ],
)
def test_numbers_out_of_range_are_refused_by_name(wrong: list[str]) -> None:
    done = CliRunner().invoke(app, wrong)
    assert done.exit_code == 2 and "Invalid value" in done.output and wrong[-2] in done.output


def test_a_proxy_whose_archive_cannot_be_written_ends_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(ConfigError, match="--archive: the archive"):
        run(
            proxy_config("in_place", 4096, tmp_path / "file", 0, Thinking.AS_SENT, ""),
            "http://127.0.0.1:1",
            None,
            1.0,
            "127.0.0.1",
            0,
            None,
        )


def test_keeper_without_a_name_means_in_place() -> None:
    assert with_default_strategy(["kvalet", "serve", "--keeper"]) == ["kvalet", "serve", "--keeper=in_place"]
    assert with_default_strategy(["kvalet", "serve", "--keeper", "--window", "9"])[2] == "--keeper=in_place"
    assert with_default_strategy(["kvalet", "serve", "--keeper", "synthetic:tiny"]) == [
        "kvalet",
        "serve",
        "--keeper=in_place",
        "synthetic:tiny",
    ]
    for given in (
        ["kvalet", "serve", "--keeper", "drop"],
        ["kvalet", "serve", "--keeper", "in-place"],
        ["kvalet", "keeper", "ls"],
    ):
        assert with_default_strategy(given) == given


# --- a real process -----------------------------------------------------------------------------------------------------


@contextmanager
def proxy(up: Upstream, folder: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    kvalet_command = str(Path(sys.executable).with_name("kvalet"))
    options = ["--upstream", up.url, "--window", "2048", "--archive", str(folder), "--port", "0"]
    process = subprocess.Popen([kvalet_command, "proxy", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = ""
        for line in process.stdout:
            if "address" in line:
                url = line.split()[1].removesuffix("/v1")
            if "archive" in line:
                break
        with httpx.Client(base_url=url, timeout=30) as client:
            for _ in range(200):
                try:
                    client.get("/keeper/conversations")
                    break
                except httpx.TransportError:
                    time.sleep(0.02)
            yield process, client
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()


@pytest.mark.e2e
def test_a_proxy_killed_with_9_has_lost_nothing_it_acknowledged_and_goes_on(tmp_path: Path) -> None:
    messages = Stream(5, 30).messages()
    history: list[dict[str, Any]] = [s("You keep the books.")]
    asked = 0
    with upstream(reading(Reader())) as up:
        for part in (messages[:7], messages[7:19], messages[19:]):
            with proxy(up, tmp_path) as (process, client):
                for message in part:
                    history.append(u(message.text))
                    body = {"model": "m", "messages": history}
                    reply = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
                    history.append(reply)
                    asked += len(message.questions)
                    assert [q.answer for q in message.questions] == (reply["content"].split("\n") if message.questions else [])
                os.kill(process.pid, signal.SIGKILL)
            archive = Archive(tmp_path)
            before = archive.rows("SELECT count(*) FROM node")[0][0]
            track = archive.enter(History(history))
            assert [m.as_dict() for m in archive.messages(track)] == history
            assert archive.rows("SELECT count(*) FROM node")[0][0] == before == len(history), "all of it was there"
            assert verify(archive).problems == ()
            archive.close()
    assert asked > 20


@pytest.mark.e2e
def test_a_proxy_ends_at_sigterm_and_says_where_it_listens(tmp_path: Path) -> None:
    with upstream(lambda _: a("x")) as up, proxy(up, tmp_path) as (process, client):
        assert client.get("/v1/models").json()["data"][0]["id"] == "scripted"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.e2e
def test_a_stream_that_outlasts_the_drain_of_a_proxy_ends_with_an_error_event(tmp_path: Path) -> None:
    """The upstream keeps its second stream waiting for longer than any client of a server that leaves may wait."""
    with upstream(lambda _: a("word " * 50)) as up, proxy(up, tmp_path) as (process, client):
        up.pause_after = 5
        ask = {"messages": [u("Tell me.")], "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=ask) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            last = [line for line in lines if line.startswith("data:")][-1]
        assert "the server is closing" in json.loads(last.removeprefix("data:"))["error"]["message"]
        assert process.wait(10) == 0
