"""Chat and text completions over the fake: their form, streamed and whole, and what they say of themselves."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.server.serving import MODEL, Answers, events, metric, serving

HI = [{"role": "user", "content": "hi"}]
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}, "temperature": 0}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL = "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"


def chat(client: TestClient, messages: list[dict[str, Any]] = HI, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/chat/completions", json={"messages": messages, **PLAIN, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def chat_stream(client: TestClient, messages: list[dict[str, Any]] = HI, **fields: Any) -> list[dict[str, Any]]:
    answer = client.post("/v1/chat/completions", json={"messages": messages, "stream": True, **PLAIN, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = events(answer)
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_chat_answer_has_openais_form_and_our_reports() -> None:
    with serving(script=Answers("Hello.")) as client:
        body = chat(client)
        choice = body["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": "Hello."}
        assert choice["finish_reason"] == "stop"
        assert (body["object"], body["model"]) == ("chat.completion", MODEL)
        assert body["usage"]["completion_tokens"] == len("Hello.") + 1
        assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
        assert body["kvalet"]["resumed_from"] == "none"
        assert body["timings"]["cache_n"] == body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_stream_says_what_the_whole_answer_says() -> None:
    with serving(script=Answers("Well.\n</think>\n\nGrüße, 世界 🙂")) as client:
        whole = chat(client, chat_template_kwargs={}, seed=1)["choices"][0]["message"]
        chunks = chat_stream(client, chat_template_kwargs={}, seed=1)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert "".join(delta.get("content", "") for delta in deltas) == whole["content"] == "Grüße, 世界 🙂"
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == whole["reasoning_content"] == "Well."
        assert deltas[0] == {"role": "assistant", "content": ""}


def test_only_the_last_chunk_of_a_stream_finishes_and_carries_the_reports() -> None:
    with serving(script=Answers("ab")) as client:
        *body, last = chat_stream(client)
        assert all(chunk["choices"][0]["finish_reason"] is None and "kvalet" not in chunk for chunk in body)
        assert last["choices"][0]["finish_reason"] == "stop"
        assert last["usage"]["completion_tokens"] == 3
        assert last["kvalet"]["reason"]


def test_include_usage_gives_a_chunk_of_its_own_and_null_before_it() -> None:
    with serving(script=Answers("ab")) as client:
        *body, last = chat_stream(client, stream_options={"include_usage": True})
        assert all(chunk["usage"] is None for chunk in body)
        assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 3)


def test_a_tool_call_comes_back_parsed_and_ends_with_tool_calls() -> None:
    with serving(script=Answers(CALL)) as client:
        choice = chat(client, tools=[WEATHER])["choices"][0]
        call = choice["message"]["tool_calls"][0]
        assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
        assert choice["message"]["content"] is None
        assert choice["finish_reason"] == "tool_calls"


def test_a_streamed_tool_call_joins_to_the_same_call() -> None:
    with serving(script=Answers("Let me see.\n\n" + CALL)) as client:
        chunks = chat_stream(client, tools=[WEATHER])
        parts = [part for chunk in chunks for part in chunk["choices"][0]["delta"].get("tool_calls", [])]
        assert parts[0]["id"] and parts[0]["function"]["name"] == "weather"
        assert json.loads("".join(part["function"]["arguments"] for part in parts)) == {"city": "Oslo"}
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_with_tool_choice_none_a_call_is_only_text_and_the_prompt_keeps_its_tools() -> None:
    with serving(script=Answers(CALL)) as client:
        free = chat(client, tools=[WEATHER])
        none = chat(client, tools=[WEATHER], tool_choice="none")
        assert none["choices"][0]["message"]["content"] == CALL
        assert none["usage"]["prompt_tokens"] == free["usage"]["prompt_tokens"]


def test_logprobs_come_one_a_token_whole_and_streamed() -> None:
    with serving(script=Answers("aé")) as client:
        whole = chat(client, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
        assert [bytes(entry["bytes"]) for entry in whole] == [b"a", b"\xc3", b"\xa9"]
        assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in whole)
        chunks = chat_stream(client, logprobs=True, top_logprobs=2)
        streamed = [e for c in chunks if c["choices"][0]["logprobs"] for e in c["choices"][0]["logprobs"]["content"]]
        assert streamed == whole


def test_n_choices_share_one_reading_of_the_prompt() -> None:
    with serving() as client:
        body = chat(client, [{"role": "user", "content": "x" * 300}], n=3, seed=7, temperature=1, max_tokens=8)
        texts = [choice["message"] for choice in body["choices"]]
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
        assert len({json.dumps(text) for text in texts}) == 3
        assert metric(client, "kvalet_read_tokens_total") < 2 * body["usage"]["prompt_tokens"]


def test_n_choices_stream_under_their_own_index() -> None:
    with serving(script=Answers("ab"), parallel=2) as client:
        chunks = chat_stream(client, n=2)
        for index in range(2):
            mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
            assert "".join(choice["delta"].get("content", "") for choice in mine) == "ab"
            assert mine[-1]["finish_reason"] == "stop"


def test_a_stop_string_ends_the_answer_and_is_not_shown() -> None:
    with serving(script=Answers("one two three")) as client:
        choice = chat(client, stop=["two"])["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("one ", "stop")


def test_max_tokens_ends_with_length_and_zero_reads_only() -> None:
    with serving(script=Answers("abcdef")) as client:
        choice = chat(client, max_tokens=3)["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("abc", "length")
        assert chat(client, max_completion_tokens=0)["choices"][0]["message"]["content"] == ""


def test_the_same_request_again_reads_at_most_a_grid_and_says_the_same() -> None:
    with serving(script=Answers("Fine.")) as client:
        long = [{"role": "user", "content": "word " * 200}]
        first, second = chat(client, long), chat(client, long)
        assert first["choices"] == second["choices"]
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert second["usage"]["prompt_tokens"] - cached <= 64
        assert second["kvalet"]["resumed_from"] in ("live", "ram")


def test_an_edit_in_the_middle_is_reported_by_message_and_character() -> None:
    with serving(script=Answers("ok"), ctx=8192) as client:
        history = [
            {"role": "system", "content": "s" * 300},
            {"role": "user", "content": "abcdefgh" * 40},
            {"role": "assistant", "content": "ok"},
            {"role": "user", "content": "end"},
        ]
        chat(client, history)
        history[1] = {"role": "user", "content": "abcdefgh" * 20 + "ABCDEFGH" * 20}
        body = chat(client, history)
        assert body["kvalet"]["diverged_at"]["message"] == 1
        assert body["kvalet"]["diverged_at"]["char"] == 160
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256


def test_a_last_assistant_message_is_continued() -> None:
    with serving(script=Answers("Once upon a time.")) as client:
        body = chat(client, [*HI, {"role": "assistant", "content": "Once upon"}])
        assert body["choices"][0]["message"]["content"] == " a time."


def test_a_system_message_in_the_middle_is_served_and_noted() -> None:
    with serving(script=Answers("ok")) as client:
        body = chat(client, [*HI, {"role": "assistant", "content": "a"}, {"role": "system", "content": "now"}, *HI])
        assert body["choices"][0]["message"]["content"] == "ok"
        assert "system message in the middle" in body["kvalet"]["notes"][0]


@pytest.mark.parametrize("prompt", ["PROMPT", [80, 82, 79, 77, 80, 84]])
def test_a_completion_takes_text_or_tokens(prompt: Any) -> None:
    with serving(script=Answers("go on")) as client:
        body = client.post("/v1/completions", json={"prompt": prompt, "temperature": 0}).json()
        assert body["choices"][0]["text"] == "go on"
        assert body["usage"]["prompt_tokens"] == 6


def test_several_prompts_give_their_choices_in_order_and_echo_puts_the_prompt_in_front() -> None:
    with serving(script=Answers("1", {"bb": "2"})) as client:
        asked = {"prompt": ["aPROMPT", "bbPROMPT"], "n": 2, "echo": True, "temperature": 0}
        body = client.post("/v1/completions", json=asked).json()
        assert [choice["text"] for choice in body["choices"]] == ["aPROMPT1", "aPROMPT1", "bbPROMPT2", "bbPROMPT2"]
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
        assert body["usage"]["prompt_tokens"] == 7 + 8


def test_a_streamed_completion_joins_to_the_whole_one() -> None:
    with serving(script=Answers("go on")) as client:
        asked = {"prompt": ["aPROMPT", "bPROMPT"], "temperature": 0, "stream": True, "echo": True, "logprobs": None}
        lines = events(client.post("/v1/completions", json=asked))
        chunks = [json.loads(line)["choices"][0] for line in lines[:-1]]
        for index, text in enumerate(["aPROMPTgo on", "bPROMPTgo on"]):
            assert "".join(chunk["text"] for chunk in chunks if chunk["index"] == index) == text


def test_an_answer_without_a_token_has_the_logprobs_object_that_was_asked_for() -> None:
    with serving(script=Answers("")) as client:
        assert chat(client, logprobs=True, max_tokens=0)["choices"][0]["logprobs"] == {"content": [], "refusal": None}
        assert chat(client, max_tokens=0)["choices"][0]["logprobs"] is None
        body = client.post("/v1/completions", json={"prompt": "PROMPT", "max_tokens": 0, "logprobs": 2}).json()
        assert body["choices"][0]["logprobs"] == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def test_completion_logprobs_have_the_older_form() -> None:
    with serving(script=Answers("ab")) as client:
        body = client.post("/v1/completions", json={"prompt": "PROMPT", "temperature": 0, "logprobs": 2}).json()
        logprobs = body["choices"][0]["logprobs"]
        assert (logprobs["tokens"], logprobs["text_offset"]) == (["a", "b"], [0, 1])
        assert len(logprobs["top_logprobs"][0]) == 2


def test_models_are_listed_by_every_name_and_found_one_by_one() -> None:
    with serving(alias=("gpt-4o",)) as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == [MODEL, "gpt-4o"]
        assert client.get("/v1/models/gpt-4o").json()["id"] == "gpt-4o"
        assert client.get("/v1/models/other").status_code == 404


def test_an_alias_answers_under_its_own_name() -> None:
    with serving(alias=("gpt-4o",), script=Answers("ok")) as client:
        assert chat(client, model="gpt-4o")["model"] == "gpt-4o"


def test_a_request_may_ask_to_be_strict() -> None:
    with serving(script=Answers("ok")) as client:
        first = chat(client, [{"role": "user", "content": "y" * 400}], exact="strict", logprobs=True, top_logprobs=5)
        again = chat(client, [{"role": "user", "content": "y" * 400}], exact="strict", logprobs=True, top_logprobs=5)
        assert again["choices"] == first["choices"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_session_is_named_by_key_or_header() -> None:
    with serving(script=Answers("ok")) as client:
        long = [{"role": "user", "content": "z" * 200}]
        client.post("/v1/chat/completions", json={"messages": long}, headers={"X-Session-Id": "from-header"})
        chat(client, long, prompt_cache_key="from-key")
        assert {one["name"] for one in client.get("/cache").json()["sessions"]} >= {"from-header"}


@pytest.mark.parametrize(("steady", "known"), [(True, True), (False, False)])
def test_a_hash_that_changes_with_every_request_costs_nothing_where_headers_are_steadied(steady: bool, known: bool) -> None:
    def asked(cch: str) -> list[dict[str, Any]]:
        return [{"role": "system", "content": f"cc; cch={cch};\n" + "x" * 300}, *HI]

    with serving(script=Answers("ok"), steady_headers=steady) as client:
        chat(client, asked("1a2b3"))
        usage = chat(client, asked("9f8e7"))["usage"]
        assert (usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] <= 64) is known


def test_ignore_eos_goes_on_to_the_limit() -> None:
    with serving(script=Answers("a")) as client:
        assert chat(client, ignore_eos=True, max_tokens=5)["usage"]["completion_tokens"] == 5
