"""The proxy over HTTP in front of a scripted upstream: the keeper for chat, everything else and every error as it came."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from keeper.config import KeeperConfig
from keeper.message import History
from server.proxy import Proxy, create_app
from server.proxy_tokens import Estimate, says_too_long
from server.proxy_upstream import Upstream as Behind
from tests.keeper.agent import Score
from tests.keeper.audit import missing_names, wrong_values
from tests.keeper.counting import count
from tests.keeper.helpers import a, s, t, u
from tests.keeper.reader import Reader, call, text_of
from tests.keeper.stories import Stream
from tests.keeper.test_tooltree import large
from tests.keeper.upstream import Upstream, reading, serving, upstream

LEDGER = [s(), u("Item 1: doma86 = 342 by Ada."), a("Noted."), u("doma86?")]


@contextmanager
def proxied(
    answer: Any, root: Path | None = None, key: str | None = None, api_key: str | None = None, read: float = 30.0, **settings: Any
) -> Iterator[tuple[httpx.Client, Upstream, Proxy]]:
    """A client of a proxy in front of an upstream. `settings` are the keeper's, but upstream_window."""
    window = settings.pop("upstream_window", 1_000_000)
    with upstream(answer, window=window) as up:
        behind = Behind(up.url + "/v1/", key, read, keeps_keys=api_key is not None)
        proxy = Proxy(behind, KeeperConfig(root=root, **settings))
        with serving(create_app(proxy, api_key)) as url, httpx.Client(base_url=url, timeout=30) as client:
            yield client, up, proxy


def chat(client: httpx.Client, messages: list[dict[str, Any]], **body: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json={"model": "m", "messages": messages, **body})


def streamed(client: httpx.Client, messages: list[dict[str, Any]], **body: Any) -> list[Any]:
    """The data lines of a stream, JSON read."""
    with client.stream(
        "POST", "/v1/chat/completions", json={"model": "m", "messages": messages, "stream": True, **body}
    ) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def said(chunks: list[Any]) -> str:
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c != "[DONE]" and c.get("choices"))


def searching(body: dict[str, Any]) -> dict[str, Any]:
    """A model that searches once and then answers."""
    if body["messages"][-1]["role"] == "tool":
        return {"role": "assistant", "content": "It is 342.", "reasoning_content": "found it"}
    return {"role": "assistant", "content": "Let me look. ", "tool_calls": [call("recall", {"query": "doma86"}, 1)]}


def test_a_completion_comes_back_with_everything_the_upstream_said() -> None:
    with proxied(lambda _: {**a("342"), "annotations": [{"x": 1}]}) as (client, up, _):
        response = chat(client, LEDGER, seed=7, unknown_field={"deep": [1]})
        found = response.json()
        assert response.status_code == 200
        assert found["choices"][0] == {"index": 0, "message": {**a("342"), "annotations": [{"x": 1}]}, "finish_reason": "stop"}
        assert found["system_fingerprint"] == "scripted" and found["usage"]["prompt_tokens"] > 0
        assert found["kvalet"]["keeper"]["calls"] == 1
        sent = {k: v for k, v in up.bodies[0].items() if k != "tools"}
        assert sent == {"model": "m", "messages": LEDGER, "seed": 7, "unknown_field": {"deep": [1]}}


def test_searches_happen_between_and_neither_a_whole_nor_a_streamed_reply_shows_them() -> None:
    with proxied(searching) as (client, up, proxy):
        whole = chat(client, LEDGER).json()
        assert whole["choices"][0]["message"] == {
            "role": "assistant",
            "content": "Let me look. It is 342.",
            "reasoning_content": "found it",
        }
        assert whole["choices"][0]["finish_reason"] == "stop"
        chunks = streamed(client, LEDGER)
        assert said(chunks) == "Let me look. It is 342." and chunks[-1] == "[DONE]"
        assert "tool_calls" not in json.dumps(chunks[:-1]) and "recall" not in json.dumps(chunks[:-1])
        assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]].count("stop") == 1
        assert sum("role" in c["choices"][0]["delta"] for c in chunks[:-1]) == 1
        assert chunks[-2]["kvalet"]["keeper"]["searches"] == 1
        assert len(up.bodies) == 4 and proxy.keeper.counters["searches"] == 2


