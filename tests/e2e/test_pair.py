"""Two engines on real llama.cpp over HTTP: the same bits as one, and only the new words to read after a pause."""

import time
from collections.abc import Iterator

import pytest

from tests.e2e.serving import Message, Server, assistant, logprobs, said, serving, system, user, words

pytestmark = [pytest.mark.e2e, pytest.mark.model]
ONE = ("synthetic:tiny", "--threads", "1", "--exact", "strict")
STRICT = {"logprobs": True, "top_logprobs": 5, "chat_template_kwargs": {"enable_thinking": False}}  # all it says comes back
SECONDS = 60


@pytest.fixture(scope="module", params=[("--devices", "cpu,cpu"), ("--background-slots", "1")], ids=["devices", "slots"])
def pair(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving(*ONE, *request.param) as running:
        yield running


@pytest.fixture(scope="module")
def cold() -> Iterator[Server]:
    with serving(*ONE, "--cache-ram", "0") as running:
        yield running


def pause(server: Server) -> None:
    """Until nothing is left to read ahead, as a person's pause is long enough for."""
    deadline = time.monotonic() + SECONDS
    while server.http.get("/cache?limit=0").json()["preread"]["busy"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_strict_answers_have_the_bits_of_one_cold_engine_and_read_only_what_is_new(pair: Server, cold: Server) -> None:
    history: list[Message] = [system(words(300, 1)), user(words(60, 2))]
    for turn in range(4):
        answer = pair.chat(history, 200, **STRICT, ignore_eos=True)
        assert logprobs(answer) == logprobs(cold.chat(history, 200, **STRICT, ignore_eos=True, cache_prompt=False)), (
            f"turn {turn}"
        )
        if turn:
            assert answer["timings"]["prompt_n"] <= pair.count(str(history[-1]["content"])) + 16 + 64
        history = [*history, said(answer), user(words(40, 10 + turn))]
        pause(pair)
    preread = pair.http.get("/cache?limit=0").json()["preread"]
    assert sum(preread[kind]["used"] for kind in ("anticipate", "exact")) > 0


def test_a_history_that_goes_another_way_has_its_bits_too_and_what_was_read_for_it_is_wasted(pair: Server, cold: Server) -> None:
    history: list[Message] = [system(words(200, 3)), user(words(200, 4))]
    pair.chat(history, 60)
    pause(pair)
    before = pair.http.get("/cache?limit=0").json()["preread"]
    other = [*history, assistant(words(30, 5)), user(words(30, 6))]
    answer = pair.chat(other, 20, **STRICT)
    assert logprobs(answer) == logprobs(cold.chat(other, 20, **STRICT, cache_prompt=False))
    pause(pair)
    after = pair.http.get("/cache?limit=0").json()["preread"]
    assert sum(after[kind]["wasted"] for kind in ("anticipate", "exact")) >= sum(
        before[kind]["wasted"] for kind in ("anticipate", "exact")
    )
