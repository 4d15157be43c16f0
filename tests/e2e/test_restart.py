"""Restarts and kill -9: the next request of a long conversation reads a few hundred tokens where a stock server reads all."""

import random
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.serving import Message, Server, assistant, logprobs, read, said, serving, system, user, words

pytestmark = pytest.mark.e2e
BOUND = 512
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}


def conversation(turns: int) -> list[Message]:
    """About 5,000 tokens, ending in a question."""
    messages = [system(words(400, 90))]
    for turn in range(turns):
        messages += [user(words(180, 100 + turn)), assistant(words(160, 200 + turn))]
    return [*messages, user("What now?")]


def parked(server: Server) -> bool:
    """Whether nothing waits for the writer."""
    return server.metric("kvalet_disk_queued_bytes") == 0


def settle(server: Server) -> None:
    deadline = time.monotonic() + 30
    while not parked(server):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_after_a_stop_an_identical_request_reads_at_most_512_tokens_and_says_the_same(
    tmp_path: Path, sig: signal.Signals
) -> None:
    messages = conversation(12)
    with serving(state=tmp_path) as server:
        first = server.chat(messages, 16, exact="strict", logprobs=True, top_logprobs=3)
        assert first["usage"]["prompt_tokens"] > 4500
        settle(server)
        server.stop(sig)
    with serving(state=tmp_path) as server:
        again = server.chat(messages, 16, exact="strict", logprobs=True, top_logprobs=3)
        assert again["kvalet"]["resumed_from"] == "disk"
        assert read(again) <= BOUND
        assert logprobs(again) == logprobs(first)


def test_after_a_restart_the_next_turn_goes_on_and_an_answer_trimmed_by_a_character_does_not_matter(tmp_path: Path) -> None:
    messages = conversation(8)
    with serving(state=tmp_path) as server:
        answer = said(server.chat(messages, 150, **PLAIN))
        assert server.stop() == 0
    with serving(state=tmp_path) as server:
        whole = server.chat([*messages, answer, user("And then?")], **PLAIN)
        assert read(whole) <= BOUND
    with serving(state=tmp_path) as server:
        trimmed = assistant(str(answer["content"])[:-1])
        assert read(server.chat([*messages, trimmed, user("And then?")], **PLAIN)) <= BOUND


def test_a_cache_of_another_model_or_setting_is_never_used(tmp_path: Path) -> None:
    messages = conversation(4)
    with serving(state=tmp_path) as server:
        server.chat(messages)
        assert server.stop() == 0
    for other in (("synthetic:tiny-q8",), ("--cache-type-k", "q8_0"), ("--no-flash-attn",)):
        with serving(*other, state=tmp_path) as server:
            body = server.chat(messages)
            assert body["kvalet"]["resumed_from"] == "none", other
    with serving(state=tmp_path) as server:
        assert read(server.chat(messages)) <= 64


def test_with_no_disk_budget_nothing_is_written(tmp_path: Path) -> None:
    with serving("--cache-disk", "0", "--cache-dir", str(tmp_path)) as server:
        server.chat(conversation(4))
        assert server.stop() == 0
    assert list(tmp_path.iterdir()) == []


def test_kills_under_load_leave_a_cache_that_is_right_or_refused(tmp_path: Path) -> None:
    """A few of the 200 kills of bench/: whatever moment is hit, the next start serves, and serves the truth."""
    rng = random.Random(4)
    histories = [[system(words(300, n)), user(words(200, 50 + n))] for n in range(4)]
    with serving("--cache-ram", "0") as cold:
        truth = [logprobs(cold.chat(h, 4, exact="strict", logprobs=True, top_logprobs=3)) for h in histories]
    for _ in range(6):
        with serving(state=tmp_path) as server:
            for number in rng.sample(range(4), 4):
                body = server.chat(histories[number], 4, exact="strict", logprobs=True, top_logprobs=3)
                assert logprobs(body) == truth[number]
                server.complete(words(rng.randrange(100, 900), rng.randrange(10**6)), 1)
            time.sleep(rng.random() * 0.2)
            server.stop(signal.SIGKILL)
