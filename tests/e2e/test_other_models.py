"""Trained models of the other kinds, where their packages are installed: attention only (SmolLM2), sliding window (Gemma 3)."""

from collections.abc import Iterator

import pytest

from engine import catalog
from engine.errors import ModelError
from tests.e2e.serving import Server, assistant, read, said, serving, system, user

pytestmark = pytest.mark.e2e
STORY = "The baker went to the market on Monday and bought flour, eggs and a bag of sugar for the feast. "


@pytest.fixture(scope="module", params=["smollm2", "gemma3-270m"])
def trained(request: pytest.FixtureRequest) -> Iterator[Server]:
    try:
        catalog.resolve(request.param)
    except ModelError as error:
        pytest.skip(str(error))
    with serving(request.param, "--ctx", "2048") as running:
        yield running


def test_an_edit_in_the_middle_rereads_the_tail_and_says_what_a_cold_read_says(trained: Server) -> None:
    history = [system(STORY * 8), user(STORY * 12 + "Where did the baker go?")]
    trained.chat(history, 12, exact="strict")
    text = STORY * 10 + "It rained. " + STORY * 2 + "Where did the baker go?"
    edited = [history[0], user(text)]
    warm = trained.chat(edited, 12, exact="strict")
    cold = trained.chat(edited, 12, exact="strict", cache_prompt=False)
    assert said(warm) == said(cold)
    assert read(cold) == cold["usage"]["prompt_tokens"] > 400
    assert read(warm) <= 64 + cold["usage"]["prompt_tokens"] // 4


def test_the_next_turn_reads_only_what_is_new(trained: Server) -> None:
    history = [user(STORY * 12 + "What did the baker buy?")]
    first = trained.chat(history, 12)
    body = trained.chat([*history, said(first), user("And when?")], 4)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 64


def test_the_kind_is_found_by_asking_the_library(trained: Server) -> None:
    props = trained.http.get("/props").json()
    assert props["kvalet"]["kind"] == {"smollm2": "attention", "gemma3-270m": "window"}[props["model_alias"]]
    assert trained.http.get("/health").json()["status"] == "ok"


def test_an_answer_is_text(trained: Server) -> None:
    body = trained.chat([user("Say hello."), assistant("Hello"), user("Again.")], 8)
    assert str(said(body)["content"]).strip()
