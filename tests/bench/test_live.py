"""kvalet-bench rollback and exact on the embedded model, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench import cli, exact, rollback
from bench.errors import BadOption


def rows(*arguments: str, out: Path) -> list[dict[str, Any]]:
    result = CliRunner().invoke(cli.app, [*arguments, "--json", str(out)])
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(out.read_text("utf-8"))["rows"]
    return found


@pytest.mark.model
def test_a_rollback_reads_the_tail_and_at_most_one_interval_more_from_ram_and_from_disk(tmp_path: Path) -> None:
    found = rows("rollback", "--quick", "--threads", "1", out=tmp_path / "r.json")
    by_way = {way: [row for row in found if row["way"] == way] for way in ("cold", "append", "RAM", "disk")}
    assert by_way["cold"][0]["read"] == 768
    assert by_way["append"][0]["read"] <= 2
    for way in ("RAM", "disk"):
        assert [row["distance"] for row in by_way[way]] == [64, 400]
        assert all(row["distance"] <= row["read"] <= row["distance"] + 256 for row in by_way[way])


@pytest.mark.model
def test_the_audit_finds_equal_bits_at_the_default_grid_and_says_which_model_is_not_there(tmp_path: Path) -> None:
    found = rows("exact", "--quick", "--threads", "1", out=tmp_path / "e.json")
    assert [(row["grid"], row["promise"], row["difference"]) for row in found] == [(64, "equal bits", 0.0)]
    result = CliRunner().invoke(cli.app, ["exact", "--quick", "--model", "/nowhere/x.gguf"])
    assert result.exit_code == 0 and "is skipped" in result.output


def test_an_unknown_strategy_is_refused_by_name() -> None:
    with pytest.raises(BadOption, match="magic: must be one of adaptive, anchors"):
        rollback.command(strategy=["magic"])


def test_the_commands_explain_themselves() -> None:
    for name in ("hitrate", "rollback", "exact", "peers", "speed"):
        result = CliRunner().invoke(cli.app, [name, "--help"])
        assert result.exit_code == 0 and "--json" in result.output and "--quick" in result.output
    assert exact.DEFAULT_MODELS[0] == "synthetic:tiny"
