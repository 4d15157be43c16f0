"""llama-server's small routes, as its clients use them."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from tests.server.serving import MODEL, Answers, serving


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with serving(script=Answers("ok"), parallel=2, ctx=512) as made:
        yield made


def test_text_becomes_tokens_and_text_again(client: TestClient) -> None:
    tokens = client.post("/tokenize", json={"content": "Grüße<|im_end|>"}).json()["tokens"]
    assert tokens[-1] == 258
    assert client.post("/detokenize", json={"tokens": tokens}).json()["content"] == "Grüße<|im_end|>"


def test_special_tokens_are_plain_text_where_that_is_asked(client: TestClient) -> None:
    tokens = client.post("/tokenize", json={"content": "<think>", "parse_special": False}).json()["tokens"]
    assert len(tokens) == len("<think>")


def test_pieces_are_text_or_bytes_where_a_token_is_part_of_a_character(client: TestClient) -> None:
    tokens = client.post("/tokenize", json={"content": "aé", "with_pieces": True}).json()["tokens"]
    assert [token["piece"] for token in tokens] == ["a", [0xC3], [0xA9]]
    assert tokens[0]["id"] == 97


def test_content_may_mix_texts_and_tokens(client: TestClient) -> None:
    assert client.post("/tokenize", json={"content": ["a", 258, "b"]}).json()["tokens"] == [97, 258, 98]


def test_a_template_is_applied_as_a_chat_request_would(client: TestClient) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"enable_thinking": False}}
    prompt = client.post("/apply-template", json=body).json()["prompt"]
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    bare = client.post("/apply-template", json={**body, "add_generation_prompt": False}).json()["prompt"]
    assert bare == "<|im_start|>user\nhi<|im_end|>\n"


def test_an_answer_to_continue_keeps_the_blanks_that_the_model_wrote_at_its_edges(client: TestClient) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": " Once \n"}]
    prompt = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert prompt.endswith("</think>\n\n Once \n")


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        ({"reasoning_effort": "none"}, "<think>\n\n</think>\n\n"),
        ({"enable_thinking": False}, "<think>\n\n</think>\n\n"),
        ({"reasoning_effort": "high"}, "<think>\n"),
        ({"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}}, "<think>\n"),
    ],
)
def test_thinking_is_set_by_each_name_clients_have_for_it(client: TestClient, fields: dict[str, object], ending: str) -> None:
    prompt = client.post("/apply-template", json={"messages": [{"role": "user", "content": "hi"}], **fields}).json()["prompt"]
    assert prompt.endswith("<|im_start|>assistant\n" + ending)


def test_props_tell_what_is_served(client: TestClient) -> None:
    props = client.get("/props").json()
    assert (props["total_slots"], props["model_alias"], props["eos_token"]) == (2, MODEL, "<|im_end|>")
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["kvalet"]["kind"] == "hybrid"
    assert "add_generation_prompt" in props["chat_template"]


def test_slots_are_listed_with_what_they_hold(client: TestClient) -> None:
    client.post("/v1/completions", json={"prompt": "PROMPT" + "x" * 94, "max_tokens": 1})
    slots = client.get("/slots").json()
    assert [slot["id"] for slot in slots] == [0, 1]
    assert sum(slot["n_past"] for slot in slots) >= 100
    assert not any(slot["is_processing"] for slot in slots)


def test_health_is_also_under_v1(client: TestClient) -> None:
    assert client.get("/v1/health").json() == client.get("/health").json()
    assert (client.head("/health").status_code, client.head("/health").content) == (200, b"")
    assert client.get("/health").json()["status"] == "ok"
