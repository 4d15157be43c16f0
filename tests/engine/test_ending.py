"""The same prompt again: answered from the state and the logits that the slot kept at its end, with nothing read."""

from dataclasses import replace

import numpy as np
import pytest

from engine.context import StateKind
from engine.request import Anchor, AnchorKind, Exact, Source, Token
from engine.sampling import SamplingParams
from kvcache.entry import Tier
from tests.engine.serving import Desk

PROMPT = [(7 * i) % 250 for i in range(1000)]  # the last grid multiple is 960
ANCHORS = (Anchor(987, AnchorKind.ASSISTANT_START),)
KINDS = list(StateKind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exact", list(Exact))
@pytest.mark.parametrize("length", [1000, 960, 40])
def test_the_same_prompt_again_reads_nothing_and_answers_the_same(kind: StateKind, exact: Exact, length: int) -> None:
    desk = Desk(kind, exact=False)
    answers = []
    for _ in range(3):
        served = desk.ask(PROMPT[:length], 80, exact=exact, anchors=ANCHORS)
        answers.append(served.tokens)
    assert (served.reread, served.done.resume.position, served.done.resume.reread) == (0, length, 0)
    assert served.done.resume.source is Source.LIVE
    assert answers[0] == answers[1] == answers[2] and len(answers[0]) == 80


def test_where_nothing_was_decoded_since_no_state_is_loaded() -> None:
    desk = Desk()
    first = desk.ask(PROMPT, 1, anchors=ANCHORS)
    again = desk.ask(PROMPT, 1, anchors=ANCHORS)
    assert again.reread == 0 and again.tokens == first.tokens
    assert desk.context.calls["load_checkpoint"] == 0
    more = desk.ask(PROMPT, 20, anchors=ANCHORS)
    assert more.reread == 0 and more.tokens == Desk().ask(PROMPT, 20, anchors=ANCHORS).tokens


def test_another_request_draws_its_own_token_from_the_kept_logits() -> None:
    desk = Desk()
    first = desk.ask(PROMPT, 1)
    other = desk.ask(PROMPT, 1, sampling=SamplingParams(temperature=0.0, logit_bias=((first.tokens[0], -100.0),)), logprobs=3)
    assert other.reread == 0 and other.tokens != first.tokens
    cold = Desk().ask(PROMPT, 1, sampling=SamplingParams(temperature=0.0, logit_bias=((first.tokens[0], -100.0),)), logprobs=3)
    drawn, wanted = ([event for event in served.events if isinstance(event, Token)] for served in (other, cold))
    assert [replace(token, request="") for token in drawn] == [replace(token, request="") for token in wanted]


def test_a_strict_request_takes_no_logits_that_a_cold_read_would_not_have_made() -> None:
    """Append mode cuts the remainder once more, where the answer starts: its last logits are of another read."""
    desk = Desk(exact=False)
    desk.ask(PROMPT, anchors=ANCHORS)
    strict = desk.ask(PROMPT, exact=Exact.STRICT, anchors=ANCHORS)
    assert strict.done.resume.position == 960
    assert strict.tokens == Desk(exact=False).ask(PROMPT, exact=Exact.STRICT).tokens


def test_a_prompt_that_goes_on_or_stops_early_is_not_taken_for_the_same() -> None:
    desk = Desk()
    desk.ask(PROMPT, 1)
    assert desk.ask([*PROMPT, 5], 1).reread == 1
    assert desk.ask(PROMPT, 1).reread > 0  # the ending is now that of the longer prompt
    assert desk.ask(PROMPT[:-1], 1).reread > 0


def test_a_prompt_read_without_an_answer_keeps_no_logits() -> None:
    desk = Desk()
    desk.ask(PROMPT, 0)
    assert desk.core.slots[0].ending is None
    assert desk.ask(PROMPT, 4).reread == 1000 - 960
    assert desk.ask(PROMPT, 0).reread == 0


def test_an_ending_goes_with_the_tokens_it_stands_on_and_with_every_tier_off() -> None:
    desk = Desk()
    desk.ask(PROMPT)
    assert desk.core.slots[0].ending is not None
    desk.ask([9] * 700, 0)
    assert desk.core.slots[0].ending is None
    off = Desk(ram=0)
    off.ask(PROMPT)
    assert off.core.slots[0].ending is None


def test_a_cold_request_reads_all_of_it() -> None:
    desk = Desk()
    desk.ask(PROMPT)
    assert desk.ask(PROMPT, cold=True).reread == 1000


def test_what_an_ending_takes_is_its_state_and_its_logits() -> None:
    desk = Desk()
    desk.ask(PROMPT)
    ending = desk.core.slots[0].ending
    assert ending is not None and ending.state is not None
    assert ending.nbytes == len(ending.state.payload) + 4 * desk.context.n_vocab
    assert ending.logits.dtype == np.float32
    assert Tier.RAM not in {ref.tier for ref in desk.store.match(PROMPT).checkpoints if ref.position == 1000}
