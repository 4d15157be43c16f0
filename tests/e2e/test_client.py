"""The official openai client against a real server: chat, streaming, tools, JSON schema."""

import json
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from engine import catalog
from tests.e2e.serving import Server, words

pytestmark = pytest.mark.e2e
MODEL = catalog.DEFAULT
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Bergen"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {
        "married": {"type": "boolean"},
        "eyes": {"enum": ["blue", "brown"]},
        "age": {"type": "integer", "maximum": 99},
    },
    "required": ["married", "eyes"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello!"}], max_tokens=12, seed=1)
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage and answer.usage.prompt_tokens_details
    assert answer.usage.prompt_tokens_details.cached_tokens is not None
    assert answer.model_extra and answer.model_extra["kvalet"]["reason"]


def test_streaming_joins_to_the_whole_answer(client: OpenAI) -> None:
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "Tell me."}], "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**ask, extra_body=PLAIN)  # type: ignore[call-overload]
    with client.chat.completions.create(
        **ask,  # type: ignore[call-overload]
        stream=True,
        stream_options={"include_usage": True},
        extra_body=PLAIN,
    ) as stream:
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_stream_helper_accumulates_the_message(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": "Tell me."}], max_tokens=16, extra_body=PLAIN
    ) as stream:
        said = [event.delta for event in stream if event.type == "content.delta"]
        assert "".join(said) == stream.current_completion_snapshot.choices[0].message.content


def test_logprobs(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "a"}], max_tokens=4, logprobs=True, top_logprobs=3, temperature=0
    )
    content = answer.choices[0].logprobs and answer.choices[0].logprobs.content
    assert content and all(entry.logprob == max(top.logprob for top in entry.top_logprobs) for entry in content)


def test_a_json_schema_is_followed(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Who?"}],
        max_tokens=200,
        seed=1,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
    )
    person = json.loads(answer.choices[0].message.content or "")
    assert person["eyes"] in ("blue", "brown") and isinstance(person["married"], bool)


def test_a_required_tool_is_called_with_arguments_of_its_schema(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Weather?"}],
        tools=[WEATHER],  # type: ignore[list-item]
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
        seed=1,
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    call = (answer.choices[0].message.tool_calls or [])[0]
    arguments = json.loads(call.function.arguments)  # type: ignore[union-attr]
    assert arguments["city"] in ("Oslo", "Bergen") and 1 <= arguments["days"] <= 9


def test_a_tool_result_can_be_sent_back(client: OpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo", "days": 2}'}}
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},  # type: ignore[typeddict-item,list-item]
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        ],
        tools=[WEATHER],  # type: ignore[list-item]
        max_tokens=8,
    )
    assert answer.usage and answer.usage.completion_tokens > 0


def test_a_streamed_required_tool_call_joins_to_json(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Weather?"}],
        tools=[WEATHER],  # type: ignore[list-item]
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=200,
        seed=1,
        stream=True,
    )
    parts = [part for chunk in stream for choice in chunk.choices for part in choice.delta.tool_calls or []]
    assert parts[0].function and parts[0].function.name == "weather"
    assert set(json.loads("".join(part.function.arguments or "" for part in parts if part.function))) == {"city", "days"}


def test_completions_and_models(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=[words(10, 1), words(10, 2)], max_tokens=3, n=2)
    assert len(answer.choices) == 4
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_are_the_clients_own_classes(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "a"}])
    with pytest.raises(openai.BadRequestError, match="context"):
        client.completions.create(model=MODEL, prompt=[5] * 40_000)
