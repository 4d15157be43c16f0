"""kvalet-bench hitrate: formats in, one clear line for bad input, and numbers that can be checked by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench import cli, made_up
from bench.errors import BadOption, BenchError, TraceError
from bench.models import parse_size
from bench.replay import Opened, Plan, Runner, optima, replay
from bench.traces import Reading, open_trace, trace_files
from kvcache.budgeted import Sizes
from kvcache.simulate import Turn


def write(path: Path, *records: object) -> Path:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records) + "\n", "utf-8")
    return path


def session(folder: Path, name: str = "s", **more: Any) -> Path:
    """Three prompts: 3 blocks, an append to 5, and a return to the first 2."""
    requests = [
        {"t": 0.0, "in": 200, "out": 10, "hash_ids": [1, 2, 3]},
        {"t": 5.0, "in": 330, "out": 10, "hash_ids": [1, 2, 3, 4, 5]},
        {"t": 9.0, "in": 200, "out": 10, "hash_ids": [1, 2, 9]},
    ]
    body = {"id": name, "block_size": 64, "tool_tokens": 64, "system_tokens": 64, "requests": requests, **more}
    return write(folder / f"{name}.json", body)


def turns(path: Path, *, skip: bool = False) -> list[Turn]:
    return list(open_trace(path, 7, Reading(skip)).turns)


def run(*arguments: str) -> tuple[int, str]:
    """The exit code and all output of a command, as the entry point gives them."""
    result = CliRunner().invoke(cli.app, list(arguments))
    if isinstance(result.exception, BenchError):
        return 2, str(result.exception)
    return result.exit_code, result.output


def test_a_session_file_gives_turns_with_the_ends_of_tools_and_system_as_marks(tmp_path: Path) -> None:
    first, second, third = turns(session(tmp_path))
    assert (first.length, len(first.ids), first.marks) == (200, 3, (("tools_end", 64), ("system_end", 128)))
    assert second.ids[:3] == first.ids and third.ids[:2] == first.ids[:2] and third.ids[2] != first.ids[2]
    assert second.time == 5.0 and second.conversation == "s"


def test_sub_agents_are_conversations_of_their_own(tmp_path: Path) -> None:
    nested = {"type": "subagent", "requests": [{"t": 1.0, "in": 70, "out": 1, "hash_ids": [50]}]}
    path = session(tmp_path, requests=[{"t": 0.0, "in": 70, "out": 1, "hash_ids": [1]}, nested])
    assert [turn.conversation for turn in turns(path)] == ["s", "s/1"]


def test_a_block_that_is_not_whole_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", {"timestamp": 3000, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]})
    (turn,) = turns(path)
    assert (len(turn.ids), turn.time, turn.generated) == (1, 3.0, 5)


def test_full_text_is_cut_into_blocks_whose_ids_agree_as_far_as_the_texts_do(tmp_path: Path) -> None:
    texts = ("a" * 600, "a" * 256 + "b" * 600)
    lines = [{"timestamp": i, "input": text, "output": "x" * 40, "session_id": "q"} for i, text in enumerate(texts)]
    one, two = turns(write(tmp_path / "l.jsonl", *lines))
    assert (one.length, len(one.ids), one.generated) == (150, 2, 10)
    assert one.ids[0] == two.ids[0] and one.ids[1] != two.ids[1]


def test_local_ids_of_two_files_never_meet(tmp_path: Path) -> None:
    path = session(tmp_path)
    ids = [{id for turn in open_trace(path, number, Reading()).turns for id in turn.ids} for number in (0, 1)]
    assert not ids[0] & ids[1]


@pytest.mark.parametrize(
    ("name", "lines", "told"),
    [
        (
            "a.jsonl",
            [{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}, "{broken"],
            ":2: no JSON object",
        ),
        (
            "b.jsonl",
            [{"timestamp": 0, "input_length": "x", "output_length": 1, "hash_ids": [1]}],
            ":1: input_length must be a count",
        ),
        ("c.jsonl", [{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": 4}], ":1: hash_ids must be a list"),
        ("d.jsonl", [{"prompt": "hello"}], ":1: no known trace format"),
        ("e.jsonl", [[1, 2]], ":1: no JSON object: a list instead"),
        ("f.json", ["{"], "no JSON object"),
        ("g.jsonl", [""], "the trace is empty"),
        ("h.json", [{"requests": [], "block_size": 0}], "block_size must be a positive number"),
        ("i.json", [{"requests": [{"in": 3}], "block_size": 64}], "'tool_tokens' is missing"),
    ],
)
def test_a_broken_or_foreign_trace_is_named_by_file_line_and_reason(
    tmp_path: Path, name: str, lines: list[Any], told: str
) -> None:
    path = write(tmp_path / name, *lines)
    code, output = run("hitrate", str(path))
    assert code == 2 and told in output and str(path) in output


def test_with_skip_bad_the_rest_still_counts_and_the_reason_is_kept(tmp_path: Path) -> None:
    good = {"timestamp": 0, "input_length": 1100, "output_length": 1, "hash_ids": [1, 2, 3]}
    path = write(tmp_path / "m.jsonl", good, "{broken", {"input_length": 3}, good)
    reading = Reading(allowed=True)
    assert len(list(open_trace(path, 0, reading).turns)) == 2
    assert reading.count == 2 and "m.jsonl:2" in reading.first[0]
    out = tmp_path / "out.json"
    assert run("hitrate", str(path), "--skip-bad", "--json", str(out))[0] == 0
    assert json.loads(out.read_text("utf-8"))["skipped"] == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["hitrate"], "name at least one trace"),
        (["hitrate", "/nowhere/at/all"], "no trace is there"),
        (["hitrate", "--quick", "--evict", "magic"], "unknown policy 'magic'; known: adaptive"),
        (["hitrate", "--quick", "--placement", "magic"], "unknown policy 'magic'"),
        (["hitrate", "--quick", "--keep", "0"], "a budget of 0 holds nothing"),
        (["hitrate", "--quick", "--budget", "0"], "a budget of 0 holds nothing"),
        (["hitrate", "--quick", "--budget", "lots"], "is no size"),
        (["hitrate", "--quick", "--as", "gpt-9"], "must be one of"),
        (["hitrate", "--quick", "--learn", "never"], "must be one of"),
        (["hitrate", "--quick", "--json", "/nowhere/x.json"], "No such file"),
        (["hitrate", "--url", "http://127.0.0.1:9"], "127.0.0.1:9"),
        (["hitrate", "--url", "not a url"], "not a url"),
    ],
)
def test_what_cannot_be_measured_is_one_clear_line_and_exit_code_2(arguments: list[str], told: str) -> None:
    code, output = run(*arguments)
    assert code == 2 and told in output and "\n" not in output.strip()


def test_the_entry_point_prints_the_line_and_leaves_with_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["kvalet-bench", "hitrate"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("kvalet-bench: TRACES: name at least one")


def test_a_replay_counts_what_can_be_counted_by_hand(tmp_path: Path) -> None:
    opened = Opened([session(tmp_path)], False, 1, 0, Reading())
    runner = Runner(Plan("newest", "newest", 1, None, ""), 0, Sizes(10, 1000))
    replay(opened, [runner])
    sums = runner.tally.all
    assert (sums.requests, sums.tokens, sums.known, sums.resumed) == (3, 730, 192 + 128, 192)
    assert (sums.reread, sums.unavoidable) == (128, 410)
    assert runner.tally.peak_bytes == 1000 and runner.tally.blocks == 11
    assert runner.tally.worst[0][1].reread == 128
    assert optima(opened, [1, 2]) == {1: (64, 410, True), 2: (0, 410, True)}


def test_one_file_after_another_is_one_stretch_of_time(tmp_path: Path) -> None:
    paths = [session(tmp_path, name) for name in ("a", "b")]
    times = [turn.time for _, _, turn in Opened(paths, False, 1, 0, Reading()).turns()]
    assert times == [0.0, 5.0, 9.0, 9.0, 14.0, 18.0]


def test_without_a_terminal_progress_is_told_in_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.replay.TELL_EVERY", 0.0)
    runner = Runner(Plan("newest", "newest", 1, None, ""), 0, Sizes(10, 1000))
    replay(Opened([session(tmp_path)], False, 1, 0, Reading()), [runner])
    assert "replaying: 100% of the traces read" in capsys.readouterr().err


def test_a_byte_budget_is_never_exceeded_and_more_of_it_never_hurts_lru(tmp_path: Path) -> None:
    reread = []
    for budget in (60_000, 240_000, 10_000_000):
        runner = Runner(Plan("newest+branches", "lru", None, budget, ""), 0, Sizes(10, 1000))
        replay(Opened([], True, 3, 0, Reading()), [runner])
        assert 0 < runner.tally.peak_bytes <= budget
        reread.append(runner.tally.all.reread)
    assert reread == sorted(reread, reverse=True)


def test_held_out_learning_judges_each_half_by_the_other_and_beats_the_fixed_rules(tmp_path: Path) -> None:
    plans = [Plan("adaptive", "adaptive", 8, None, "held-out"), Plan("interval+newest+before-end+branches", "lru", 8, None, "")]
    runners = [Runner(plan, 2048, Sizes(1, 1)) for plan in plans]
    replay(Opened([], True, 1, 0, Reading()), runners)
    adaptive, lru = (runner.tally.all.reread for runner in runners)
    assert adaptive < 0.2 * lru


def test_the_quick_command_writes_table_json_and_picture(tmp_path: Path) -> None:
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    code, output = run("hitrate", "--quick", "--keep", "4", "--json", str(out), "--plot", str(picture))
    assert code == 0 and "re-read" in output
    report = json.loads(out.read_text("utf-8"))
    assert {"commit", "command", "cpu"} <= set(report["run"])
    assert all(row["optimum"] <= row["reread"] and row["hit"] <= row["ceiling"] for row in report["rows"])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_made_up_sessions_are_the_same_for_the_same_seed_and_chained() -> None:
    assert list(made_up.sessions(2, 9, 4)) == list(made_up.sessions(2, 9, 4))
    parents: dict[object, object] = {}
    for turn in made_up.sessions(3, 30, 4):
        for before, id in zip([None, *turn.ids], turn.ids, strict=False):
            assert parents.setdefault(id, before) == before


@pytest.mark.parametrize(("text", "nbytes"), [("4GiB", 4 << 30), ("512M", 512 << 20), ("1000", 1000), ("1.5k", 1536)])
def test_sizes_are_read_as_people_write_them(text: str, nbytes: int) -> None:
    assert parse_size(text, "--budget") == nbytes


def test_errors_of_the_bench_carry_their_data(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        trace_files([tmp_path / "none"])
    assert caught.value.path == tmp_path / "none"
    with pytest.raises(BadOption) as wrong:
        parse_size("0", "--budget")
    assert wrong.value.option == "--budget"