def test_groups_are_opened_between_and_neither_a_whole_nor_a_streamed_reply_shows_it() -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        opened = any(tool["function"]["name"] == "mcp__sql__list_entry" for tool in body["tools"])
        wanted = call("mcp__sql__list_entry", {}, 2) if opened else call("open_tools", {"path": "sql"}, 1)
        return {"role": "assistant", "content": None, "tool_calls": [wanted]}

    tools = list(large().tools.values())
    with proxied(answer, tool_tree=True) as (client, up, _):
        whole = chat(client, [u("one")], tools=tools).json()["choices"][0]["message"]
        assert [c["function"]["name"] for c in whole["tool_calls"]] == ["mcp__sql__list_entry"]
        chunks = streamed(client, [u("another")], tools=tools)
        parts = [p for c in chunks[:-1] for p in c["choices"][0]["delta"].get("tool_calls") or ()]
        assert parts[0]["function"]["name"] == "mcp__sql__list_entry" and parts[0]["index"] == 0
        assert "open_tools" not in json.dumps(chunks[:-1]) and len(up.bodies) == 4


def test_the_agents_own_calls_pass_in_both_forms() -> None:
    own = {"role": "assistant", "content": None, "tool_calls": [call("read", {"path": "x.py"}, 5)]}
    with proxied(lambda _: json.loads(json.dumps(own))) as (client, _, __):
        assert chat(client, [u("go")]).json()["choices"][0]["message"] == own
        chunks = streamed(client, [u("go")])
        parts = [p for c in chunks[:-1] for p in c["choices"][0]["delta"].get("tool_calls") or ()]
        assert parts[0]["function"]["name"] == "read" and parts[0]["index"] == 0
        assert json.loads("".join(p["function"]["arguments"] for p in parts)) == {"path": "x.py"}
        assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_usage_comes_in_a_stream_only_where_it_was_asked_for() -> None:
    with proxied(lambda _: a("x")) as (client, up, proxy):
        assert not any("usage" in c for c in streamed(client, [u("hi")])[:-1])
        chunks = streamed(client, [u("hi")], stream_options={"include_usage": True})
        assert chunks[-2]["choices"] == [] and chunks[-2]["usage"]["prompt_tokens"] > 0
        assert all(body["stream_options"]["include_usage"] for body in up.bodies)
        assert proxy.keeper.counters["prompt_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_an_upstreams_error_passes_unchanged(stream: bool) -> None:
    with proxied(lambda _: a("x")) as (client, up, _):
        for status, text in ((429, b'{"error": {"message": "slow down"}}'), (401, b"no"), (500, b"<html>oops"), (503, b"{}")):
            up.fail.append((status, text))
            response = chat(client, [u("hi")], stream=stream)
            assert (response.status_code, response.content) == (status, text)
            assert response.headers["x-upstream"] == "scripted"
        assert len(up.bodies) == 4, "an answer is an answer, it is not asked for again"


def test_an_upstream_that_dies_in_the_middle_of_a_stream_is_an_error_event_and_no_done() -> None:
    with proxied(lambda _: a("It is three hundred and forty-two.")) as (client, up, proxy):
        up.die_after = 4
        chunks = streamed(client, LEDGER)
        assert said([c for c in chunks if c != "[DONE]" and "choices" in c]) == "It is three hundred a"
        assert chunks[-1]["error"]["code"] == "upstream_failed" and "[DONE]" not in chunks
        up.die_after = None
        assert said(streamed(client, LEDGER)) == "It is three hundred and forty-two."
        assert proxy.keeper.archive.rows("SELECT count(*) FROM node")[0][0] == len(LEDGER) + 1, "half a reply is not recorded"


def test_an_upstream_that_is_not_there_is_a_502_that_says_where_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.proxy_upstream.RETRY_AFTER_SECONDS", (0.0, 0.0))
    proxy = Proxy(Behind("http://127.0.0.1:9"), KeeperConfig())
    with serving(create_app(proxy)) as url:
        response = httpx.post(f"{url}/v1/chat/completions", json={"messages": [u("hi")]})
        assert response.status_code == 502 and "127.0.0.1:9" in response.json()["error"]["message"]
        assert httpx.get(f"{url}/v1/models").status_code == 502


def test_an_upstream_that_says_nothing_in_time_is_a_502() -> None:
    with proxied(lambda _: a("x"), read=0.2) as (client, up, _):
        up.delay = 1.0
        response = chat(client, [u("hi")])
        assert response.status_code == 502 and "ReadTimeout" in response.json()["error"]["message"]


def test_other_paths_pass_both_ways_as_they_are() -> None:
    with proxied(lambda _: a("x")) as (client, _, __):
        models = client.get("/v1/models", params={"a": "b"})
        assert models.json()["data"][0]["id"] == "scripted" and models.headers["x-upstream"] == "scripted"
        missing = client.post("/v1/embeddings", json={"input": "x"})
        assert missing.status_code == 404 and missing.json() == {"detail": "Not Found"}, "the upstream's own words"


def test_the_clients_key_goes_on_unless_the_proxy_has_one_of_its_own() -> None:
    with proxied(lambda _: a("x")) as (client, up, _):
        client.post(
            "/v1/chat/completions", json={"messages": [u("hi")]}, headers={"Authorization": "Bearer mine", "X-Extra": "1"}
        )
        assert up.headers[0]["authorization"] == "Bearer mine" and up.headers[0]["x-extra"] == "1"
    with proxied(lambda _: a("x"), key="theirs") as (client, up, _):
        client.post("/v1/chat/completions", json={"messages": [u("hi")]}, headers={"Authorization": "Bearer mine"})
        assert up.headers[0]["authorization"] == "Bearer theirs"


def test_a_proxy_with_a_key_asks_for_it() -> None:
    with proxied(lambda _: a("x"), key="theirs", api_key="ours") as (client, up, _):
        assert chat(client, [u("hi")]).status_code == 401 and up.bodies == []
        ok = client.post("/v1/chat/completions", json={"messages": [u("hi")]}, headers={"Authorization": "Bearer ours"})
        assert ok.status_code == 200 and up.headers[0]["authorization"] == "Bearer theirs"
    with proxied(lambda _: a("x"), api_key="ours") as (client, up, _):
        client.post("/v1/chat/completions", json={"messages": [u("hi")]}, headers={"X-Api-Key": "ours"})
        assert "authorization" not in up.headers[0] and "x-api-key" not in up.headers[0], "the proxy's key stays with the proxy"


BAD = [(b"{", "invalid_json"), (b"[1]", "invalid_body"), (b"{}", "invalid_history"), (b'{"messages": [5]}', "invalid_history")]
BAD += [(b'{"messages": [{"role": "user", "content": "\\ud83d"}]}', "invalid_json"), (b"[" * 100_000, "invalid_json")]


@pytest.mark.parametrize(("content", "code"), [*BAD, (b'{"messages": [{"role": "user", "content": 5}]}', "invalid_history")])
def test_a_bad_body_is_a_400_that_names_what_is_wrong(content: bytes, code: str) -> None:
    with proxied(lambda _: a("x")) as (client, up, _):
        response = client.post("/v1/chat/completions", content=content)
        assert response.status_code == 400 and response.json()["error"]["code"] == code and up.bodies == []


def test_a_message_larger_than_the_window_is_a_400_that_says_what_to_do() -> None:
    with proxied(lambda _: a("x"), window=2048) as (client, up, _):
        response = chat(client, [s(), u("word " * 5000)])
        error = response.json()["error"]
        assert response.status_code == 400 and error["code"] == "context_length_exceeded" and error["param"] == "messages[1]"
        assert "--window" in error["message"] and up.bodies == []


def test_a_refused_prompt_teaches_the_estimate_and_is_prepared_once_more() -> None:
    stories = [m for i in range(40) for m in (u(f"Item {i}: It rained over the mill. " * 4), a("Noted."))]

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        return a("NONE" if text_of(body["messages"][-1]).startswith("NOTES") else "fine")

    with proxied(answer, window=2300, upstream_window=2100) as (client, _, proxy):
        proxy.estimate.scale = 0.6  # counts far too little
        response = chat(client, [s(), u("Read."), a("Yes."), *stories, u("more")])
        assert response.status_code in (200, 400)
        assert proxy.estimate.scale > 0.6
        again = chat(client, [s(), u("Read."), a("Yes."), *stories, u("more")])
        assert again.status_code == 200 and again.json()["choices"][0]["message"]["content"] == "fine"


def test_the_estimate_learns_from_usage_and_stays_a_little_above_it() -> None:
    estimate, body = Estimate(), {"messages": [u("It rained over the mill. " * 50)]}
    guessed = estimate.count(body["messages"], [])
    estimate.learn(body, guessed * 2)
    assert guessed * 2 <= estimate.count(body["messages"], []) <= guessed * 2.1 + 2
    estimate.learn(body, 0)
    assert (
        estimate.count(
            [{"role": "user", "content": [{"type": "text", "text": "x"}]}, {"role": "assistant", "content": None}], [{}]
        )
        > 0
    )
    assert says_too_long(400, b'{"error": {"code": "context_length_exceeded"}}')
    assert says_too_long(400, b"This model's maximum context length is 8192 tokens") and not says_too_long(400, b"bad tool")
    assert not says_too_long(429, b"context_length_exceeded")


def test_conversations_notes_archive_and_counters_are_shown() -> None:
    reader = Reader()
    with proxied(reading(reader), window=2048) as (client, _, __):
        history: list[dict[str, Any]] = [s("You keep the books.")]
        for message in Stream(5, 20).messages():
            history.append(u(message.text))
            history.append(chat(client, history).json()["choices"][0]["message"])
        listed = client.get("/keeper/conversations").json()["data"]
        assert len(listed) == 1 and listed[0]["messages"] == len(history) and listed[0]["title"].startswith("Read the items")
        found = client.get(f"/keeper/{listed[0]['id']}/notes").json()
        assert len(found["versions"]) >= 2
        assert found["versions"][0]["notes"].startswith("NOTES\nRULES\n- Rule:")
        assert any(line.startswith("+") for line in found["versions"][1]["diff"])
        assert found["versions"][1]["taken"]["replies"]
        matches = client.get(f"/keeper/{listed[0]['id']}/archive", params={"q": "confidential"}).json()
        assert matches["total"] == 1 and matches["matches"][0]["item"] == 1
        newest = client.get(f"/keeper/{listed[0]['id']}/archive", params={"limit": 2}).json()["messages"]
        assert newest[-1]["content"] == history[-1]["content"]
        assert client.get("/keeper/ffffff/notes").json()["error"]["code"] == "unknown_conversation"
        metrics = client.get("/metrics").text
        assert f"kvalet_keeper_note_calls_total {float(len(found['versions']))}" in metrics
        assert f"kvalet_keeper_archived_messages {float(len({json.dumps(m) for m in history}))}" in metrics


def test_two_clients_at_once_are_both_answered() -> None:
    with proxied(lambda _: a("fine"), window=2048) as (client, up, proxy):
        up.delay = 0.05
        stories = [m for i in range(10) for m in (u(f"Item {i}: rain."), a("Noted."))]
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda n=n: found.append(chat(client, [*stories, u(f"client {n}")]).status_code))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [200] * 8
        assert proxy.keeper.archive.rows("SELECT count(*) FROM branch")[0][0] == 8


