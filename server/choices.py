"""The choices of one request as one stream of events: each is a request of the engine's, all are cancelled together."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

from engine.request import Done, Event, Failed, Progress, Request, Token
from engine.stream import EventStream

Chosen = tuple[int, Token | Done]
"""The number of the choice and what happened to it; Done comes last for each."""


class Submits(Protocol):
    """What is needed of an engine here."""

    def submit(self, request: Request, sink: Callable[[Event], None]) -> None: ...
    def cancel(self, id: str) -> None: ...


async def events(engine: Submits, requests: Sequence[Request]) -> AsyncGenerator[Chosen | None, None]:
    """None once all requests are queued, then what happens to them.

    Raises what submitting raises, then the error of the first request that fails. Whoever stops iterating, or is
    cancelled, cancels them all.
    """
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        streams = []
        for request in requests:
            streams.append(await stack.enter_async_context(EventStream(loop, cancels(engine, request.id))))
            await submit(engine, request, streams[-1].sink)
        yield None
        if len(streams) == 1:
            async for event in streams[0]:
                for kept in told(event):
                    yield 0, kept
            return
        async for choice, event in merged(streams):
            for kept in told(event):
                yield choice, kept


def cancels(engine: Submits, id: str) -> Callable[[], None]:
    return lambda: engine.cancel(id)


async def submit(engine: Submits, request: Request, sink: Callable[[Event], None]) -> None:
    """Queues a request; one with a grammar on another thread, since checking a grammar may take long."""
    if request.sampling.grammar is None and request.sampling.json_schema is None:
        engine.submit(request, sink)
    else:
        await asyncio.to_thread(engine.submit, request, sink)


def told(event: Event) -> tuple[Token | Done, ...]:
    """The event if a client is told of it. Raises the error of a Failed."""
    if isinstance(event, Failed):
        raise event.error
    return () if isinstance(event, Progress) else (event,)


async def merged(streams: Sequence[EventStream]) -> AsyncGenerator[tuple[int, Event], None]:
    """Every event of every stream, as it comes."""
    queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    async def pump(choice: int) -> None:
        async for event in streams[choice]:
            queue.put_nowait((choice, event))

    tasks = [asyncio.create_task(pump(choice)) for choice in range(len(streams))]
    try:
        ended = 0
        while ended < len(streams):
            choice, event = await queue.get()
            ended += isinstance(event, Done | Failed)
            yield choice, event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
