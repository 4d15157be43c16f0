"""`kvalet serve --keeper` over the fake engine: its chat route, its pages, its counters, its errors."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from server.app import create_app
from server.config import ConfigError
from tests.keeper.helpers import a, s, u
from tests.keeper.test_tooltree import large
from tests.server.serving import Answers, events, metric, runtime, serving

SAYS = Answers("It is 342.", {"NOTES REQUEST": "What changed?</think>\n\ndoma86 = 342 by Ada"})
OFF = {"enable_thinking": False}  # the keeper switches it on for its notes


def options(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {"script": SAYS, "keeper": "in_place", "archive": tmp_path, "ctx": 16384, "window": 6144, **more}


def chat(client: TestClient, messages: list[dict[str, Any]], **body: Any) -> Any:
    return client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 64, "chat_template_kwargs": OFF, **body})


def story(exchanges: int) -> list[dict[str, Any]]:
    told = [m for i in range(exchanges) for m in (u(f"Item {i}: Ada recorded doma86 at 342. " + "It rained. " * 30), a("Noted."))]
    return [s("You keep the books."), u("Read the items."), a("Yes."), *told]


def test_a_long_history_is_answered_behind_a_window_and_the_reply_says_what_was_done(tmp_path: Path) -> None:
    with serving(**options(tmp_path)) as client:
        history = [*story(20), u("What value does doma86 hold now?")]
        found = chat(client, history).json()
        assert found["choices"][0]["message"]["content"] == "It is 342."
        done = found["kvalet"]["keeper"]
        assert done["cut"] and done["view_from"] > 3 and done["note_calls"] >= 1
        assert found["usage"]["prompt_tokens"] <= 6144 < len(json.dumps(history))
        assert found["kvalet"]["resumed_from"] in ("live", "ram", "none")
        listed = client.get("/keeper/conversations").json()["data"]
        notes = client.get(f"/keeper/{listed[0]['id']}/notes").json()["versions"][-1]["notes"]
        assert "doma86 = 342 by Ada" in notes
        assert metric(client, "kvalet_keeper_cuts_total") == done["cuts"] and metric(client, "kvalet_keeper_calls_total") == 1
        assert metric(client, "kvalet_keeper_archived_messages") > 20


def test_a_streamed_reply_is_the_whole_reply(tmp_path: Path) -> None:
    with serving(**options(tmp_path)) as client:
        lines = events(chat(client, [*story(20), u("doma86?")], stream=True))
        chunks = [json.loads(line) for line in lines[:-1]]
        assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == "It is 342."
        assert lines[-1] == "[DONE]" and chunks[-1]["choices"][0]["finish_reason"] == "stop"
        assert chunks[-1]["kvalet"]["keeper"]["cut"]


def test_a_turn_opens_a_group_and_calls_a_tool_of_it_and_the_client_sees_that_call_alone(tmp_path: Path) -> None:
    opens = "<tool_call>\n<function=open_tools>\n<parameter=path>\nsql\n</parameter>\n</function>\n</tool_call>"
    lists = "<tool_call>\n<function=mcp__sql__list_entry>\n</function>\n</tool_call>"
    says = Answers(opens, {"Open: sql": lists})
    given = {"tools": list(large().tools.values()), "max_tokens": 512}
    with serving(**options(tmp_path, script=says, tool_tree=True, window=16384)) as client:
        found = chat(client, [u("Which entries are there?")], **given).json()
        (call,) = found["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "mcp__sql__list_entry" and found["choices"][0]["finish_reason"] == "tool_calls"
        assert found["kvalet"]["keeper"]["tool_openings"] == metric(client, "kvalet_keeper_tool_openings_total") == 1
        chunks = [json.loads(line) for line in events(chat(client, [u("What else is there?")], stream=True, **given))[:-1]]
        parts = [part for c in chunks for part in c["choices"][0]["delta"].get("tool_calls") or ()]
        assert "".join(part["function"].get("name") or "" for part in parts) == "mcp__sql__list_entry"
        assert "open_tools" not in json.dumps(chunks) and chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_the_view_is_counted_with_the_models_own_tokenizer(tmp_path: Path) -> None:
    with serving(**options(tmp_path)) as client:
        for exchanges in range(1, 14):
            done = chat(client, [*story(exchanges), u("doma86?")]).json()
            assert done["usage"]["prompt_tokens"] <= 6144 - 64


def test_errors_of_the_keeper_have_openais_form(tmp_path: Path) -> None:
    with serving(**options(tmp_path)) as client:
        error = chat(client, [u("x" * 20_000)]).json()["error"]
        assert (error["code"], error["param"], error["type"]) == (
            "context_length_exceeded",
            "messages[0]",
            "invalid_request_error",
        )
        assert chat(client, []).status_code == 400
        assert chat(client, [u("hi")], model="another").status_code == 404
        assert client.get("/keeper/ffffff/notes").status_code == 404


def test_a_server_without_a_keeper_says_so() -> None:
    with serving(script=SAYS) as client:
        assert client.get("/keeper/conversations").status_code == 404
        assert chat(client, [u("hi")]).json()["choices"][0]["message"]["content"] == "It is 342."
        assert "kvalet_keeper" not in client.get("/metrics").text


@pytest.mark.parametrize(("given", "option"), [({"window": 99_999}, "--window"), ({"window": 9}, "--window")])
def test_settings_that_cannot_be_used_are_named(tmp_path: Path, given: dict[str, Any], option: str) -> None:
    made = runtime(**options(tmp_path, **given))
    try:
        with pytest.raises(ConfigError, match=option):
            create_app(made)
    finally:
        made.close()
