"""Anthropic's routes over the fake: blocks in and out, streamed and whole, errors in their form."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.server.serving import Answers, serving

ASK: dict[str, Any] = {"model": "fake", "max_tokens": 200, "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}
CALL = "<tool_call>\n<function=look>\n<parameter=at>\nhome\n</parameter>\n</function>\n</tool_call>"


def ask(client: TestClient, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/messages", json={**ASK, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def streamed(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    answer = client.post("/v1/messages", json={**ASK, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    blocks = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    data = [json.loads(lines[1].removeprefix("data: ")) for lines in blocks]
    assert [lines[0] for lines in blocks] == [f"event: {one['type']}" for one in data]
    return data


def prompt(client: TestClient, **fields: Any) -> str:
    """What the model was given, as the fake's slot holds it."""
    ask(client, max_tokens=0, **fields)
    runtime = client.app.state.runtime  # type: ignore[attr-defined]
    return str(runtime.tokenizer.detokenize(runtime.engine.resident()[0]).decode())


def test_an_answer_has_anthropics_form() -> None:
    with serving(script=Answers("Hello.")) as client:
        body = ask(client)
        assert body["content"] == [{"type": "text", "text": "Hello."}]
        assert (body["type"], body["role"], body["stop_reason"], body["stop_sequence"]) == (
            "message",
            "assistant",
            "end_turn",
            None,
        )
        assert body["usage"]["output_tokens"] == 7
        assert body["kvalet"]["resumed_from"] == "none"


def test_cached_tokens_are_counted_beside_the_input() -> None:
    with serving(script=Answers("ok")) as client:
        long = [{"role": "user", "content": "x" * 400}]
        first, second = ask(client, messages=long)["usage"], ask(client, messages=long)["usage"]
        assert second["cache_read_input_tokens"] > 300
        assert second["input_tokens"] + second["cache_read_input_tokens"] == first["input_tokens"]


def test_a_stream_sends_blocks_that_join_to_the_whole_answer() -> None:
    with serving(script=Answers("Hm.\n</think>\n\nYes.\n\n" + CALL)) as client:
        fields = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "tools": [TOOL]}
        whole = ask(client, **fields)["content"]
        events = streamed(client, **fields)
        starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        assert [block["type"] for block in starts] == ["thinking", "text", "tool_use"]
        deltas = [[e["delta"] for e in events if e["type"] == "content_block_delta" and e["index"] == i] for i in range(3)]
        assert "".join(d["thinking"] for d in deltas[0]) == whole[0]["thinking"] == "Hm."
        assert "".join(d["text"] for d in deltas[1]) == whole[1]["text"] == "Yes."
        assert json.loads("".join(d["partial_json"] for d in deltas[2])) == whole[2]["input"] == {"at": "home"}
        assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
        assert events[-2]["delta"]["stop_reason"] == "tool_use"
        assert events[0]["type"] == "message_start"


def test_thinking_is_off_unless_it_is_asked_for() -> None:
    with serving(script=Answers("ok")) as client:
        assert prompt(client).endswith("<think>\n\n</think>\n\n")
        assert prompt(client, thinking={"type": "enabled", "budget_tokens": 9}).endswith("<think>\n")


def test_system_tools_results_thinking_and_calls_reach_the_template() -> None:
    history = [
        {"role": "user", "content": [{"type": "text", "text": "Look at home."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I look.", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "home", "deep": True}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a cat"}]}],
        },
    ]
    with serving(script=Answers("ok")) as client:
        text = prompt(client, system=[{"type": "text", "text": "Be brief."}], messages=history, tools=[TOOL])
        for part in (
            "Be brief.",
            '"name": "look"',
            "Look at home.",
            "I look.",
            "<parameter=at>\nhome\n",
            "<tool_response>\na cat",
        ):
            assert part in text, part


def test_a_stop_sequence_is_named() -> None:
    with serving(script=Answers("one two three")) as client:
        body = ask(client, stop_sequences=["two"])
        assert (body["content"][0]["text"], body["stop_reason"], body["stop_sequence"]) == ("one ", "stop_sequence", "two")


def test_the_session_comes_from_the_metadata_or_the_header() -> None:
    with serving(script=Answers("ok")) as client:
        long = [{"role": "user", "content": "y" * 200}]
        ask(client, messages=long, metadata={"user_id": "u7"})
        assert [one["name"] for one in client.get("/cache").json()["sessions"]] == ["u7"]


def test_tokens_are_counted_as_the_prompt_would_be_read() -> None:
    with serving(script=Answers("ok")) as client:
        counted = client.post("/v1/messages/count_tokens", json={"messages": ASK["messages"], "system": "Be brief."}).json()
        assert counted["input_tokens"] == ask(client, system="Be brief.")["usage"]["input_tokens"]


@pytest.mark.parametrize(
    ("fields", "status", "kind"),
    [
        ({"max_tokens": "many"}, 400, "invalid_request_error"),
        ({"messages": []}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "invalid_request_error"),
        ({"tool_choice": {"type": "tool"}}, 400, "invalid_request_error"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error"),
        ({"model": "claude"}, 404, "not_found_error"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, 400, "invalid_request_error"),
    ],
)
def test_errors_have_anthropics_form(fields: dict[str, Any], status: int, kind: str) -> None:
    with serving(script=Answers("ok")) as client:
        for stream in (False, True):
            answer = client.post("/v1/messages", json={**ASK, **fields, "stream": stream})
            assert (answer.status_code, answer.json()["type"], answer.json()["error"]["type"]) == (status, "error", kind)
