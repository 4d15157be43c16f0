"""The command line: every option is there with its help, values reach Settings, and wrong ones end with one line."""

import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import bench.cli
import server.cli as cli
import server.listen
from engine.errors import ModelError
from server.config import ConfigError, Settings
from server.listen import bind
from tests.server.serving import runtime

RUN = CliRunner()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What `serve` was about to run with."""
    seen: list[Settings] = []
    monkeypatch.setattr(server.listen, "run", seen.append)
    return seen


def test_help_shows_every_option_with_its_text() -> None:
    shown = RUN.invoke(cli.app, ["serve", "--help"], env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"}).output
    for name in Settings.model_fields:
        assert name == "model" or "--" + name.replace("_", "-") in shown, name


def test_options_reach_the_settings(served: list[Settings]) -> None:
    args = [
        "serve",
        "m.gguf",
        "--cache-ram",
        "1GiB",
        "--no-mmap",
        "--alias",
        "a",
        "--alias",
        "b",
        "--exact",
        "strict",
        "--port",
        "0",
    ]
    assert RUN.invoke(cli.app, args).exit_code == 0
    got = served[0]
    assert (got.model, got.cache_ram, got.mmap, got.alias, got.exact, got.port) == (
        "m.gguf",
        2**30,
        False,
        ("a", "b"),
        "strict",
        0,
    )


def test_a_toml_file_gives_what_the_command_line_does_not(served: list[Settings], tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text('model = "x.gguf"\nparallel = 4\nmmap = false\n')
    RUN.invoke(cli.app, ["serve", "--config", str(file), "--parallel", "2"])
    assert (served[0].model, served[0].parallel, served[0].mmap) == ("x.gguf", 2, False)


def test_the_key_may_come_from_the_environment(served: list[Settings]) -> None:
    RUN.invoke(cli.app, ["serve"], env={"KVALET_API_KEY": "k"})
    assert served[0].api_key == "k"


def test_the_version_is_printed() -> None:
    assert RUN.invoke(cli.app, ["--version"]).output.startswith("kvalet ")


@pytest.mark.parametrize(
    ("error", "code", "says"), [(ConfigError("--port: no"), 2, "--port: no"), (ModelError("no such file"), 1, "no such file")]
)
def test_what_cannot_be_served_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int, says: str
) -> None:
    def refuse(_: Any) -> None:
        raise error

    monkeypatch.setattr(server.listen, "run", refuse)
    monkeypatch.setattr(sys, "argv", ["kvalet", "serve"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    assert capsys.readouterr().err == f"kvalet: {says}\n"


@pytest.mark.parametrize(
    ("entry", "name"), [(cli.main, "kvalet serve"), (bench.cli.main, "kvalet-bench speed")], ids=["kvalet", "kvalet-bench"]
)
@pytest.mark.parametrize(
    ("given", "says"), [(["--threads", "abc"], "Invalid value for '--threads'"), (["--nope"], "No such option: --nope")]
)
def test_what_typer_refuses_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], entry: Any, name: str, given: list[str], says: str
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", [*name.split(), *given])
    with pytest.raises(SystemExit) as ended:
        entry()
    text = capsys.readouterr().err
    assert (ended.value.code, text.count("\n")) == (2, 1), text
    assert text.startswith(f"{name.split()[0]}: {says}") and f"(see {name} --help)" in text


def test_without_arguments_the_help_alone_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["kvalet"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr()
    assert ended.value.code == 2 and "Usage: kvalet" in shown.out and not shown.err.strip()


def test_a_port_in_use_is_a_clear_error_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"cannot listen on http://127\.0\.0\.1:\d+: .*in use; choose another with --port"):
            bind("127.0.0.1", taken.getsockname()[1])


def test_a_server_that_refuses_its_options_never_says_it_is_ready(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(server.listen, "build", lambda _: runtime(keeper="sliding", archive=tmp_path))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(ConfigError, match="--keeper"):
        server.listen.run(Settings(port=0))
    assert capsys.readouterr().out == ""


def test_verify_refuses_a_grid_of_nothing() -> None:
    done = RUN.invoke(cli.app, ["verify", "--grid", "0"])
    assert done.exit_code == 2 and "--grid" in done.output


def test_verify_refuses_a_grid_that_its_prompt_never_reaches() -> None:
    with pytest.raises(ConfigError, match="--tokens"):
        RUN.invoke(cli.app, ["verify", "--grid", "256", "--tokens", "100"], catch_exceptions=False)
