"""The stream that memory is measured on, and what a perfect reader makes of it."""

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from bench.ledger.audit import audit, truth
from bench.ledger.evaluate import SIZES
from bench.ledger.stream import DISTANCES, GAP, QUIET, SYSTEM, TASK, Event, LedgerStream
from bench.memory_run import REPLY, Answer, Outcome, Settings, converse
from keeper.keeper import Keeper
from keeper.notes import Entry, Notes
from tests.bench import ledger_reader


def events(seed: int, tokens: int = 20_000) -> list[Event]:
    return LedgerStream(seed).events(tokens, lambda event: len(event.text.split()) * 2 + 10)


def hold(strategy: str, seed: int, tokens: int) -> Outcome:
    """The whole conversation with the perfect reader."""
    outcome = Outcome(strategy, seed)
    config = Settings(Path("none"), tokens, 1024).keeper(strategy)
    keeper = Keeper(config, ledger_reader.complete, ledger_reader.count_tokens)
    try:
        asyncio.run(converse(keeper, ledger_reader.complete, ledger_reader.count_tokens, events(seed, tokens), outcome))
    finally:
        keeper.close()
    return outcome


def wrong(outcome: Outcome) -> list[Answer]:
    return [answer for answer in outcome.answers if not answer.right]


def test_a_seed_names_a_stream() -> None:
    assert events(3) == events(3)
    assert events(3) != events(4)


def test_no_counter_is_set_twice_within_the_gap() -> None:
    last: dict[str, int] = {}
    for event in events(0):
        for name, _, _ in event.changes:
            assert event.batch - last.get(name, -GAP) >= GAP
            last[name] = event.batch


def test_no_more_counters_are_told_than_the_model_was_trained_with() -> None:
    told = {name for event in events(0) for name, _, _ in event.changes}
    assert len(told) == SIZES[1].difficulty.counters


def test_every_distance_and_kind_is_asked_for() -> None:
    asked = Counter((e.question.kind, e.question.distance) for e in events(0) if e.question)
    assert all(asked["value", label] + asked["who", label] >= 5 for _, label in DISTANCES)
    assert sum(n for (kind, _), n in asked.items() if kind == "rule") >= 10
    assert asked["unknown", "never"] >= 5


def test_right_answers_are_what_the_stories_told_last() -> None:
    told: list[Event] = []
    for event in events(1):
        told.append(event)
        if event.question and event.question.kind in ("value", "who"):
            entry = truth(told).entry(event.question.name)
            assert entry is not None and entry.render() == event.question.answer


def test_the_answer_is_not_in_its_question() -> None:
    for event in events(2):
        if event.question:
            assert event.question.answer not in event.text


def test_the_stream_is_as_long_as_asked_and_ends_with_what_was_told_long_ago() -> None:
    found = events(0, 4000)
    assert 4000 <= sum(len(e.text.split()) * 2 + 10 for e in found) < 4400
    assert all(e.question for e in found[-QUIET:])
    assert all(one.batch <= two.batch for one, two in pairwise(found))


@pytest.mark.parametrize("strategy", ["in_place", "tope_notes"])
def test_with_notes_a_perfect_reader_answers_everything_and_its_notes_are_true_at_every_version(strategy: str) -> None:
    outcome = hold(strategy, 0, 5000)
    assert wrong(outcome) == []
    assert len(outcome.versions) > 10
    assert all(version.clean for version in outcome.versions)
    assert outcome.failed == 0


def test_with_notes_the_rule_is_in_view_at_every_rule_question() -> None:
    outcome = hold("in_place", 1, 3000)
    asked = [answer for answer in outcome.answers if answer.question.kind == "rule"]
    assert asked and all(answer.rule_in_view for answer in asked)


def test_the_window_alone_forgets_even_a_perfect_reader() -> None:
    outcome = hold("drop", 0, 5000)
    missed = wrong(outcome)
    assert missed
    assert all(answer.question.back >= 5 for answer in missed)
    assert not any(answer.rule_in_view for answer in missed)


def test_an_audit_tells_wrong_missing_and_invented_lines_apart() -> None:
    told = [
        Event("", 1, None, (("noma", "12", "Ada"), ("givo", "34", "Bo")), ("a rule",)),
        Event("", 2, None, (("noma", "56", "Leo"), ("reve", "78", "Bo"))),
    ]
    assert truth(told).entry("noma") == Entry("noma", "56", "Leo")
    assert audit(truth(told), told).clean
    held = Notes((), (Entry("noma", "12", "Ada"), Entry("givo", "34", "Bo"), Entry("dase", "90", "Bo")))
    found = audit(held, told)
    assert (found.wrong, found.missing, found.invented, found.rules_lost) == (("noma",), ("reve",), ("dase",), 1)


def test_the_conversation_begins_with_the_texts_of_the_episodes() -> None:
    assert SYSTEM == "You keep the ledger."
    assert TASK.startswith("Read the stories")
    assert REPLY == 64
