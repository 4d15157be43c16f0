"""Whatever a client gets wrong, it is told what, in OpenAI's form, with the right status; others and the process go on."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from engine.context import StateKind
from engine.selfcheck import Promise, SelfCheck
from tests.server.serving import Answers, events, metric, serving

HI = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"


def refused(client: TestClient, path: str, status: int, **sent: Any) -> dict[str, Any]:
    """The error object of a request that must be refused with this status."""
    answer = client.post(path, **sent)
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.fixture(scope="module")
def client() -> Any:
    with serving(script=Answers("ok"), ctx=512) as made:
        yield made


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": HI, "temperature": "hot"}, "temperature"),
        ({"messages": HI, "logit_bias": {"x": 1}}, "logit_bias"),
        ({"messages": HI, "response_format": {"type": "json_schema"}}, "response_format"),
        ({"messages": HI, "grammar": "invalid"}, "grammar"),
        ({"messages": HI, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": HI, "continue_final_message": True}, "messages"),
    ],
)
def test_a_bad_field_is_400_and_named(client: TestClient, body: dict[str, Any], param: str) -> None:
    error = refused(client, CHAT, 400, json=body)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")


def test_two_fields_that_exclude_each_other_are_told_so(client: TestClient) -> None:
    error = refused(client, CHAT, 400, json={"messages": HI, "grammar": 'root ::= "a"', "json_schema": {}})
    assert error["message"] == "give `grammar` or `json_schema`, not both"


def test_unknown_fields_are_ignored(client: TestClient) -> None:
    assert client.post(CHAT, json={"messages": HI, "frobnicate": {"a": 1}, "store": True}).status_code == 200


def test_broken_json_is_400(client: TestClient) -> None:
    error = refused(client, CHAT, 400, content=b'{"messages": [', headers={"content-type": "application/json"})
    assert error["code"] == "invalid_json"


def test_a_body_that_is_no_json_object_is_400(client: TestClient) -> None:
    for sent in ({"json": [1]}, {"json": "x"}, {"content": b"x", "headers": {"content-type": "text/plain"}}, {}):
        assert "Content-Type: application/json" in refused(client, CHAT, 400, **sent)["message"]


def test_json_nested_deeper_than_python_recurses_is_400(client: TestClient) -> None:
    deep = b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    error = refused(client, CHAT, 400, content=deep, headers={"content-type": "application/json"})
    assert error["message"] == "the body is not JSON: it nests too deep"


def test_a_body_that_is_not_utf8_or_counts_in_thousands_of_digits_is_told_so(client: TestClient) -> None:
    for content, says in ((b'{"model": "\xff"}', "utf-8"), (b'{"max_tokens": ' + b"9" * 5000 + b"}", "digits")):
        error = refused(client, CHAT, 400, content=content, headers={"content-type": "application/json"})
        assert error["code"] == "invalid_json" and says in error["message"]


def test_a_prompt_longer_than_the_context_is_400_with_both_numbers(client: TestClient) -> None:
    error = refused(client, CHAT, 400, json={"messages": [{"role": "user", "content": "x" * 600}]})
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]


def test_an_unknown_model_is_404_and_told_what_there_is(client: TestClient) -> None:
    error = refused(client, CHAT, 404, json={"messages": HI, "model": "gpt-9"})
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "fake" in error["message"]


def test_the_model_name_default_is_whatever_is_served(client: TestClient) -> None:
    reply = client.post(CHAT, json={"messages": HI, "model": "default", "max_tokens": 2})
    assert reply.status_code == 200, reply.text


def test_an_unknown_route_is_404_and_a_wrong_method_405(client: TestClient) -> None:
    assert client.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    answer = client.get(CHAT)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [70000]}, "tokens"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, "echo"),
        ({}, "prompt"),
    ],
)
def test_a_bad_completion_request_is_400_and_named(client: TestClient, body: dict[str, Any], param: str) -> None:
    assert refused(client, "/v1/completions", 400, json=body)["param"] == param


def test_a_streamed_request_that_is_refused_gets_its_status_and_no_stream(client: TestClient) -> None:
    refused(client, CHAT, 400, json={"messages": [{"role": "user", "content": "x" * 600}], "stream": True})
    refused(client, CHAT, 400, json={"messages": HI, "grammar": "invalid", "stream": True})


def test_a_template_that_raises_is_400_in_its_own_words() -> None:
    with serving(template="{{ raise_exception('no cats') }}") as picky:
        assert "no cats" in refused(picky, CHAT, 400, json={"messages": HI})["message"]


def test_a_template_that_is_wrong_in_itself_is_400_too_and_the_server_lives() -> None:
    with serving(template="{{ messages[7].content.x.y }}", script=Answers("ok")) as broken:
        refused(broken, CHAT, 400, json={"messages": HI})
        assert broken.post("/v1/completions", json={"prompt": "PROMPT"}).status_code == 200


def test_a_body_over_the_limit_is_413() -> None:
    with serving(max_body=1000) as small:
        answer = small.post(CHAT, json={"messages": [{"role": "user", "content": "x" * 2000}]})
        assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")


def test_a_body_without_a_stated_length_is_413_once_it_is_too_long() -> None:
    def body() -> Iterator[bytes]:
        yield b'{"messages": "'
        for _ in range(100):
            yield b"x" * 100

    with serving(max_body=1000) as small:
        answer = small.post(CHAT, content=body(), headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")


def test_a_full_queue_is_429_with_retry_after() -> None:
    with serving(max_queue=1) as full:
        answer = full.post("/v1/completions", json={"prompt": "a", "n": 100, "max_tokens": 1})
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        assert answer.headers["retry-after"] == "1"
        assert full.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_an_error_in_the_middle_of_a_stream_is_a_data_line_and_the_next_request_is_served() -> None:
    with serving(script=Answers("abc")) as client:
        context = client.app.state.runtime.engine._context  # type: ignore[attr-defined]
        context.refuse["decode"] = 2
        answer = client.post(CHAT, json={"messages": HI, "stream": True})
        assert answer.status_code == 200
        assert json.loads(events(answer)[-1])["error"]["code"] == "engine_error"
        assert client.post(CHAT, json={"messages": HI}).status_code == 200


def test_a_failed_self_check_is_said_by_health() -> None:
    with serving(check=SelfCheck(False, Promise.NONE, ("restored logits differ",), None)) as client:
        health = client.get("/health").json()
        assert (health["status"], health["reuse"]) == ("degraded", False)
        assert "differ" in health["self_check"]


def test_answers_are_counted_by_route_and_status(client: TestClient) -> None:
    client.get("/v1/nothing/at/all")
    text = client.get("/metrics").text
    assert 'kvalet_http_responses_total{route="/v1/chat/completions",status="400"}' in text
    assert 'route="other",status="404"' in text
    assert "nothing" not in text


class TestKey:
    """With --api-key."""

    def test_no_key_or_a_wrong_one_is_401(self) -> None:
        with serving(api_key="schlüssel") as client:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}, {"X-Api-Key": "wrong"}):
                answer = client.get("/v1/models", headers=headers)
                assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")

    def test_the_right_key_is_let_in_as_bearer_or_x_api_key(self) -> None:
        with serving(api_key="s3cret") as client:
            assert client.get("/v1/models", headers={"Authorization": "Bearer s3cret"}).status_code == 200
            assert client.get("/v1/models", headers={"X-Api-Key": "s3cret"}).status_code == 200

    def test_health_is_open(self) -> None:
        with serving(api_key="s3cret") as client:
            assert client.get("/health").status_code == 200

    def test_deletion_needs_a_server_with_a_key(self) -> None:
        with serving() as client:
            assert client.delete("/cache").status_code == 403
        with serving(api_key="s3cret", script=Answers("ok")) as client:
            client.headers["Authorization"] = "Bearer s3cret"
            client.post(CHAT, json={"messages": [{"role": "user", "content": "x" * 300}]})
            assert client.delete("/cache").json()["deleted"] > 0
            assert client.get("/cache").json()["count"] == 0


def test_attention_models_are_served_without_checkpoints() -> None:
    with serving(kind=StateKind.ATTENTION, script=Answers("ok")) as client:
        ask = {"messages": [{"role": "user", "content": "x" * 300}], "temperature": 0}
        client.post(CHAT, json=ask)
        body = client.post(CHAT, json=ask).json()
        assert body["usage"]["prompt_tokens"] - body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert metric(client, "kvalet_hit_rate") > 0.4
