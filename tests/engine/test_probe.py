"""The probe: verdicts come from a child that may crash, are remembered per CPU and build, and never take the parent with them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine import probe
from engine.catalog import Found
from engine.errors import ModelError
from engine.probe import default_threads, machine_key, may_repack, prepare_environment


class Child:
    """Stands for subprocess.run: ends as told, and counts."""

    def __init__(self, ends: int | Exception) -> None:
        self.ends = ends
        self.runs = 0

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        self.runs += 1
        if isinstance(self.ends, Exception):
            raise self.ends
        return subprocess.CompletedProcess(command, self.ends, b"", b"Traceback: no such file")


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    found = Child(0)
    monkeypatch.setattr(subprocess, "run", found)
    monkeypatch.setattr(probe.catalog, "resolve", lambda name: Found(name, Path("model.gguf"), ""))
    return found


def test_a_verdict_is_tried_once_and_then_remembered(tmp_path: Path, child: Child) -> None:
    first, second = may_repack(tmp_path), may_repack(tmp_path)
    assert first.safe and second.safe and not first.remembered and second.remembered
    assert child.runs == 1


def test_a_crash_is_a_verdict_and_remembered(tmp_path: Path, child: Child) -> None:
    child.ends = -11
    assert not may_repack(tmp_path).safe
    again = may_repack(tmp_path)
    assert not again.safe and again.remembered and "signal 11" in again.reason
    assert child.runs == 1


def test_wrong_numbers_are_a_verdict_too(tmp_path: Path, child: Child) -> None:
    child.ends = 3
    assert not may_repack(tmp_path).safe
    assert may_repack(tmp_path).remembered


@pytest.mark.parametrize(
    "ends", [1, OSError("no memory"), subprocess.TimeoutExpired("python", 1)], ids=["exception", "no child", "no end"]
)
def test_a_try_that_says_nothing_is_unsafe_and_tried_again(tmp_path: Path, child: Child, ends: int | Exception) -> None:
    child.ends = ends
    assert not may_repack(tmp_path).safe
    child.ends = 0
    assert may_repack(tmp_path).safe
    assert child.runs == 2


def test_a_model_that_cannot_be_made_is_unsafe_and_not_remembered(
    tmp_path: Path, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> Found:
        raise ModelError("disk full")

    monkeypatch.setattr(probe.catalog, "resolve", fail)
    assert "disk full" in may_repack(tmp_path).reason
    assert not list(tmp_path.iterdir())


def test_another_machine_or_build_is_tried_anew(tmp_path: Path, child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    may_repack(tmp_path)
    here = machine_key()
    monkeypatch.setattr(probe, "machine_key", lambda: "another")
    child.ends = -4
    assert not may_repack(tmp_path).safe
    assert json.loads((tmp_path / "probe.json").read_text()).keys() == {here, "another"}


@pytest.mark.parametrize("content", ["", "[]", "{", '{"KEY": 3}', '{"KEY": {"safe": "yes", "reason": 1}}'])
def test_a_broken_memory_is_replaced(tmp_path: Path, child: Child, content: str) -> None:
    (tmp_path / "probe.json").write_text(content.replace("KEY", machine_key()))
    assert may_repack(tmp_path).safe and child.runs == 1
    assert may_repack(tmp_path).remembered


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path, child: Child) -> None:
    (tmp_path / "file").write_text("in the way")
    assert may_repack(tmp_path / "file").safe
    assert may_repack(tmp_path / "file").safe
    assert child.runs == 2


def test_the_waiting_policy_is_set_and_a_users_own_stays() -> None:
    for given, then in (({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")):
        prepare_environment(given)
        assert given["OMP_WAIT_POLICY"] == then


def test_waiting_threads_spin_for_microseconds_unless_the_user_has_said_how_they_wait() -> None:
    for given, then in (({}, probe.SPIN), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, None)):
        prepare_environment(given)
        assert given.get("GOMP_SPINCOUNT") == then


def test_preparing_says_when_it_is_too_late() -> None:
    code = "from engine.probe import prepare_environment as p; a = p(); import llama_cpp.llama_cpp; print(a, p())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_threads_are_cores_divided_by_engines_and_never_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_physical_cores", lambda: 8)
    monkeypatch.setattr(probe, "_quota", lambda: 6)
    assert [default_threads(engines) for engines in (0, 1, 2, 3, 7)] == [6, 6, 3, 2, 1]


@pytest.mark.parametrize(
    ("limit", "cores"), [("150000 100000", 1), ("400000 100000", 4), ("50000 100000", 1), ("max 100000", None), ("", None)]
)
def test_a_containers_quota_is_read_in_whole_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, cores: int | None
) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(limit)
    monkeypatch.setattr(probe, "_QUOTA", file)
    assert probe._quota() == (sys.maxsize if cores is None else cores)


@pytest.mark.model
def test_on_this_machine_a_real_child_gives_a_verdict(tmp_path: Path) -> None:
    verdict = may_repack(tmp_path)
    assert verdict.safe or "signal" in verdict.reason or "no numbers" in verdict.reason
    assert may_repack(tmp_path).remembered
