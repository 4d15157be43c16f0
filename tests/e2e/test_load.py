"""Bad input, many clients at once, and memory: all get an answer, none another client's, and the process keeps its bounds."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.serving import Server, assistant, serving, system, user, words

pytestmark = pytest.mark.e2e
HI = [user("hi")]
MIB = 1 << 20


@pytest.fixture(scope="module")
def pair() -> Iterator[Server]:
    with serving("--parallel", "2", "--ctx", "8192") as running:
        yield running


BAD: list[tuple[str, dict[str, Any], int, str]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 7}]}, 400, "messages[0].content"),
    ("/v1/chat/completions", {"messages": HI, "temperature": "x"}, 400, "temperature"),
    ("/v1/chat/completions", {"messages": HI, "temperature": -1}, 400, "temperature"),
    ("/v1/chat/completions", {"messages": HI, "dry_base": 0.5}, 400, "dry_base"),
    ("/v1/chat/completions", {"messages": HI, "logit_bias": {"99999999": 1}}, 400, "logit_bias"),
    ("/v1/chat/completions", {"messages": HI, "grammar": "root ::= nowhere"}, 400, "grammar"),
    ("/v1/chat/completions", {"messages": HI, "grammar": "root ::= ("}, 400, "grammar"),
    ("/v1/chat/completions", {"messages": HI, "grammar": "(" * 10_000}, 400, "grammar"),
    ("/v1/chat/completions", {"messages": HI, "grammar": 'root ::= "a"', "json_schema": {}}, 400, ""),
    ("/v1/chat/completions", {"messages": HI, "json_schema": {"type": "nonsense"}}, 400, "json_schema"),
    ("/v1/chat/completions", {"messages": HI, "json_schema": {"$ref": "#/nowhere"}}, 400, "json_schema"),
    ("/v1/chat/completions", {"messages": HI, "model": "other"}, 404, "model"),
    ("/v1/chat/completions", {"messages": [user(words(9000, 1))]}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content[0]"),
    ("/v1/chat/completions", {"messages": HI, "tool_choice": "required"}, 400, "tool_choice"),
    ("/v1/chat/completions", {"messages": HI, "chat_template_kwargs": {"tools": 1}}, 400, "chat_template_kwargs"),
    ("/v1/completions", {"prompt": [99999999]}, 400, "tokens"),
    ("/v1/completions", {"prompt": [-1]}, 400, "tokens"),
    ("/v1/completions", {"prompt": "a", "stop": [""] * 3, "max_tokens": "many"}, 400, "max_tokens"),
    ("/tokenize", {"content": 5}, 400, "content"),
    ("/detokenize", {"tokens": [99999999]}, 400, "tokens"),
    ("/apply-template", {"messages": []}, 400, "messages"),
]


@pytest.mark.parametrize(("path", "body", "status", "param"), BAD)
def test_bad_input_gets_its_status_and_the_name_of_the_field(
    pair: Server, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    answer = pair.http.post(path, json=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"]
    assert (error["param"] or "") == param


def test_a_hundred_clients_on_two_slots_are_all_served_and_get_their_own_answers(pair: Server) -> None:
    prompts = [[system(words(60, 5)), user(f"Question {number}: {words(20, 100 + number)}")] for number in range(100)]

    async def ask(client: httpx.AsyncClient, number: int) -> tuple[int, str]:
        body = {"messages": prompts[number], "max_tokens": 6, "temperature": 0, "stream": number % 2 == 0}
        answer = await client.post("/v1/chat/completions", json=body)
        return answer.status_code, answer.text

    async def all_at_once() -> list[tuple[int, str]]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=pair.url, timeout=300, limits=limits) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(100)))

    answers = asyncio.run(all_at_once())
    assert {status for status, _ in answers} == {200}
    # Greedy tokens are equal alone and in company (facts/llama-state.md).
    for number in (1, 33, 77, 99):
        alone = pair.chat(prompts[number], 6)["choices"][0]["message"]
        together = httpx.Response(200, text=answers[number][1]).json()["choices"][0]["message"]
        assert together == alone, f"client {number}"


def test_bad_requests_among_good_ones_touch_nobody_else(pair: Server) -> None:
    good = {"messages": [user(words(40, 9))], "max_tokens": 8, "temperature": 0}
    alone = pair.chat(good["messages"], 8)["choices"][0]["message"]

    async def mixed() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=pair.url, timeout=300) as client:
            asked = [pair for path, body, _, _ in BAD for pair in ((path, body), ("/v1/chat/completions", good))]
            return await asyncio.gather(*(client.post(path, json=body) for path, body in asked))

    fine = [answer for answer in asyncio.run(mixed()) if answer.status_code == 200]
    assert len(fine) == len(BAD)
    assert all(answer.json()["choices"][0]["message"] == alone for answer in fine)


def test_memory_stays_under_model_context_and_budget_over_200_mixed_requests() -> None:
    rng = random.Random(3)
    budget = 24 * MIB
    with serving("--ctx", "4096", "--cache-ram", "24MiB") as server:
        server.chat([user(words(3000, 1))])  # everything that is allocated once
        base = server.rss() - int(server.metric("kvalet_cache_used_bytes", '{tier="ram"}'))
        histories: list[list[dict[str, Any]]] = []
        for number in range(200):
            if not histories or rng.random() < 0.2:
                histories.append([system(words(rng.randrange(50, 600), number))])
            history = rng.choice(histories)
            if rng.random() < 0.2 and len(history) > 2:
                del history[rng.randrange(1, len(history)) :]
            history.append(user(words(rng.randrange(5, 100), number + 1000)))
            if len(history) > 14:
                histories.remove(history)
            server.chat(history, rng.randrange(1, 20))
            history.append(assistant(words(10, number)))
            assert server.metric("kvalet_cache_used_bytes", '{tier="ram"}') <= budget
        assert server.metric("kvalet_cache_evictions_total", '{tier="ram"}') > 0, "the budget must have been reached"
        assert server.rss() <= 1.1 * (base + budget)
