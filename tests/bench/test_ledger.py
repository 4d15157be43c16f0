"""The ledger model's episodes: made again the same, answerable from what they show, in the forms of keeper and template."""

import asyncio
import random
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.errors import BenchError
from bench.ledger import cli
from bench.ledger.episodes import NAMES, Difficulty, Episode, Message, make_episode, recall_call
from bench.ledger.evaluate import KINDS, SIZES
from bench.ledger.rendering import render
from bench.ledger.texts import TEMPLATE, texts
from engine.chat import ChatTemplate
from keeper.checks import Turns, check
from keeper.notes import Notes, Rule, Set, apply, read
from keeper.recall import NAME as RECALL
from keeper.recall import tool_of
from tests.bench import ledger_reader

SIZE = Difficulty(10, 16, 3, tools=0.5)
SEEDS = range(120)


class Bare(random.Random):
    """Draws 0 always: every answer is rendered as it stands in history."""

    def random(self) -> float:
        return 0.0


def dicts(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as a client of the server would hold them."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if message.kind == "call":
            name = next(name for name in NAMES if message.text == recall_call(name))
            function = {"name": RECALL, "arguments": f'{{"query": "{name}"}}'}
            found.append(
                {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
            )
        else:
            found.append({"role": message.role, "content": message.text})
    return found


def answers(episode: Episode) -> list[tuple[int, Message]]:
    return [(place, message) for place, message in enumerate(episode.messages) if message.kind]


def test_a_seed_names_an_episode() -> None:
    assert make_episode(5, SIZE).messages == make_episode(5, SIZE).messages
    assert make_episode(5, SIZE).messages != make_episode(6, SIZE).messages


def test_every_kind_of_answer_occurs_and_can_be_read_off_what_the_episode_shows() -> None:
    seen = set()
    for seed in SEEDS:
        episode = make_episode(seed, SIZE)
        tools = [tool_of(RECALL)] if episode.tools else []
        for place, wanted in answers(episode):
            body = {"messages": dicts(episode.messages[:place]), "tools": tools}
            said = asyncio.run(ledger_reader.complete(body)).message
            text = recall_call(said.tool_calls[0].parsed()["query"]) if said.tool_calls else said.text
            assert text == wanted.text, f"seed {seed}, message {place}"
            seen.add(wanted.kind)
    assert seen == set(KINDS)


def test_every_delta_parses_and_gives_the_true_ledger_when_it_is_applied() -> None:
    read_lines = 0
    for seed in SEEDS:
        episode = make_episode(seed, SIZE)
        for _, wanted in answers(episode):
            if wanted.kind != "notes":
                continue
            lines = read(wanted.text)
            assert all(isinstance(line, Set | Rule) for line in lines)
            after = apply(episode.noted or Notes(), lines)
            for name, (value, who) in episode.ledger.pending.items():
                entry = after.entry(name)
                assert entry is not None and (entry.value, entry.who) == (str(value), who)
            kept = [entry for entry in (episode.noted or Notes()).state if entry.name not in episode.ledger.pending]
            assert all(after.entry(entry.name) == entry for entry in kept)
            read_lines += len(lines)
    assert read_lines > 100


def test_the_checks_of_the_keeper_have_nothing_to_say_about_a_true_delta() -> None:
    for seed in SEEDS:
        episode = make_episode(seed, SIZE)
        for place, wanted in answers(episode):
            if wanted.kind == "notes" and not episode.retrieves:
                first = 5 if episode.already else 3  # behind the task, and the exchange that is noted already
                heard = tuple(m.text for m in episode.messages[first : place - 1] if m.role == "user")
                turns = Turns(heard, (), episode.messages[1].text)
                assert check(episode.noted or Notes(), read(wanted.text), turns) == ()


def test_episodes_are_rendered_as_the_chat_template_renders_them() -> None:
    template = ChatTemplate(TEMPLATE.read_text("utf-8"), "", "<|im_end|>")
    compared = 0
    for seed in range(30):
        episode = make_episode(seed, SIZE)
        whole = "".join(part.text for part in render(episode, Bare()))
        tools = [tool_of(RECALL)] if episode.tools else None
        for place, message in answers(episode):
            if episode.messages[place - 1].role != "user":
                continue
            prompt = template.render(dicts(episode.messages[:place]), tools, enable_thinking=False).text
            opening = "<think>\n\n</think>\n\n"
            assert prompt.endswith(opening)
            assert whole.startswith(prompt.removesuffix(opening) + message.text)
            compared += 1
    assert compared > 50


def test_no_name_of_a_counter_is_a_word_of_the_texts_around_it() -> None:
    words = set(" ".join(texts()[1:]).lower().replace(".", " ").split())
    assert len(set(NAMES)) == 64
    assert not (set(NAMES) - {"noma", "givo"}) & words  # those two stand in the samples of texts()


def test_the_sizes_ask_for_what_the_bars_name() -> None:
    assert [size.bars["value"] for size in SIZES] == [0.97, 0.85]
    assert all(set(size.bars) == set(KINDS) for size in SIZES)


def test_training_without_its_extra_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    result = CliRunner().invoke(cli.app, ["train", "nowhere"])
    assert isinstance(result.exception, BenchError)
    assert "pip install 'kvalet[train]'" in str(result.exception)
    assert "\n" not in str(result.exception)


def test_evaluating_a_model_that_is_not_there_is_one_line() -> None:
    result = CliRunner().invoke(cli.app, ["eval", "nowhere.gguf"])
    assert isinstance(result.exception, BenchError)
    assert "nowhere.gguf does not exist" in str(result.exception)
