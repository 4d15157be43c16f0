"""With the real engine: what a cut by `tope` makes the server read again is what its plan says."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from keeper.archive import Archive
from keeper.message import History
from keeper.past import Past
from tests.e2e.serving import Message, Server, read, serving, system, user, words

WINDOW = 4096
ROUNDS = 40
REPLY = 8

pytestmark = [pytest.mark.e2e, pytest.mark.model]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archive")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    options = ("--keeper", "tope", "--window", str(WINDOW), "--ctx", str(WINDOW), "--archive", str(folder), "--threads", "1")
    with serving(*options) as running:
        yield running


def rounds(count: int) -> list[Message]:
    """A task and `count` rounds of reading a file, some 150 tokens each."""
    found = [system("You read files."), user(words(40, 1))]
    for i in range(count):
        arguments = json.dumps({"path": f"src/file_{i}.py"})
        call = {"id": f"c{i}", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
        text = f"ident-{i:04d} {words(120, i)}\n{words(30, 1000 + i)}"
        found.append({"role": "assistant", "content": "", "tool_calls": [call]})
        found.append({"role": "tool", "tool_call_id": f"c{i}", "content": text})
    return found


class Edited(NamedTuple):
    """What the remembered plan says of an edit: tokens of the view, and those to read again."""

    view: int
    reread: int
    plan: str


def edited(folder: Path, messages: list[Message]) -> Edited | None:
    """The edit in force for this history; None before the first."""
    archive = Archive(folder)
    mark = Past(archive, archive.enter(History(messages))).latest("tope")
    archive.close()
    if mark is None:
        return None
    numbers = re.match(r"[\d,]+ -> ([\d,]+) tokens; re-read ([\d,]+)", mark.body["plan"])
    assert numbers, mark.body["plan"]
    view, reread = (int(n.replace(",", "")) for n in numbers.groups())
    return Edited(view, reread, mark.body["plan"])


def test_a_forty_round_tool_history_is_cut_and_only_what_the_plan_says_is_read_again(server: Server, folder: Path) -> None:
    cuts: list[tuple[Edited, int, int]] = []
    for count in range(1, ROUNDS + 1):
        messages = rounds(count)
        answer = server.chat(messages, max_tokens=REPLY, chat_template_kwargs={"enable_thinking": False})
        found = edited(folder, messages)
        if found and found.plan not in {edit.plan for edit, _, _ in cuts}:
            cuts.append((found, answer["usage"]["prompt_tokens"], read(answer)))
        elif count > 1:  # the first is read cold
            assert read(answer) < 400, "between cuts a view only grows at its end"
    numbers = [(edit.view, prompt, edit.reread, reread) for edit, prompt, reread in cuts]
    assert len(numbers) >= 2
    for view, prompt, expected, reread in numbers:
        assert abs(prompt - view) <= 4, numbers  # the keeper counts without this request's enable_thinking
        assert abs(reread - expected) <= 64, numbers
