"""Options: one table for the command line and TOML, and complaints that name the option."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.config import ConfigError, Settings, load
from server.sizes import parse_size, show_size


def test_the_defaults_are_valid_and_give_sizes_in_bytes() -> None:
    settings = load({})
    assert settings.cache_ram == 2 * 2**30
    assert settings.port == 8080


def test_the_command_line_wins_over_toml_and_toml_over_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text('port = 9000\nctx = 4096\ncache-ram = "512MiB"\nalias = ["a", "b"]\n')
    settings = load({"port": 9001, "ctx": None}, file)
    assert (settings.port, settings.ctx, settings.cache_ram, settings.alias) == (9001, 4096, 512 * 2**20, ("a", "b"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"port": 70000}, "--port"),
        ({"cache_ram": "12 parsecs"}, "--cache-ram"),
        ({"cache_ram": -1}, "--cache-ram"),
        ({"exact": "maybe"}, "--exact"),
        ({"batch": 100}, "--batch 100 is not a multiple of --grid 64"),
        ({"flash_attn": False, "cache_type_v": "q8_0"}, "needs --flash-attn"),
        ({"parallel": 0}, "--parallel"),
    ],
)
def test_a_bad_value_is_refused_with_the_option_named(given: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(given)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot = 1", "--prot: there is no such option"),
        ("port = ", "not TOML"),
        ('port = "x"', "--port"),
        ("port = 1.5", "--port"),
    ],
)
def test_a_bad_toml_file_is_refused_with_a_reason(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "k.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load({}, file)


def test_a_missing_toml_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config .*gone\.toml"):
        load({}, tmp_path / "gone.toml")


def test_every_option_has_a_help_text_and_a_panel() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description and isinstance(field.json_schema_extra, dict) and field.json_schema_extra["panel"], name


@pytest.mark.parametrize(
    ("text", "nbytes"), [("4GiB", 4 * 2**30), ("4g", 4 * 2**30), ("1.5 MiB", 3 * 2**19), ("2GB", 2 * 10**9), ("17", 17), (9, 9)]
)
def test_sizes_are_read_as_people_write_them(text: object, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 2", "1e9", True, None, 1.5])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="a size is"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=2**45))
def test_a_shown_size_reads_back_to_within_its_four_digits(nbytes: int) -> None:
    assert parse_size(show_size(nbytes)) == pytest.approx(nbytes, rel=1e-3)


@pytest.mark.parametrize("given", [{"window": 4096}, {"archive": "x"}, {"thinking_effort": "low"}, {"tool_tree": True}])
def test_an_option_of_the_keeper_without_the_keeper_is_refused_rather_than_ignored(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="needs --keeper"):
        load(given)
    load({**given, "keeper": "in_place"})


def test_a_strategy_that_there_is_not_is_refused_before_a_model_is_loaded() -> None:
    with pytest.raises(ConfigError, match=r"--keeper bogus: .*in_place"):
        load({"keeper": "bogus"})


@pytest.mark.parametrize("name", ["cache_dir", "archive", "record", "chat_template"])
def test_an_empty_path_is_refused_and_not_the_working_folder(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}"):
        load({name: ""})


def test_a_server_that_would_take_no_body_is_refused() -> None:
    with pytest.raises(ConfigError, match="--max-body"):
        load({"max_body": 0})
