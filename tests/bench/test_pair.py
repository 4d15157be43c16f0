"""kvalet-bench pair on the tiny model: its table, and what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import cli
from bench.errors import BadOption
from bench.pair_talk import literally, recorded_steps, steps, trace_pauses


@pytest.mark.e2e
@pytest.mark.model
def test_after_a_pause_two_engines_read_only_the_new_message(tmp_path: Path) -> None:
    out, plot = tmp_path / "pair.json", tmp_path / "pair.png"
    arguments = ["pair", "--quick", "--scenario", "thinking chat", "--json", str(out), "--plot", str(plot)]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(out.read_text("utf-8"))["rows"]
    assert (row["scenario"], row["turns"], row["only_new_two"]) == ("thinking chat", 3, 1.0)
    assert row["read_two"] < row["read_one"]
    assert plot.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--scenario", "sleep"], "thinking chat"), (["--pauses", "EMPTY"], "nobody pauses")]
)
def test_what_cannot_be_played_is_one_clear_error(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "empty").write_text("{}", encoding="utf-8")
    given = [str(tmp_path / "empty") if one == "EMPTY" else one for one in arguments]
    result = CliRunner().invoke(cli.app, ["pair", "--quick", *given])
    assert isinstance(result.exception, BadOption)
    assert words in str(result.exception)


def test_pauses_are_those_of_people_in_a_session(tmp_path: Path) -> None:
    requests = [{"input_types": ["text"], "think_time": 12.5}, {"input_types": ["tool_result"], "think_time": 1.0}]
    (tmp_path / "s.json").write_text(json.dumps({"requests": requests}), encoding="utf-8")
    assert trace_pauses(tmp_path / "s.json") == (12.5,)
    assert [step.pause for step in steps(3, 1, pauses=(1.0, 2.0))] == [1.0, 2.0, 1.0]
    assert steps(3, 1) == steps(3, 1) != steps(3, 2)


def test_a_recorded_chat_is_played_with_its_own_answers(tmp_path: Path) -> None:
    calls = [("Fix it.", "Look.\n```bash\nls\n```"), ("Fix it.\na.py", 'Say "done".')]
    for name in ("one", "two"):
        lines = [json.dumps({"input": seen, "output": said}) for seen, said in calls]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    script = recorded_steps(tmp_path, 2)
    assert [(step.words, step.recorded, step.first) for step in script[:2]] == [
        ("Fix it.", calls[0][1], True),
        ("a.py", calls[1][1], False),
    ]
    assert [step.first for step in script] == [True, False, True, False]
    assert len(recorded_steps(tmp_path, 1)) == 2
    assert literally(calls[1][1]) == 'root ::= "Say \\"done\\"."'
