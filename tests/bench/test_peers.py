"""kvalet-bench peers: the scenarios are what they say, and what is measured is the last request of each."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench import cli
from bench.errors import BadOption, Unreachable
from bench.peer_servers import PEERS, Kvalet, Peer, known_peers
from bench.peers import Measured, _report, command, run
from bench.scenarios import Ask, Event, Scenario, scenarios
from bench.servers import Setup

SETUP = Setup(Path("model.gguf"))


class Noted(Peer):
    """A peer that writes down what happens to it; `refuses` names the request (counted from 1) that fails."""

    name = "noted"
    settle_seconds = 0.0

    def __init__(self, folder: Path, refuses: int = 0) -> None:
        super().__init__(SETUP, folder)
        self.noted: list[str] = []
        self._refuses = refuses

    def start(self) -> None:
        self.noted.append("start")

    def end(self, *, kill: bool) -> None:
        self.noted.append("kill" if kill else "stop")

    def ask(self, ask: Ask, answer: int) -> dict[str, Any]:
        self.noted.append(str(ask.messages[-1]["content"]))
        if sum(note not in ("start", "kill", "stop") for note in self.noted) == self._refuses:
            raise Unreachable("here", "no")
        return {"usage": {"prompt_tokens": 10 * len(self.noted)}, "timings": {"prompt_n": len(self.noted)}}


def say(text: str) -> Ask:
    return Ask(({"role": "user", "content": text},))


def test_only_the_last_request_is_measured_and_events_end_the_server_as_they_say(tmp_path: Path) -> None:
    for how, noted in (("restart", "stop"), ("kill", "kill")):
        peer, found = Noted(tmp_path), Measured()
        run(peer, Scenario("x", (say("one"), Event(how), say("two"))), found)
        assert peer.noted == ["one", noted, "start", "hello", "two"]
        assert found.read == [5] and found.prompt == [50] and len(found.seconds) == 1


def test_a_peer_that_refuses_is_noted_and_started_anew(tmp_path: Path) -> None:
    peer, found = Noted(tmp_path, refuses=1), Measured()
    run(peer, Scenario("x", (say("one"), say("two"))), found)
    assert found.failed == "no" and not found.read
    assert peer.noted == ["one", "kill", "start"]


def test_scenarios_are_seeded_and_none_shares_its_beginning_with_another() -> None:
    assert scenarios(3) == scenarios(3)
    assert len({scenario.name for scenario in scenarios(1)}) == 12
    firsts = [json.dumps(s.steps[0].messages[0])[:80] for seed in (1, 2) for s in scenarios(seed) if isinstance(s.steps[0], Ask)]
    assert len(set(firsts)) == len(firsts) == 24


def test_each_scenario_ends_with_a_request_that_shares_most_of_an_earlier_one() -> None:
    for scenario in scenarios(5, 0.1):
        *earlier, last = (step for step in scenario.steps if isinstance(step, Ask))
        shared = max(sum(a == b for a, b in zip(ask.messages, last.messages, strict=False)) for ask in earlier)
        assert shared >= len(last.messages) - 3 or scenario.name == "edit inside one long message", scenario.name


def test_trimmed_results_lie_where_the_row_says() -> None:
    for share in (0.25, 0.5, 0.9):
        (scenario,) = (s for s in scenarios(1) if s.name == f"tool result trimmed at {share:.0%}".replace("%", " %"))
        before, after = (step for step in scenario.steps if isinstance(step, Ask))
        (changed,) = (i for i, (a, b) in enumerate(zip(before.messages, after.messages, strict=True)) if a != b)
        assert before.messages[changed]["role"] == "tool"
        assert abs(changed / len(before.messages) - share) < 0.06


def test_the_report_has_ratios_and_says_who_was_skipped_and_who_failed() -> None:
    ours, other = Measured([10], [0.1], [500]), Measured([400], [0.5], [500])
    broken = Measured(failed="answered 500")
    results = {("a", "kvalet"): ours, ("a", "noted"): other, ("b", "kvalet"): ours, ("b", "noted"): broken}
    peers = [object.__new__(Kvalet), object.__new__(Noted)]
    report = _report(results, {"a": 3, "b": 4}, peers, ["x is skipped: why"], SETUP)
    first, second = report.rows
    assert first["noted ratio"] == pytest.approx(0.2) and first["kvalet read"] == 10 and first["tail"] == 3
    assert "noted read" not in second
    assert "x is skipped: why" in report.notes and "noted failed at b: answered 500" in report.notes


def test_our_server_comes_first_and_an_unknown_peer_is_refused_by_name() -> None:
    assert [peer.name for peer in known_peers(())] == [peer.name for peer in PEERS]
    assert [peer.name for peer in known_peers(("hearth-llm",))] == ["kvalet", "hearth-llm"]
    with pytest.raises(BadOption, match="ollama: must be one of kvalet, llama-server"):
        command(peer=["ollama"])


@pytest.mark.e2e
@pytest.mark.model
def test_the_quick_command_plays_every_scenario_on_our_own_server(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = CliRunner().invoke(cli.app, ["peers", "--quick", "--json", str(out)])
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text("utf-8"))["rows"]
    assert len(rows) == 12
    for row in rows:
        assert row["tail"] <= row["kvalet read"] <= row["tail"] + 512, row["scenario"]
