"""Small builders that the keeper's tests share."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from keeper.archive import Archive
from keeper.config import KeeperConfig
from keeper.message import History, Message
from keeper.model import Reply
from keeper.past import Past
from keeper.strategies.base import Situation
from tests.keeper.counting import count


def u(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def a(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def s(text: str = "You keep the books.") -> dict[str, Any]:
    return {"role": "system", "content": text}


def called(call_id: str, name: str = "read", arguments: str = "{}", text: str | None = None) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": text, "tool_calls": [call]}


def t(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def past_of(messages: Sequence[dict[str, Any]], archive: Archive | None = None) -> Past:
    """An archived history."""
    archive = archive or Archive()
    return Past(archive, archive.enter(History(messages)))


def situation_of(
    messages: Sequence[dict[str, Any]],
    answer: Callable[[list[dict[str, Any]]], str] = lambda _: "NONE",
    limit: int | None = None,
    archive: Archive | None = None,
    **settings: Any,
) -> Situation:
    """A situation whose own calls are answered by a function of the messages sent."""
    config = KeeperConfig(**settings)

    def counted(found: Sequence[Message]) -> int:
        return count([message.as_dict() for message in found])

    async def ask(found: Sequence[Message], _tokens: int) -> Reply:
        return Reply(Message("assistant").with_text(answer([message.as_dict() for message in found])))

    limit = config.window - config.reserve(None) if limit is None else limit
    return Situation(History(messages), past_of(messages, archive), config, limit, counted, ask)


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


def run(awaitable: Any) -> Any:
    return asyncio.run(awaitable)
