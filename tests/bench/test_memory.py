"""kvalet-bench memory on the shipped model and the real engine."""

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.cli import app
from bench.errors import BadOption
from bench.ledger.stream import Question
from bench.memory import curves, report
from bench.memory_run import Answer, Outcome, Settings

SETTINGS = Settings(Path("none"), 1000, 1024)


def outcome(strategy: str, seed: int, right: int, wrong: int) -> Outcome:
    question = Question("value", "noma", "noma = 12 by Ada", 30)
    answers = [Answer(question, "noma = 12 by Ada", False)] * right + [Answer(question, "noma = 13 by Ada", False)] * wrong
    return Outcome(strategy, seed, answers, batches=40, seconds=2.0)


def test_a_report_pools_the_seeds_of_a_strategy_and_shows_their_spread() -> None:
    found = report([outcome("drop", 0, 1, 3), outcome("drop", 1, 3, 1), outcome("in_place", 0, 4, 0)], SETTINGS)
    drop, in_place = found.rows
    assert (drop["strategy"], drop["right"], drop["spread"]) == ("drop", 0.5, "25–75 %")
    assert (drop["25-99"], drop["1-4"]) == (0.5, None)
    assert in_place["right"] == 1.0
    assert [run["right"] for run in found.extra["runs"]] == [1, 3, 4]


def test_a_plot_has_a_point_for_each_distance_that_was_asked_for() -> None:
    rows = curves([outcome("drop", 0, 1, 3)], SETTINGS).rows
    assert Counter(row["right answers (value and who)"] is None for row in rows) == {True: 4, False: 1}


def test_an_answer_is_right_only_as_a_whole() -> None:
    question = Question("value", "noma", "noma = 12 by Ada", 1)
    assert Answer(question, "noma = 12 by Ada\n", False).right
    assert not Answer(question, "noma = 12", False).right


def test_an_unknown_strategy_is_one_line_that_lists_the_others() -> None:
    result = CliRunner().invoke(app, ["memory", "--strategy", "none"])
    assert "no strategy is called 'none'" in str(result.exception)
    assert "in_place" in str(result.exception)


def test_full_context_of_more_than_fits_is_one_clear_error() -> None:
    result = CliRunner().invoke(app, ["memory", "--strategy", "pass_through", "--tokens", "50000"])
    assert isinstance(result.exception, BadOption)
    assert "50000" in str(result.exception)


@pytest.mark.model
def test_quick_runs_two_strategies_end_to_end_and_never_exceeds_the_window(tmp_path: Path) -> None:
    target, picture = tmp_path / "memory.json", tmp_path / "memory.png"
    arguments = ["memory", "--quick", "--threads", "1", "--json", str(target), "--plot", str(picture)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    runs = json.loads(target.read_text())["runs"]
    assert [run["strategy"] for run in runs] == ["drop", "in_place"]
    assert all(0 < run["largest_view"] <= 1024 and run["asked"] > 3 and run["failed"] == 0 for run in runs)
    assert len(runs[1]["versions"]) >= 2
    assert picture.read_bytes().startswith(b"\x89PNG")
