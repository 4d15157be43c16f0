"""The 4tope benchmark on a small trace that the test writes: what is counted, and that nothing is measured wrongly."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from bench import tope as bench
from bench.errors import TraceError
from bench.miniswe import history, sessions
from bench.spans import lookup_span, span_bytes
from bench.tope_traces import (
    BASELINES,
    Interval,
    cuts,
    difference,
    dropped,
    held_out,
    interval,
    last_results,
    planned,
    random_results,
    recent_tail,
    score,
    scores,
    tope,
)
from keeper.excerpt import size
from keeper.graph import build


def trace(folder: Path, name: str, replies: list[str], observations: list[str]) -> Path:
    """A session as the traces hold it, its lines out of order."""
    seen, rows = "Fix the bug in parser_core.\n", []
    for reply, observation in zip(replies, [*observations, ""], strict=True):
        rows.append({"timestamp": 1, "input": seen, "output": reply, "session_id": name})
        seen += f"\n{observation}\n"
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    reply = "THOUGHT: look\n```bash\n{}\n```"
    filler = "ordinary words and nothing else in this line\n" * 40
    for session in range(3):
        replies = [
            reply.format("ls"),
            reply.format(f"cat needle_{session}_file"),
            reply.format("echo parser_core"),
            reply.format(f"rm needle_{session}_file"),
        ]
        trace(tmp_path, f"s{session}", replies, [f"{filler}needle_{session}_file\n{filler}", filler, "nothing\n"])
    return tmp_path


def test_a_trace_is_read_as_task_steps_and_results_whatever_the_order_of_its_lines(folder: Path) -> None:
    found = history(folder / "s0.jsonl")
    assert [m.role for m in found] == ["user", "assistant", "tool", "assistant", "tool", "assistant", "tool", "assistant"]
    assert found[1].tool_calls[0].parsed() == {"command": "ls"}
    assert "needle_0_file" in found[2].text


@pytest.mark.parametrize("text", ["", "no json", '{"input": "x"}', "[1, 2]"])
def test_what_is_no_trace_says_which_file_and_why(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match=r"bad\.jsonl"):
        sessions(tmp_path)


def test_a_folder_without_traces_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no"):
        sessions(tmp_path)


def test_what_is_needed_came_from_a_result_and_is_used_by_a_later_step(folder: Path) -> None:
    found = cuts("s0", history(folder / "s0.jsonl"))
    assert [(len(cut.history), cut.needed) for cut in found] == [(n, {"needle_0_file"}) for n in (3, 5, 7)]


def test_words_of_the_task_are_always_in_view_and_do_not_count(folder: Path) -> None:
    assert all("parser_core" not in cut.needed for cut in cuts("s0", history(folder / "s0.jsonl")))


def test_a_token_deep_in_an_old_result_is_kept_by_4tope_and_lost_by_the_tail(folder: Path) -> None:
    last = cuts("s0", history(folder / "s0.jsonl"))[-1]
    assert score(last, tope, 500) == 1.0
    assert score(last, recent_tail, 500) == 0.0
    assert score(last, last_results, 500) == 0.0


def test_no_choice_takes_more_than_its_allowance(folder: Path) -> None:
    for cut in cuts("s0", history(folder / "s0.jsonl")):
        for choice in (tope, *BASELINES.values()):
            assert all(size(choice(cut.history, allowance)) <= allowance for allowance in (0, 3, 80, 900, 9_000))
    with pytest.raises(ValueError, match="a choice took"):
        score(cut, lambda history, allowance: "x" * (allowance + 1), 10)


def test_random_results_are_the_same_every_time(folder: Path) -> None:
    found = history(folder / "s0.jsonl")
    assert random_results(found, 700) == random_results(found, 700)


def test_an_interval_holds_its_mean_and_is_the_same_for_the_same_seed() -> None:
    by_session = {"a": [0.0, 1.0, 1.0], "b": [0.5, 0.5], "c": [1.0]}
    found = interval(by_session, seed=3)
    assert found == interval(by_session, seed=3)
    assert found.mean == pytest.approx(4 / 6)
    assert found.low < found.mean < found.high
    assert interval({"a": [1.0, 1.0]}, 1) == Interval(1.0, 1.0, 1.0)


def test_a_difference_is_paired() -> None:
    assert difference({"a": [1.0, 0.5]}, {"a": [0.5, 0.0]}, 1) == Interval(0.5, 0.5, 0.5)


def test_held_out_scores_every_cut_once(folder: Path) -> None:
    found = [cut for name, messages in sessions(folder).items() for cut in cuts(name, messages)]
    assert {name: len(values) for name, values in held_out(found, 500).items()} == {
        name: len(values) for name, values in scores(found, tope, 500).items()
    }


def test_an_edit_stays_within_its_limit_and_reads_again_only_what_stands_behind_the_resume_point(folder: Path) -> None:
    for cut in cuts("s0", history(folder / "s0.jsonl"))[1:]:
        for way in (planned, dropped):
            edit = way(cut, 0.75)
            assert 0 <= edit.share <= 1
            assert edit.reread <= edit.tokens


def test_the_synthetic_span_is_the_papers_shape_and_size() -> None:
    span = lookup_span(501)
    graph = build(span)
    assert (len(span), sum(map(len, graph.older)), len(graph.protected_ids())) == (501, 750, 250)
    assert 0.75 < span_bytes(span) / 79_370 < 1.25


def test_the_growth_exponent_of_a_straight_line_is_one_and_of_a_square_two() -> None:
    sizes = (1_000, 10_000, 100_000)
    for power in (1, 2):
        assert bench.growth(sizes, [float(n) ** power for n in sizes]) == pytest.approx(power)


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(bench.command)
    return CliRunner().invoke(app, list(arguments))


def test_the_command_prints_and_writes_all_numbers(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.tope_traces.RESAMPLES", 20)
    monkeypatch.setattr(bench, "ALLOWANCES", (500,))
    out = tmp_path / "out.json"
    done = invoke(str(folder), "--largest", "101", "--repeats", "1", "--json", str(out))
    assert done.exit_code == 0, done.output
    assert "3 sessions, 9 cuts" in done.output
    found = json.loads(out.read_text())
    assert [row["messages"] for row in found["rows"]] == [21, 101]
    baselines = next(rows for title, rows in found.items() if title.startswith("baselines"))
    assert [row["choice"] for row in baselines] == ["4tope", *BASELINES]
    assert np.isfinite(baselines[0]["share"]).all()


def test_the_command_without_traces_measures_speed_alone() -> None:
    done = invoke("--largest", "21", "--repeats", "1")
    assert done.exit_code == 0, done.output
    assert "baselines" not in done.output


def test_the_command_refuses_a_folder_without_traces(tmp_path: Path) -> None:
    assert isinstance(invoke(str(tmp_path), "--largest", "21").exception, TraceError)
