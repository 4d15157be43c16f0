"""Drills and lookups: what the ledger model practises is true to the episode it stands in."""

import asyncio
import random
import re
from importlib.util import find_spec

import pytest

from bench.ledger.drills import SHORT_TOOLS, asking, noting
from bench.ledger.episodes import NAMES, Difficulty, make_episode, recall_call
from bench.ledger.rendering import END, START, Segment, render
from keeper.notes import Rule, Set, read
from keeper.recall import NAME as RECALL
from keeper.recall import tool_of
from tests.bench import ledger_reader

TORCH = all(find_spec(name) is not None for name in ("torch", "tokenizers"))
needs_torch = pytest.mark.skipif(not TORCH, reason="PyTorch and tokenizers are not installed (the extra `train`)")


def messages(text: str) -> list[dict[str, str]]:
    """A rendered conversation taken apart again; the results of searches as tool messages."""
    found = []
    for role, content in re.findall(rf"{re.escape(START)}(\w+)\n(.*?){re.escape(END)}", text, re.DOTALL):
        result = re.fullmatch(r"<tool_response>\n(.*)\n</tool_response>", content, re.DOTALL)
        found.append({"role": "tool", "content": result[1]} if result else {"role": role, "content": content})
    return found


def said(before: str, tools: bool) -> str:
    """What the perfect reader answers."""
    body = {"messages": messages(before), "tools": [tool_of(RECALL)] if tools else []}
    reply = asyncio.run(ledger_reader.complete(body)).message
    return recall_call(reply.tool_calls[0].parsed()["query"]) if reply.tool_calls else reply.text


def answered(segments: list[Segment]) -> list[tuple[str, str, str]]:
    """(kind, the text before, the answer) of each answer that is learnt."""
    found, before = [], ""
    for part in segments:
        if part.kind:
            found.append((part.kind, before, part.text.removesuffix(END)))
        before += part.text
    return found


def test_every_answer_of_a_drill_can_be_read_off_what_stands_before_it() -> None:
    kinds = set()
    for seed in range(40):
        for tools in (0.0, 1.0):
            segments = asking(seed, 6, 1.0, tools, SHORT_TOOLS)
            for kind, before, answer in answered(segments):
                assert said(before, bool(tools)) == answer, f"seed {seed}, tools {tools}"
                kinds.add(kind)
    assert kinds == {"value", "rule", "unknown", "call"}


def test_half_of_the_questions_are_about_names_that_nothing_set() -> None:
    kinds = [kind for seed in range(60) for kind, _, _ in answered(asking(seed, 6, 0.5, 0.0))]
    assert 0.35 < kinds.count("unknown") / len(kinds) < 0.6
    assert kinds.count("value") > 0.3 * len(kinds)


def test_the_same_seed_tells_the_same_story_with_the_tool_and_without() -> None:
    differ = 0
    for seed in range(20):
        without, having = answered(asking(seed, 6, 1.0, 0.0)), answered(asking(seed, 6, 1.0, 1.0, ""))
        if "NOTES" not in having[0][1]:  # its block shows fewer lines now and then where there is a tool to find them
            assert without[0][1] == having[0][1]
        differ += without[0][0] == "unknown" and having[0][0] == "call"
    assert differ > 3


def test_deltas_of_drills_have_any_number_of_lines() -> None:
    lengths = set()
    for seed in range(60):
        kind, _, delta = answered(noting(seed, 8, 4))[-1]
        lines = read(delta)
        assert kind == "notes"
        assert all(isinstance(line, Set | Rule) for line in lines)
        lengths.add(len(lines))
    assert lengths >= set(range(1, 7))


@needs_torch
def test_lookups_say_what_the_text_so_far_says_of_a_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    from bench.ledger.lookups import FIRST, NEVER, NOWHERE, Names
    from bench.ledger.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")
    one, two = NAMES[:2]
    story = f"Rule: {one} is confidential. Then {one} = 34 by Ada. Then {two} = 51 by Bo."
    text = f"{story}\n{one}?\n{two} = 51 by Bo\n{two} = 77 by Bo\n{two}"
    row = tokenizer.encode(text).ids
    known = Names(tokenizer).known(row)
    places = [place for place, held in enumerate(known.held) if held != NOWHERE]
    assert [tokenizer.decode([row[place]]).strip() for place in places] == [one, one, two, one, two, two, two]
    assert [known.held[place] for place in places] == [NEVER, NEVER, NEVER, 24, 41, 41, 67]
    assert [known.ruled[place] for place in places] == [0, 1, 0, 1, 0, 0, 0]
    assert [known.previous[place] for place in places] == [NOWHERE, FIRST, 0, NOWHERE, NOWHERE, NOWHERE, NOWHERE]


@needs_torch
def test_sentences_that_are_only_quoted_come_before_no_line_of_a_delta(tmp_path_factory: pytest.TempPathFactory) -> None:
    from bench.ledger.batches import encode
    from bench.ledger.lookups import NOWHERE, Names
    from bench.ledger.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")
    quoting = 0
    for seed in range(60):
        episode = make_episode(seed, Difficulty(12, 20, 3), 1.0)
        if episode.messages[-1].kind != "notes" or episode.already:
            continue
        row = encode(tokenizer, render(episode, random.Random(0))).tokens
        previous = Names(tokenizer).known(row).previous
        order = [line.name for line in read(episode.messages[-1].text) if isinstance(line, Set)]
        told = [tokenizer.decode([row[place]]).strip() for place, name in enumerate(previous) if name != NOWHERE]
        assert told == order
        quoting += "FROM THE ARCHIVE" in "".join(message.text for message in episode.messages)
    assert quoting > 2


@needs_torch
def test_grades_that_go_wrong_are_practised_more_and_none_is_dropped() -> None:
    from bench.ledger.batches import GRADES, Skill, shares

    skill = Skill()
    even = shares(skill)
    for _ in range(1000):
        skill.note(GRADES[0].name, "value", True)
        skill.note(GRADES[1].name, "call", False)
    after = shares(skill)
    assert 0 < after[0] < even[0]
    assert after[1] > even[1]
    assert after[2:] == even[2:]
    skill.note(GRADES[1].name, "value", True)
    assert shares(skill)[1] == after[1], "what goes well does not hide what does not"


@needs_torch
def test_a_batch_marks_each_answer_and_weighs_nothing_else_that_users_say(tmp_path_factory: pytest.TempPathFactory) -> None:
    from bench.ledger.batches import GRADES, make_batch
    from bench.ledger.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")
    for grade in GRADES:
        batch = make_batch(tokenizer, grade, 10_000_000)
        again = make_batch(tokenizer, grade, 10_000_000)
        assert (batch.inputs == again.inputs).all() and batch.inputs.shape == (grade.rows, grade.tokens)
        inside = batch.answers[:, 1:] >= 0
        assert (batch.inputs[:, 1:] == batch.targets[:, :-1])[inside].all()
        for number, kind in enumerate(batch.kinds):
            marked = batch.answers == number
            text = tokenizer.decode(batch.targets[marked].tolist(), skip_special_tokens=False)
            assert text.endswith(END)
            assert (kind == "unknown") == text.endswith(f" = unknown{END}")
            assert (batch.weights[marked] >= 1).all()
        assert (batch.weights > 0).mean() < 0.3
