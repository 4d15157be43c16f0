"""`kvalet verify`: what it says follows from what was measured, here on the fake."""

import json

import pytest
from typer.testing import CliRunner

import server.cli
from engine.context import StateKind
from engine.fake import FakeContext
from engine.selfcheck import Promise, Verification, verify
from server.verify_cli import body, show, verdict


def measured(**fake: object) -> Verification:
    return verify(FakeContext(**fake), (32, 64, 128), 600)  # type: ignore[arg-type]


def test_an_exact_machine_is_told_the_smallest_grid_of_equal_bits() -> None:
    text = verdict(measured())
    assert "very bits of a cold read at --grid 32 and above" in text


def test_where_state_does_not_come_back_no_promise_is_claimed_and_the_refusals_are_said() -> None:
    context = FakeContext(StateKind.HYBRID)
    context.refuse["load_checkpoint"] = 100
    text = verdict(verify(context, (64,), 600))
    assert "No grid that was tried keeps a promise" in text
    assert "told to refuse" in text


def test_the_json_has_every_trial_and_is_json() -> None:
    found = json.loads(json.dumps(body("m", measured())))
    assert [grid["grid"] for grid in found["grids"]] == [32, 64, 128]
    assert {"rollback", "restore", "restore of a prefix"} <= {trial["way"] for trial in found["grids"][0]["trials"]}
    assert found["bits_from_grid"] == 32


def test_the_table_names_each_grid(capsys: pytest.CaptureFixture[str]) -> None:
    show("m", measured())
    shown = capsys.readouterr().out
    assert all(str(grid) in shown for grid in (32, 64, 128))
    assert Promise.BITS.value in shown


@pytest.mark.model
def test_the_embedded_model_keeps_bits_at_the_default_grid() -> None:
    done = CliRunner().invoke(server.cli.app, ["verify", "--json", "--grid", "64", "--tokens", "300", "--threads", "1"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["bits_from_grid"] == 64
