"""Strict answers never depend on the cache: random histories on a fake whose logits depend on batch splits and on every state."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.context import StateKind
from engine.request import Exact, Token
from tests.engine.serving import MIB, Desk, Served, text

BUDGETS = {"roomy": 64 * MIB, "evicting": 60_000, "off": 0}
Logprobs = list[tuple[int, float]]


def drawn(served: Served) -> Logprobs:
    return [(e.token, e.logprob.logprob) for e in served.events if isinstance(e, Token) and e.logprob is not None]


def cold(kind: StateKind, prompt: list[int], most: int) -> Logprobs:
    """What an engine that knows nothing answers."""
    return drawn(Desk(kind, exact=False, ram=0).ask(prompt, most, exact=Exact.STRICT, logprobs=0))


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, int, int, int, bool]]:
    """(what, which earlier sequence, where in it, how much new, strict) for each request of a history."""
    step = st.tuples(
        st.sampled_from(["new", "append", "edit", "same", "cancel"]),
        st.integers(0, 9),
        st.integers(0, 1000),
        st.integers(1, 300),
        st.booleans(),
    )
    return draw(st.lists(step, min_size=2, max_size=7))


def prompt_of(step: tuple[str, int, int, int, bool], known: list[list[int]], seed: int) -> list[int]:
    what, which, where, more, _ = step
    if what == "new" or not known:
        return text(200 + more, seed)
    earlier = known[which % len(known)]
    if what == "same":
        return list(earlier)
    at = len(earlier) if what == "append" else len(earlier) * where // 1000
    return earlier[:at] + text(more, seed)


@pytest.mark.parametrize("kind", list(StateKind))
@settings(max_examples=25, deadline=None, derandomize=True)
@given(history=steps(), slots=st.sampled_from([1, 3]), ram=st.sampled_from(["roomy", "evicting", "off"]))
def test_strict_answers_are_those_of_a_cold_engine(
    kind: StateKind, slots: int, ram: str, history: list[tuple[str, int, int, int, bool]]
) -> None:
    desk, known = Desk(kind, slots=slots, exact=False, ram=BUDGETS[ram]), []
    for number, step in enumerate(history):
        prompt, strict = prompt_of(step, known, number + 1), step[4]
        served = desk.submit(prompt, 70, exact=Exact.STRICT if strict else Exact.APPEND, logprobs=0)
        if step[0] == "cancel":
            for _ in range(step[2] % 4):
                desk.core.step()
            desk.core.cancel(f"r{number}")
        desk.run()
        if step[0] != "cancel" and strict:
            assert drawn(served) == cold(kind, prompt, 70)
        known.append(prompt + served.tokens)


@pytest.mark.parametrize("kind", list(StateKind))
@settings(max_examples=8, deadline=None, derandomize=True)
@given(history=steps())
def test_strict_answers_hold_while_other_requests_run_beside_them(
    kind: StateKind, history: list[tuple[str, int, int, int, bool]]
) -> None:
    desk, known = Desk(kind, slots=3, exact=False), [text(500, 99)]
    for round in range(2):
        prompts = [prompt_of(step, known, 10 * round + number) for number, step in enumerate(history)]
        served = [desk.submit(prompt, 20, exact=Exact.STRICT, logprobs=0) for prompt in prompts]
        desk.run()
        for prompt, one in zip(prompts, served, strict=True):
            assert drawn(one) == cold(kind, prompt, 20)
        known += [prompt + one.tokens for prompt, one in zip(prompts, served, strict=True)]


def test_append_does_depend_on_the_splits_so_that_these_tests_can_fail() -> None:
    desk = Desk(exact=False)
    first = desk.ask(text(1000), 30)
    prompt = text(1000) + first.tokens + text(100, 2)
    append = desk.ask(prompt, 10, logprobs=0)
    assert append.done.resume.position == 1029
    assert drawn(append) != cold(StateKind.HYBRID, prompt, 10)
