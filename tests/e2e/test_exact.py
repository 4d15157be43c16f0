"""Strict mode over HTTP: logprobs equal to the last bit, whatever was cached, edited, branched or interleaved before."""

import random
from typing import Any

import pytest

from tests.e2e.serving import Message, Server, assistant, logprobs, read, said, serving, system, user, words

pytestmark = pytest.mark.e2e
STRICT: dict[str, Any] = {"exact": "strict", "logprobs": True, "top_logprobs": 5}
PLAIN: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}  # so that an answer that is sent back is an append
CONVERSATIONS = 100
MODEL = "synthetic:tiny"


def strict(server: Server, messages: list[Message], max_tokens: int = 6, **fields: Any) -> dict[str, Any]:
    return server.chat(messages, max_tokens, **STRICT, **PLAIN, **fields)


def edited(messages: list[Message], rng: random.Random) -> list[Message]:
    """One message changed in its middle, cut short, or dropped with all that follows."""
    copy = [dict(message) for message in messages]
    at = rng.randrange(len(copy))
    text = str(copy[at]["content"])
    half = len(text) * rng.randrange(1, 9) // 10
    copy[at]["content"] = text[:half] + " " + words(rng.randrange(1, 30), rng.randrange(10**6)) + text[half:]
    return copy if rng.random() < 0.6 else [*copy[: at + 1], *([user("go on")] if copy[at]["role"] != "user" else [])]


def test_a_hundred_random_conversations_with_edits_and_branches_equal_a_cold_server() -> None:
    rng = random.Random(1)
    known: list[list[Message]] = []
    with serving(MODEL) as warm, serving(MODEL, "--cache-ram", "0") as cold:
        reused = 0
        for number in range(CONVERSATIONS):
            kind = rng.random()
            if kind < 0.2 or not known:
                messages = [system(words(rng.randrange(50, 400), number)), user(words(rng.randrange(20, 300), number + 500))]
            elif kind < 0.5:
                messages = edited(rng.choice(known), rng)
            else:
                messages = [*rng.choice(known)]
                if messages[-1]["role"] == "user":
                    messages.append(assistant(words(20, number)))
                messages.append(user(words(rng.randrange(5, 120), number + 900)))
            if rng.random() < 0.3:  # an append-mode request in between leaves states that strict must not use
                warm.chat(messages, rng.randrange(1, 80), **PLAIN)
            most = rng.randrange(1, 40)
            answer = strict(warm, messages, most)
            assert logprobs(answer) == logprobs(strict(cold, messages, most, cache_prompt=False)), f"conversation {number}"
            reused += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            known.append([*messages, said(answer)])
        assert reused > 10_000, "the test must exercise reuse"


def test_two_sessions_with_one_system_prompt_and_different_secrets_never_meet() -> None:
    shared = system(words(2000, 40))
    secrets = {"a": "The word is KRONOS-77.", "b": "The word is PALLAS-31."}
    with serving(MODEL) as server:
        alone = {name: logprobs(strict(server, [shared, user(text)], cache_prompt=False)) for name, text in secrets.items()}
        for turn in range(50):
            for name, text in secrets.items():
                body = strict(server, [shared, user(text)], prompt_cache_key=name)
                assert logprobs(body) == alone[name], f"turn {turn} of {name}"
                assert read(body) <= 64 + 64 or turn == 0
                other = secrets["b" if name == "a" else "a"].split()[-1]
                assert other not in str(said(body))


def test_a_cold_request_on_a_warm_server_reads_everything_and_says_the_same(server: Server) -> None:
    messages = [system(words(400, 41)), user(words(100, 42))]
    first = strict(server, messages)
    cold = strict(server, messages, cache_prompt=False)
    assert read(cold) == cold["usage"]["prompt_tokens"]
    assert logprobs(cold) == logprobs(first)


@pytest.mark.parametrize("offset", [-1, 0, 1, 2])
def test_a_difference_right_at_a_checkpoint_uses_the_right_one(offset: int) -> None:
    rng = random.Random(7)
    tokens = [rng.randrange(300, 1500) for _ in range(700)]
    with serving(MODEL, "--batch", "64") as server:
        ask: dict[str, Any] = {"exact": "strict", "logprobs": 5}
        server.complete(tokens, 4, **ask)
        at = 512 + offset
        changed = [*tokens[:at], tokens[at] + 1, *tokens[at + 1 :]]
        body = server.complete(changed, 4, **ask)
        cold = server.complete(changed, 4, cache_prompt=False, **ask)
        assert body["choices"] == cold["choices"]
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256
        again = server.complete(tokens, 4, **ask)
        assert read(again) <= 64, "the state behind the difference must survive"
