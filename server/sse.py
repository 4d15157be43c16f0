"""Server-sent events as OpenAI clients expect them: data lines, comments as pings, [DONE]; a client that leaves ends them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request
from sse_starlette import EventSourceResponse, ServerSentEvent

from server.errors import ApiError, from_engine

PING_SECONDS = 5.0
EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}, "event": {"type": "string"}}}
# What a route that can stream says of its answers in OpenAPI.
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"description": "The answer, or its events", "content": {"text/event-stream": {"schema": EVENT}}}
}
T = TypeVar("T")
# Legal inside JSON strings, but line ends to clients that split with str.splitlines.
LINE_ENDS = {ord(c): f"\\u{ord(c):04x}" for c in "\u0085\u2028\u2029"}


def compact(value: Any) -> str:
    """JSON in one line, whatever a client takes for a line end."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text.isascii() else text.translate(LINE_ENDS)


def ping() -> ServerSentEvent:
    return ServerSentEvent(comment="reading", sep="\n")


async def encoded(events: AsyncGenerator[str, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            yield event.encode()


def response(events: AsyncGenerator[str, None], drain: float) -> EventSourceResponse:
    """Sends ready-made event texts; comments while nothing comes (a long prefill), `drain` seconds to finish at SIGTERM."""
    return EventSourceResponse(
        encoded(events), ping=PING_SECONDS, ping_message_factory=ping, sep="\n", shutdown_grace_period=drain
    )


async def openai_events(first: Mapping[str, Any], chunks: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[str, None]:
    """Chunks as data lines, then [DONE]; an error after the first becomes a data line of its own, as OpenAI sends it."""
    async with aclosing(chunks):
        yield f"data: {compact(first)}\n\n"
        try:
            async for chunk in chunks:
                yield f"data: {compact(chunk)}\n\n"
        except Exception as error:
            yield f"data: {compact(from_engine(error).body())}\n\n"
            return
        yield "data: [DONE]\n\n"


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled as soon as the client has gone. Raises ApiError 499 then, which nobody reads."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError(499, "the client closed the connection", code="client_closed_request")
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def disconnected(request: Request) -> None:
    """Returns when the client has closed its connection; the body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
