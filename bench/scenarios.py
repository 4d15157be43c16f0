"""The rows of `kvalet-bench peers`: what a client does before the request that is measured. Pure values, seeded words."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.vocabulary import WORDS

Message = dict[str, Any]
TOOL_NAMES = ("read_file", "search", "run_tests")


@dataclass(frozen=True, slots=True)
class Ask:
    """One chat request."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """What happens to the server between two requests: "restart" (SIGTERM) or "kill" (SIGKILL)."""

    how: str


Step = Ask | Event


@dataclass(frozen=True, slots=True)
class Scenario:
    """`steps` end with the request that is measured."""

    name: str
    steps: tuple[Step, ...]


def scenarios(seed: int, scale: float = 1.0) -> tuple[Scenario, ...]:
    """Every scenario with words of its own, so that none meets another's state. `scale` 1.0: prompts of about 4,500 tokens."""
    makers: tuple[tuple[str, Callable[[_Writer], Sequence[Step]]], ...] = (
        ("append", _append),
        ("identical", _identical),
        ("early edit", _early_edit),
        ("edit inside one long message", _long_message),
        ("tool result trimmed at 25 %", lambda w: _trim(w, 0.25)),
        ("tool result trimmed at 50 %", lambda w: _trim(w, 0.50)),
        ("tool result trimmed at 90 %", lambda w: _trim(w, 0.90)),
        ("branch and back", _branch_and_back),
        ("restart", lambda w: _ended(w, "restart")),
        ("kill -9", lambda w: _ended(w, "kill")),
        ("thinking stripped by the template", _thinking),
        ("tools changed and back", _tools),
    )
    return tuple(
        Scenario(name, tuple(make(_Writer(random.Random(seed * 1009 + number), scale))))
        for number, (name, make) in enumerate(makers)
    )


class _Writer:
    """Makes messages of seeded words; counts are words at scale 1, about as many tokens."""

    def __init__(self, rng: random.Random, scale: float) -> None:
        self._rng, self._scale = rng, scale

    def text(self, words: int) -> str:
        return " ".join(self._rng.choices(WORDS, k=max(3, int(words * self._scale))))

    def user(self, words: int = 200) -> Message:
        return {"role": "user", "content": self.text(words)}

    def said(self, words: int = 60) -> Message:
        return {"role": "assistant", "content": self.text(words)}

    def chat(self, turns: int = 15) -> tuple[Message, ...]:
        """System text and `turns` exchanges, ending with a user message."""
        middle = [message for _ in range(turns) for message in (self.user(), self.said())]
        return ({"role": "system", "content": self.text(400)}, *middle, self.user(60))

    def changed(self, message: Message, at: float) -> Message:
        """One word replaced at this share of the text."""
        words = message["content"].split(" ")
        words[int(at * (len(words) - 1))] = "changed"
        return {**message, "content": " ".join(words)}

    def tool(self, number: int) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"path": {"type": "string", "description": self.text(40)}}}
        name = TOOL_NAMES[number % len(TOOL_NAMES)] + str(number)
        return {"type": "function", "function": {"name": name, "description": self.text(60), "parameters": parameters}}

    def rounds(self, count: int) -> tuple[Message, ...]:
        """A task and `count` rounds of one tool call and its result."""
        messages: list[Message] = [{"role": "system", "content": self.text(300)}, self.user(120)]
        for number in range(count):
            call = {"id": f"c{number}", "type": "function", "function": {"name": "read_file0", "arguments": '{"path": "a.txt"}'}}
            messages += [{"role": "assistant", "content": "", "tool_calls": [call]}]
            messages += [{"role": "tool", "tool_call_id": f"c{number}", "content": self.text(130)}]
        return tuple(messages)


def _append(w: _Writer) -> list[Step]:
    chat = w.chat()
    return [Ask(chat), Ask((*chat, w.said(), w.user(60)))]


def _identical(w: _Writer) -> list[Step]:
    chat = w.chat()
    return [Ask(chat), Ask(chat)]


def _early_edit(w: _Writer) -> list[Step]:
    chat = w.chat()
    return [Ask(chat), Ask((*chat[:3], w.changed(chat[3], 0.5), *chat[4:]))]


def _long_message(w: _Writer) -> list[Step]:
    """79 % into one message that is nearly the whole prompt."""
    long = w.user(4300)
    return [Ask((long,)), Ask((w.changed(long, 0.79),))]


def _trim(w: _Writer, at: float) -> list[Step]:
    """An agent's history came in one import; then one old tool result is shortened."""
    history = w.rounds(28)
    index = 2 + 2 * int(at * 27) + 1
    short = {**history[index], "content": " ".join(history[index]["content"].split(" ")[:10]) + " (trimmed)"}
    tools = (w.tool(0),)
    return [Ask(history, tools), Ask((*history[:index], short, *history[index + 1 :]), tools)]


def _branch_and_back(w: _Writer) -> list[Step]:
    chat = w.chat()
    other = (*chat[:11], w.user(), w.said(), w.user(60))
    return [Ask(chat), Ask(other), Ask((*other, w.said(), w.user(60))), Ask((*chat, w.said(), w.user(60)))]


def _ended(w: _Writer, how: str) -> list[Step]:
    chat = w.chat()
    return [Ask(chat), Event(how), Ask((*chat, w.said(), w.user(60)))]


def _thinking(w: _Writer) -> list[Step]:
    """A tool loop whose thinking the client echoes; then a new user message, after which the template leaves the thinking out."""
    rounds = [{**m, "reasoning_content": w.text(60)} if m["role"] == "assistant" else m for m in w.rounds(12)]
    tools = (w.tool(0),)
    before = (*w.chat(9), w.said(), *rounds[1:])
    return [Ask(before[:-2], tools), Ask(before, tools), Ask((*before, w.said(), w.user(60)), tools)]


def _tools(w: _Writer) -> list[Step]:
    """A tool more, then the old tools again."""
    chat, tools = w.chat(), tuple(w.tool(number) for number in range(4))
    return [Ask(chat, tools[:3]), Ask(chat, tools), Ask((*chat, w.said(), w.user(60)), tools[:3])]
