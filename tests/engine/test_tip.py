"""The slot's own state at the start of the answer: what it spares in append mode, and what never sees it."""

import pytest

from engine.context import StateKind
from engine.request import Anchor, AnchorKind, Exact, Source
from kvcache.entry import Block, BlockRef
from tests.engine.serving import Desk

PROMPT = [(7 * i) % 250 for i in range(1000)]  # the last grid multiple is 960
ANCHOR = 987
START = 990
"""Behind the anchor and the three tokens of the answer's header."""


def anchors(at: int = ANCHOR) -> tuple[Anchor, ...]:
    return (Anchor(at, AnchorKind.ASSISTANT_START),)


@pytest.mark.parametrize("kind", [StateKind.HYBRID, StateKind.RECURRENT])
def test_a_prompt_that_differs_behind_the_start_of_the_answer_goes_on_from_there(kind: StateKind) -> None:
    desk = Desk(kind)
    desk.ask(PROMPT, anchors=anchors())
    other = desk.ask([*PROMPT[:-1], 3], anchors=anchors())
    assert other.done.resume.position == START and other.done.resume.source is Source.LIVE
    assert other.reread == len(PROMPT) - START
    assert other.tokens == Desk(kind).ask([*PROMPT[:-1], 3], anchors=anchors()).tokens


def test_an_answer_that_comes_back_otherwise_leaves_at_its_start() -> None:
    desk = Desk()
    desk.ask(PROMPT, anchors=anchors())
    changed = [*PROMPT[:START], *[5] * 100]
    served = desk.ask(changed, anchors=anchors(1077))
    assert served.done.resume.position == START
    assert served.tokens == Desk().ask(changed, anchors=anchors(1077)).tokens


def test_a_prompt_that_differs_before_the_tip_goes_back_to_the_grid() -> None:
    desk = Desk()
    desk.ask(PROMPT, anchors=anchors())
    served = desk.ask([*PROMPT[: START - 1], 249, 248, 247], anchors=())
    assert served.done.resume.position == 960


def test_a_strict_request_neither_makes_nor_uses_a_tip_and_answers_as_a_cold_one() -> None:
    desk = Desk(exact=False)
    desk.ask(PROMPT, anchors=anchors())
    strict = desk.ask(PROMPT, exact=Exact.STRICT, anchors=anchors())
    assert strict.done.resume.position == 960
    assert strict.tokens == Desk(exact=False).ask(PROMPT, exact=Exact.STRICT, anchors=anchors()).tokens
    only_strict = Desk()
    only_strict.ask(PROMPT, exact=Exact.STRICT, anchors=anchors())
    assert only_strict.ask([*PROMPT[:-1], 3], anchors=()).done.resume.position == 960


def test_what_is_parked_beside_a_tip_stays_canonical() -> None:
    desk = Desk(exact=False)
    desk.ask(PROMPT, anchors=anchors())
    match = desk.store.match(PROMPT, canonical_only=True)
    assert match.stored == 960
    assert match.checkpoints[-1].position == 960


@pytest.mark.parametrize("at", [900, 957, 1000])
def test_no_tip_is_kept_on_or_before_the_last_grid_multiple_or_at_the_end(at: int) -> None:
    desk = Desk()
    desk.ask(PROMPT, anchors=anchors(at))
    assert desk.core.slots[0].tip is None


def test_a_tip_goes_with_the_tokens_it_stands_on() -> None:
    desk = Desk()
    desk.ask(PROMPT, anchors=anchors())
    assert desk.core.slots[0].tip is not None
    desk.ask([9] * 700)
    assert desk.core.slots[0].tip is None


def test_with_every_tier_off_nothing_is_kept_beside_the_slot() -> None:
    desk = Desk(ram=0)
    desk.ask(PROMPT, anchors=anchors())
    assert desk.core.slots[0].tip is None


OTHER = [(11 * i + 3) % 250 for i in range(700)]


@pytest.mark.parametrize("kind", [StateKind.HYBRID, StateKind.RECURRENT, StateKind.WINDOW])
def test_a_conversation_whose_slot_was_taken_comes_back_to_its_tip(kind: StateKind) -> None:
    desk = Desk(kind)
    desk.ask(PROMPT, anchors=anchors())
    desk.ask(OTHER, anchors=anchors(690))
    changed = [*PROMPT[:START], *[5] * 100]
    served = desk.ask(changed, anchors=anchors(1077))
    assert (served.done.resume.position, served.done.resume.source) == (START, Source.RAM)
    assert served.tokens == Desk(kind).ask(changed, anchors=anchors(1077)).tokens


def test_a_tip_that_a_rollback_cut_off_is_found_again_behind_the_live_cells() -> None:
    desk = Desk()
    desk.ask(PROMPT, anchors=anchors())
    desk.ask([*PROMPT[:700], *OTHER], anchors=anchors(1390))
    served = desk.ask([*PROMPT[:START], 1, 2, 3], anchors=())
    assert served.done.resume.position == START
    assert served.tokens == Desk().ask([*PROMPT[:START], 1, 2, 3], anchors=()).tokens


def test_a_parked_tip_serves_no_strict_request_and_no_other_tokens() -> None:
    desk = Desk(exact=False)
    desk.ask(PROMPT, anchors=anchors())
    desk.ask(OTHER)
    strict = desk.ask([*PROMPT[:START], 1, 2, 3], exact=Exact.STRICT)
    assert strict.done.resume.position == 960
    desk.ask(OTHER)
    assert desk.ask([*PROMPT[: START - 1], 249, 249, 249]).done.resume.position == 960


def test_a_tip_that_was_dropped_between_finding_and_loading_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    desk.ask(PROMPT, anchors=anchors())
    desk.ask(OTHER)
    found = desk.store.match([*PROMPT, 1])
    assert found.tip is not None and found.tip.position == START
    real = desk.store.load_block

    def gone(ref: BlockRef) -> Block:
        if found.tip is not None and ref.id == found.tip.block.id:
            desk.store.remove(ref.id)
        return real(ref)

    monkeypatch.setattr(desk.store, "load_block", gone)
    served = desk.ask([*PROMPT[:START], 1, 2, 3])
    assert served.done.resume.position >= 0 and desk.core.counters.restores_failed == 1
    assert served.tokens == Desk().ask([*PROMPT[:START], 1, 2, 3]).tokens
