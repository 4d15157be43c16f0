"""The keeper over the real engine: after a cut only what follows the stable part is read; a notes call is nearly all cached."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.serving import Message, Server, assistant, read, serving, system, user, words
from tests.keeper.test_tooltree import large

pytestmark = [pytest.mark.model, pytest.mark.e2e]
WINDOW = 6144
GRID = 64
OFF = {"enable_thinking": False}


@pytest.fixture(scope="module")
def keeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    archive = tmp_path_factory.mktemp("archive")
    options = ["synthetic:tiny", "--keeper", "in_place", "--window", str(WINDOW), "--archive", str(archive), "--threads", "1"]
    with serving(*options, "--ctx", str(WINDOW), state=tmp_path_factory.mktemp("state")) as server:
        yield server


def story(item: int) -> Message:
    return user(f"Item {item}: {words(150, item)}.")


def test_after_a_cut_the_next_request_rereads_only_what_follows_the_stable_part(keeping: Server) -> None:
    history = [system(f"You keep the books. {words(200, 900)}"), user(f"Read the items. {words(200, 901)}"), assistant("Yes.")]
    tools = [{"type": "function", "function": {"name": "read", "description": words(40, 902)}}]
    stable = keeping.count(keeping.prompt(history[:2], tools=tools).split("<|im_end|>\n<|im_start|>assistant")[0])
    own_before = [keeping.metric(f"kvalet_keeper_own_{name}_tokens_total") for name in ("cached", "prompt")]
    cuts = 0
    for item in range(1, 34):
        history.append(story(item))
        found = keeping.chat(history, tools=tools, chat_template_kwargs=OFF)
        done, usage = found["kvalet"]["keeper"], found["usage"]
        history.append(assistant(found["choices"][0]["message"]["content"] or "Noted."))
        assert usage["prompt_tokens"] <= WINDOW - 8
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        if done["cut"]:
            cuts += 1
            assert cached >= stable - GRID, (item, cached, stable)
        elif item > 1:
            assert usage["prompt_tokens"] - cached <= 400, "between cuts only the new turn is read"
    assert cuts >= 2
    own = [keeping.metric(f"kvalet_keeper_own_{name}_tokens_total") for name in ("cached", "prompt")]
    cached_share = (own[0] - own_before[0]) / (own[1] - own_before[1])
    assert cached_share >= 0.9, cached_share


def test_notes_and_conversations_are_there_after_a_restart(tmp_path: Path) -> None:
    options = ["synthetic:tiny", "--keeper", "--window", "2048", "--archive", str(tmp_path / "archive"), "--threads", "1"]
    history: list[Message] = [system("You keep the books.")]
    found: dict[str, Any] = {}
    for _ in range(2):
        with serving(*options, state=tmp_path / "state") as server:
            for item in range(8):
                history.append(story(item))
                found = server.chat(history, chat_template_kwargs=OFF)
                history.append(assistant("Noted."))
            listed = server.http.get("/keeper/conversations").json()["data"]
            assert max(one["messages"] for one in listed) >= len(history) - 1
            assert server.stop() == 0
    assert found["kvalet"]["keeper"]["view_from"] > 0


OPENS_OR_LISTS = r"""
root ::= "<tool_call>\n<function=" (opens | lists) "\n</function>\n</tool_call>"
opens ::= "open_tools>\n<parameter=path>\nsql\n</parameter>"
lists ::= "mcp__sql__list_entry>"
"""


def test_a_turn_opens_a_group_of_tools_and_then_calls_one_of_it(tmp_path: Path) -> None:
    """Each call of a turn draws anew which of the two it is, so that some seed opens the group first and then calls."""
    options = ["synthetic:tiny", "--keeper", "--tool-tree", "--archive", str(tmp_path), "--threads", "1"]
    with serving(*options) as server:
        for seed in range(40):
            ask = {"tools": list(large().tools.values()), "grammar": OPENS_OR_LISTS, "seed": seed, "temperature": 1.0}
            found = server.chat([user(f"{words(5, seed)}?")], 256, chat_template_kwargs=OFF, **ask)
            calls = found["choices"][0]["message"].get("tool_calls") or []
            if found["kvalet"]["keeper"].get("tool_openings") and calls:
                break
        assert found["kvalet"]["keeper"]["tool_openings"] >= 1
        assert [call["function"]["name"] for call in calls] == ["mcp__sql__list_entry"]
        assert found["choices"][0]["finish_reason"] == "tool_calls"
        reply = {**found["choices"][0]["message"], "content": None}
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": words(20, 1)}
        after = server.chat([user(f"{words(5, seed)}?"), reply, result], chat_template_kwargs=OFF, tools=ask["tools"])
        assert read(after) <= 256 < after["usage"]["prompt_tokens"], "the group stays open: the prompt begins with the same tools"
