"""One agent request through the keeper: as many model calls as it takes, whole or streamed. The server and the proxy share it.

Whoever speaks to the model says so by two functions over OpenAI bodies; everything unknown in a body or a reply passes unchanged.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from keeper.chunks import Assembly, reply_of
from keeper.errors import UpstreamFailed
from keeper.keeper import Keeper
from keeper.message import Message
from keeper.model import Body, Reply
from keeper.turn import Turn


class Speaks(Protocol):
    """A model behind an OpenAI chat API. Raises UpstreamFailed."""

    async def whole(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One chat.completion object."""
        ...

    def chunks(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The chat.completion.chunk objects of one streamed reply."""
        ...

    async def complete(self, body: Body) -> Reply:
        """A call of the keeper's own."""
        ...


def unheard(_: Turn) -> None:
    """For whom the end of a turn changes nothing."""


async def answered(
    keeper: Keeper, model: Speaks, body: Mapping[str, Any], session: str | None, ended: Callable[[Turn], None] = unheard
) -> dict[str, Any]:
    """The chat.completion that the agent gets: the last reply, without the keeper's own calls in it. `ended` hears of it."""
    turn = await keeper.prepare(body, session, model.complete)
    while True:
        completion = await model.whole(turn.body)
        turn.take(reply_of(completion))
        if turn.finished:
            ended(turn)
            return _as_the_agent_sees_it(completion, turn)


async def streamed(
    keeper: Keeper, model: Speaks, body: Mapping[str, Any], session: str | None, ended: Callable[[Turn], None] = unheard
) -> AsyncGenerator[dict[str, Any], None]:
    """The chunks that the agent gets, as they come. Raises UpstreamFailed where a stream breaks off; nothing is recorded then."""
    turn = await keeper.prepare(body, session, model.complete)
    wants_usage = bool(_options(body).get("include_usage"))
    begun = False
    while not turn.finished:
        assembly = Assembly(turn.hidden)
        options = {**_options(turn.body), "include_usage": True}
        async with aclosing(model.chunks({**turn.body, "stream": True, "stream_options": options})) as chunks:
            async for chunk in chunks:
                shown = assembly.feed(chunk)
                if shown is not None and not (begun and _only_role(shown)):
                    begun = True
                    yield shown
        if not assembly.ended:
            raise UpstreamFailed("the upstream ended its stream without saying why")
        turn.take(assembly.reply())
    ended(turn)
    for chunk in assembly.held:
        if chunk.get("choices"):
            chunk["choices"][0]["finish_reason"] = turn.reply.finish
            yield _with_report(chunk, turn)
        elif wants_usage:
            yield chunk


def _options(body: Mapping[str, Any]) -> Mapping[str, Any]:
    found = body.get("stream_options")
    return found if isinstance(found, Mapping) else {}


def _only_role(chunk: Mapping[str, Any]) -> bool:
    """The opening chunk of a later call of the same turn."""
    delta = chunk["choices"][0].get("delta") or {}
    return "role" in delta and not any(value for key, value in delta.items() if key != "role")


def _as_the_agent_sees_it(completion: dict[str, Any], turn: Turn) -> dict[str, Any]:
    """The completion with the turn's text and calls in it; everything else is the upstream's."""
    if not completion.get("choices"):
        raise UpstreamFailed("the upstream sent a completion without choices")
    choice = completion["choices"][0]
    seen, reply = choice.get("message") or {}, turn.reply
    message = {**seen, **_changed(seen, reply.message)}
    if not reply.message.tool_calls:
        message.pop("tool_calls", None)
    first = {**choice, "message": message, "finish_reason": reply.finish}
    return _with_report({**completion, "choices": [first, *completion["choices"][1:]]}, turn)


def _changed(seen: Mapping[str, Any], message: Message) -> dict[str, Any]:
    """What of the message differs from the last reply's: text said before searches, calls that were the keeper's."""
    found: dict[str, Any] = {}
    if message.text != (seen.get("content") or ""):
        found["content"] = message.text
    if message.tool_calls:
        found["tool_calls"] = [call.as_dict() for call in message.tool_calls]
    return found


def _with_report(found: dict[str, Any], turn: Turn) -> dict[str, Any]:
    """The `kvalet` object says what the keeper did for this request."""
    return {**found, "kvalet": {**(found.get("kvalet") or {}), "keeper": turn.report()}}
