"""Server-sent events as OpenAI clients expect them: data lines, comments as pings, [DONE]; a client that leaves ends them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import anyio
from fastapi import Request
from sse_starlette import EventSourceResponse, ServerSentEvent

from server.errors import ApiError, from_engine

PING_SECONDS = 5.0
FAREWELL_SECONDS = 0.5  # for the last event of a stream that is cut off, before its connection is
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


class Closing:
    """Ends a stream when the server has been leaving for `seconds`; `begun` is set when it begins to leave."""

    def __init__(self, seconds: float) -> None:
        self.begun = anyio.Event()
        self._seconds = seconds
        self._waits: asyncio.Timeout | None = None
        self._over = False

    async def over(self, first: T, chunks: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """The chunks, as they come. Raises ApiError 503 when time is up, whatever is awaited then."""
        watch = asyncio.create_task(self._watch())
        try:
            async with aclosing(chunks):
                yield first
                while not self._over:
                    async with asyncio.timeout(None) as self._waits:  # for each chunk: none may be open while one is given out
                        chunk = await anext(chunks)
                    yield chunk
        except StopAsyncIteration:
            return
        except TimeoutError:
            if not self._over:
                raise
        finally:
            watch.cancel()
        raise ApiError(503, f"the server is closing and the answer was not finished in {self._seconds:g} s", code="cancelled")

    async def _watch(self) -> None:
        await self.begun.wait()
        await asyncio.sleep(self._seconds)
        self._over = True
        if self._waits is not None:
            with suppress(RuntimeError):  # between two chunks there is nothing to interrupt
                self._waits.reschedule(asyncio.get_running_loop().time())


def response(
    told: Callable[[AsyncGenerator[T, None]], AsyncGenerator[str, None]],
    first: T,
    chunks: AsyncGenerator[T, None],
    drain: float,
) -> EventSourceResponse:
    """Sends chunks as the event texts that `told` makes of them, and of an error among them; comments while nothing comes (a
    long prefill); `drain` seconds to finish at SIGTERM."""
    closing = Closing(drain)
    return EventSourceResponse(
        encoded(told(closing.over(first, chunks))),
        ping=PING_SECONDS,
        ping_message_factory=ping,
        sep="\n",
        shutdown_event=closing.begun,
        shutdown_grace_period=drain + FAREWELL_SECONDS,
    )


def told_error(error: Exception) -> str:
    """An error as OpenAI sends it among the chunks."""
    return compact(from_engine(error).body())


async def openai_events(
    chunks: AsyncGenerator[dict[str, Any], None], told: Callable[[Exception], str] = told_error
) -> AsyncGenerator[str, None]:
    """Chunks as data lines, then [DONE]; an error among them becomes a data line of its own, as `told` makes it or raises it
    again, and the last."""
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                yield f"data: {compact(chunk)}\n\n"
        except Exception as error:
            yield f"data: {told(error)}\n\n"
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
