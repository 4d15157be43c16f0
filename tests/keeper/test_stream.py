"""A stream of stories through a small window: what each strategy still knows, and what the notes say at every version."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from keeper.keeper import Keeper
from keeper.message import History
from tests.keeper.agent import Model, Score, keeper_of, run_stream
from tests.keeper.audit import missing_names, wrong_values
from tests.keeper.counting import count
from tests.keeper.reader import Reader, Slips
from tests.keeper.stories import Ledger, Stream
from tests.keeper.upstream import reading

ITEMS = 90
WINDOW = 4096


class Run:
    """One strategy over one stream."""

    def __init__(self, strategy: str, slips: Slips | None = None, items: int = ITEMS, seed: int = 1, **settings: Any) -> None:
        stream = Stream(seed, items)
        self.reader = Reader(slips)
        self.model = Model(reading(self.reader))
        self.keeper: Keeper = keeper_of(self.model, strategy=strategy, window=WINDOW, **settings)
        self.score: Score
        self.score, self.history = asyncio.run(run_stream(self.keeper, self.model, stream.messages()))
        self.ledger: Ledger = stream.ledger

    @property
    def wrong(self) -> list[tuple[int, str, str, str]]:
        track = self.keeper.archive.enter(History(self.history))
        return wrong_values(self.keeper.archive, track, self.history, self.ledger)

    @property
    def missing(self) -> list[tuple[int, str]]:
        track = self.keeper.archive.enter(History(self.history))
        return missing_names(self.keeper.archive, track, self.history, self.ledger)

    def share(self, *kinds: str) -> float:
        return sum(self.score.right[k] for k in kinds) / sum(self.score.asked[k] for k in kinds)


def test_in_place_notes_answer_everything_and_no_saved_version_holds_a_wrong_value() -> None:
    run = Run("in_place")
    assert run.score.misses == []
    assert run.wrong == [] and run.missing == []
    assert run.keeper.counters["cuts"] >= 5 and "re_asks" not in run.keeper.counters
    assert all(count(body["messages"], body.get("tools") or ()) <= WINDOW for body in run.model.sent)


def test_in_place_notes_with_retrieved_sentences_answer_everything_too() -> None:
    run = Run("in_place_retrieval")
    assert run.score.misses == [] and run.wrong == []
    assert run.keeper.counters["retrievals"] > 0


def test_a_full_rewrite_answers_too_and_writes_more() -> None:
    rewrite, in_place = Run("rewrite"), Run("in_place")
    assert rewrite.score.misses == [] and rewrite.wrong == []
    assert rewrite.keeper.counters["own_completion_tokens"] > 0 < in_place.keeper.counters["own_completion_tokens"]


def test_window_drop_knows_what_is_in_view_and_loses_the_rules_and_what_slid_out() -> None:
    run = Run("drop")
    assert run.share("rule") < 0.5, "the rules left with the first item"
    near = [miss for miss in run.score.misses if miss[1] <= 2 and miss[0] == "who"]
    assert near == [], "who did it is known as long as it is in view"
    assert run.share("old", "who") < 0.7


def test_compaction_without_tool_output_is_window_drop() -> None:
    assert Run("compact").score.right == Run("drop").score.right


def test_summaries_keep_current_values_and_lose_old_ones_details_and_rules() -> None:
    run = Run("summarise")
    assert run.share("current", "final") >= 0.75
    assert run.share("who") < 0.75 and run.share("old") < 0.75 and run.share("rule") < 0.5
    assert run.keeper.counters["summaries"] >= 3


def test_one_bad_summary_ends_everything_before_it() -> None:
    good, bad = Run("summarise"), Run("summarise", Slips({"bad_summary": {0}}))
    assert bad.share("final") < good.share("final")


def test_retrieval_alone_finds_names_and_never_the_rule_that_names_nothing() -> None:
    run = Run("retrieval")
    overdrawn = [miss for miss in run.score.misses if miss[3] == "overdrawn"]
    assert overdrawn and all(miss[4].startswith("-") or miss[4] == "unknown" for miss in overdrawn)
    assert run.share("who") >= 0.6


CAUGHT = [
    "forgotten",
    "set_as_change",
    "invented_working",
    "misread",
    "wrong_sign",
    "change_as_set",
    "bad_sum",
    "stale_start",
    "no_working",
]


@pytest.mark.parametrize("way", CAUGHT)
def test_a_slip_is_caught_and_mended_by_asking_again(way: str) -> None:
    run = Run("in_place", Slips({way: {0}}), items=60)
    assert run.reader.slips.made, "the stream gave occasion for it"
    assert run.keeper.counters["re_asks"] >= len(run.reader.slips.made) - 1
    assert run.wrong == [] and run.score.misses == []


@pytest.mark.parametrize("way", [way for way in CAUGHT if way not in ("forgotten", "misread")])
def test_a_slip_that_the_model_insists_on_is_left_out_never_stored(way: str) -> None:
    run = Run("in_place", Slips({way: {2}}, stubborn=True), items=60)
    assert run.reader.slips.made
    stored = {(name, noted) for _, name, noted, _ in run.wrong}
    written = {name for _, name in run.reader.slips.made}
    assert all(name in written for name, _ in stored), "only the name of the slip can be behind"
    assert run.keeper.counters["left_out"] >= 1
    first = run.wrong[0] if run.wrong else None
    assert first is None or first[2] == str(_noted_before(run, first)), "the noted value stays, the wrong one is not stored"


def _noted_before(run: Run, wrong: tuple[int, str, str, str]) -> int | None:
    """The last true value of the name at any earlier version's place."""
    values = [change.value for change in run.ledger.changes if change.name == wrong[1] and change.item <= wrong[0]]
    return next((value for value in values if str(value) == wrong[2]), None)


def test_what_the_docs_say_cannot_be_caught_is_not_a_slip_in_a_plain_sentence() -> None:
    """A sentence without a name that the reader and the checks can follow: nobody asks, the value goes stale."""
    from keeper.checks import Turns, check
    from keeper.notes import Entry, Notes, read

    notes = Notes(state=(Entry("doma86", "12"),))
    told: Mapping[str, tuple[str, ...]] = {
        "an unusual turn of phrase": ("Bo made it so that doma86 was richer by a handful.",),
        "no name": ("And the other one went up by 5.",),
    }
    assert check(notes, read("doma86 unchanged"), Turns(told["an unusual turn of phrase"])) == ()
    assert check(notes, (), Turns(told["no name"])) == ()
