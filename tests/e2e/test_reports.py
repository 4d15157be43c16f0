"""Faults that users of other servers reported (shared/cases/public-reports.md, by row), as small requests to ours."""

import json
from typing import Any

import pytest

from tests.e2e.serving import Message, Server, assistant, read, said, serving, system, user, words

pytestmark = pytest.mark.e2e
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}
EDIT = {
    "type": "function",
    "function": {
        "name": "edit",
        "parameters": {
            "type": "object",
            "properties": {"path": {"enum": ["b.txt"]}, "edit": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["path", "edit"],
        },
    },
}


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_row_8_a_prompt_that_is_all_cached_is_answered(server: Server, max_tokens: int) -> None:
    prompt = words(640, 300)
    server.complete(prompt, 0)
    body = server.complete(prompt, max_tokens)
    assert body["usage"]["completion_tokens"] == max_tokens
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] < body["usage"]["prompt_tokens"]


def test_row_8_an_answer_is_continued_where_it_stopped(server: Server) -> None:
    messages = [system(words(300, 301)), user("Go on and on.")]
    whole = server.chat(messages, 24, **PLAIN)["choices"][0]["message"]["content"]
    part = server.chat(messages, 12, **PLAIN)["choices"][0]["message"]["content"]
    more = server.chat([*messages, assistant(part)], 12, **PLAIN)
    assert part + more["choices"][0]["message"]["content"] == whole
    assert read(more) <= 64


def test_row_9_a_tool_loop_without_thinking_reads_only_what_is_new(server: Server) -> None:
    history: list[Message] = [system(words(500, 302)), user("Edit it.")]
    fields: dict[str, Any] = {"tools": [EDIT], **PLAIN}
    first = server.chat(history, 120, tool_choice="required", parallel_tool_calls=False, **fields)
    call = said(first)["tool_calls"][0]
    history += [said(first), {"role": "tool", "tool_call_id": call["id"], "content": words(60, 303)}]
    second = server.chat(history, 40, **fields)
    new = second["usage"]["prompt_tokens"] - first["usage"]["prompt_tokens"]
    assert read(second) <= new
    history += [said(second), user("And now?")]
    third = server.chat(history, **fields)
    assert third["usage"]["prompt_tokens"] - read(third) >= first["usage"]["prompt_tokens"] - 64


def test_row_19_a_replayed_call_keeps_its_arguments_in_order_and_hits(server: Server) -> None:
    history: list[Message] = [system(words(200, 304)), user("Edit it.")]
    first = server.chat(history, 120, tools=[EDIT], tool_choice="required", parallel_tool_calls=False, **PLAIN)
    call = said(first)["tool_calls"][0]
    assert list(json.loads(call["function"]["arguments"])) == ["path", "edit"]
    history += [said(first), {"role": "tool", "tool_call_id": call["id"], "content": "done"}]
    again = server.chat(history, tools=[EDIT], **PLAIN)
    assert again["kvalet"]["diverged_at"] is None, again["kvalet"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"]


def test_row_18_the_same_request_renders_the_same_bytes_in_every_process() -> None:
    fields: dict[str, Any] = {
        "tools": [EDIT, {"type": "function", "function": {"name": "a", "parameters": {"z": 1, "b": {"y": 2, "a": 3}}}}]
    }
    texts = set()
    for seed in ("0", "1"):
        with serving(PYTHONHASHSEED=seed) as server:
            texts |= {server.prompt([system("s"), user("u")], **fields) for _ in range(20)}
    assert len(texts) == 1


def test_row_20_two_prompts_that_end_right_at_checkpoints_both_finish() -> None:
    with serving("--parallel", "2", "--cache-ram", "2MiB") as server:
        for length in (64, 128, 512, 576, 1024):
            tokens = [300 + at % 700 for at in range(length)]
            for _ in range(3):
                assert server.complete(tokens, 2)["usage"]["completion_tokens"] >= 1


def test_row_25_a_budget_of_0_leaves_nothing_anywhere() -> None:
    with serving("--cache-ram", "0") as server:
        server.chat([system(words(800, 305)), user("a")])
        server.chat([system(words(800, 305)), user("b")])
        held = server.http.get("/cache").json()
        assert held["count"] == held["ram"]["used"] == held["disk"]["used"] == 0


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
def test_row_43_a_session_is_honoured_on_every_route(server: Server, route: str) -> None:
    name = f"session of {route}"
    text = route + words(300, 306)
    body = {"prompt": text} if route == "/v1/completions" else {"messages": [user(text)]}
    answer = server.http.post(route, json={**body, "max_tokens": 1}, headers={"X-Session-Id": name})
    assert answer.status_code == 200, answer.text
    assert name in {one["name"] for one in server.http.get("/cache").json()["sessions"]}


def test_row_52_a_system_message_in_the_middle_keeps_what_stands_before_it() -> None:
    history = [system(words(400, 307)), user(words(300, 308)), assistant("Yes."), user("More.")]
    with serving("synthetic:tiny") as server:  # whose template refuses such a message, as Qwen's does
        server.chat(history)
        body = server.chat([*history, assistant("Ok."), system("A reminder."), user("Go on.")])
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] >= server.count(server.prompt(history[:2])) - 64 - 16
        assert body["kvalet"]["notes"]


def test_row_53_what_replies_say_was_cached_is_what_the_engine_did_not_read(server: Server) -> None:
    before = {name: server.metric(name) for name in ("kvalet_prompt_tokens_total", "kvalet_read_tokens_total")}
    bodies = [server.chat([system(words(500, 309)), user(words(20, 310 + n % 3))]) for n in range(6)]
    prompt = sum(body["usage"]["prompt_tokens"] for body in bodies)
    assert server.metric("kvalet_prompt_tokens_total") - before["kvalet_prompt_tokens_total"] == prompt
    assert server.metric("kvalet_read_tokens_total") - before["kvalet_read_tokens_total"] == sum(map(read, bodies))
    assert all(body["timings"]["prompt_n"] == read(body) for body in bodies)
