"""An agent that sends its whole history and manages nothing, against a keeper in this process; and how its answers are scored."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from keeper.chunks import reply_of
from keeper.config import KeeperConfig
from keeper.keeper import Keeper
from keeper.model import Body, Reply
from tests.keeper.counting import PrefixCache, count, rendered
from tests.keeper.stories import Message, Question

Answer = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class Model:
    """complete() around an Answer, with the usage that a server with a prefix cache would report. Records what it was sent."""

    answer: Answer
    sent: list[dict[str, Any]] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    cache: PrefixCache = field(default_factory=PrefixCache)

    async def complete(self, body: Body) -> Reply:
        self.sent.append(dict(body))
        message = dict(self.answer(dict(body)))
        finish = message.pop("finish_reason", None) or ("tool_calls" if message.get("tool_calls") else "stop")
        prompt = count(body["messages"], body.get("tools") or ())
        cached = self.cache.cached(rendered(body["messages"], body.get("tools") or ()))
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": count([message]),
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        self.replies.append(reply_of({"choices": [{"message": message, "finish_reason": finish}], "usage": usage}))
        return self.replies[-1]


def keeper_of(model: Model, **settings: Any) -> Keeper:
    """A keeper with an archive in memory."""
    return Keeper(KeeperConfig(**settings), model.complete, count)


async def one_turn(keeper: Keeper, model: Model, body: dict[str, Any]) -> Any:
    """One request of the agent, through all the calls it takes; the finished Turn."""
    turn = await keeper.prepare(body)
    while not turn.finished:
        turn.take(await model.complete(turn.body))
    return turn


def ask(keeper: Keeper, model: Model, messages: Sequence[dict[str, Any]], **body: Any) -> Any:
    """one_turn() to its end."""
    return asyncio.run(one_turn(keeper, model, {"model": "m", "messages": list(messages), **body}))


@dataclass
class Score:
    """Right answers by kind, and every miss as (kind, distance in items, question, expected, given)."""

    right: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    misses: list[tuple[str, int, str, str, str]] = field(default_factory=list)

    def add(self, questions: Sequence[Question], text: str, item: int) -> None:
        given = text.split("\n")
        for place, question in enumerate(questions):
            said = given[place] if place < len(given) else ""
            self.asked[question.kind] += 1
            if said == question.answer:
                self.right[question.kind] += 1
            else:
                self.misses.append((question.kind, item - question.item, question.text, question.answer, said))

    @property
    def all_right(self) -> bool:
        return not self.misses


async def run_stream(
    keeper: Keeper,
    model: Model,
    stream: Sequence[Message],
    system: str = "You keep the books.",
    after: Callable[[int], None] | None = None,
) -> tuple[Score, list[dict[str, Any]]]:
    """The whole stream, one user message after another; the score and the agent's history at the end."""
    history: list[dict[str, Any]] = [{"role": "system", "content": system}]
    score, item = Score(), 0
    for message in stream:
        if message.text.startswith("Item "):
            item += 1
        history.append({"role": "user", "content": message.text})
        turn = await one_turn(keeper, model, {"model": "m", "messages": history})
        text = turn.reply.message.text
        history.append({"role": "assistant", "content": text})
        score.add(message.questions, text, item)
        if after:
            after(item)
    return score, history