def test_notes_and_archive_survive_a_restart(tmp_path: Path) -> None:
    history: list[dict[str, Any]] = [s("You keep the books.")]
    reader, messages = Reader(), Stream(5, 24).messages()
    for part in (messages[:18], messages[18:]):
        with proxied(reading(reader), root=tmp_path, window=2048) as (client, up, _):
            for message in part:
                history.append(u(message.text))
                reply = chat(client, history).json()["choices"][0]["message"]
                history.append(reply)
                assert [q.answer for q in message.questions] == (reply["content"].split("\n") if message.questions else [])
            assert max(count(body["messages"], body["tools"]) for body in up.bodies) <= 2048


@pytest.mark.e2e
def test_sixty_thousand_tokens_through_a_window_of_4096_lose_nothing(tmp_path: Path) -> None:
    drawn = Stream(11, 450)
    with proxied(reading(Reader()), root=tmp_path, window=4096, upstream_window=4096) as (client, up, proxy):
        history, score, item = [s("You keep the books.")], Score(), 0
        for message in drawn.messages():
            item += message.text.startswith("Item ")
            history.append(u(message.text))
            text = said(streamed(client, history))
            history.append(a(text))
            score.add(message.questions, text, item)
        assert count(history) >= 60_000
        assert score.misses == [] and min(score.asked.values()) >= 12
        track = proxy.keeper.archive.enter(History(history))
        assert wrong_values(proxy.keeper.archive, track, history, drawn.ledger) == []
        assert missing_names(proxy.keeper.archive, track, history, drawn.ledger) == []
        assert max(count(body["messages"], body["tools"]) for body in up.bodies) <= 4096
        asked = proxy.keeper.counters
        assert asked["cuts"] >= 20 and asked["own_cached_tokens"] >= 0.9 * asked["own_prompt_tokens"]


def test_a_tool_result_beside_a_search_is_answered_by_the_agent_and_the_results_come_again() -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        if body["messages"][-1]["role"] == "tool":
            return a("342" if "[item 1" in json.dumps(body["messages"]) else "unknown")
        return {"role": "assistant", "content": None, "tool_calls": [call("recall", {"query": "doma86"}, 1), call("read", {}, 2)]}

    with proxied(answer) as (client, _, __):
        reply = chat(client, LEDGER).json()["choices"][0]["message"]
        assert [c["function"]["name"] for c in reply["tool_calls"]] == ["read"]
        assert chat(client, [*LEDGER, reply, t("call_2", "x")]).json()["choices"][0]["message"]["content"] == "342"
