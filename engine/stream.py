"""From sampled bytes to a client: stop strings, cut characters, and events that cross from the engine's thread to asyncio."""

import asyncio
import codecs
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import AnyStr

from engine.errors import BadRequest
from engine.request import Done, Event, Failed


class StopMatcher:
    """Ends a text at the first stop string, and never shows a byte that may turn out to belong to one.

    The stop that is complete first wins, the longer of two that end together; the result does not depend on how the
    bytes were cut into calls.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        """Raises BadRequest for a stop string that is empty or not text (lone surrogates)."""
        self._stops = tuple((stop, _encoded(stop)) for stop in stops)
        self._held = b""
        self._hit: str | None = None

    def feed(self, data: bytes) -> tuple[bytes, str | None]:
        """The bytes that are safe to show now, and the stop string once it is complete; nothing comes after that."""
        if self._hit is not None or not self._stops:
            return (b"" if self._hit is not None else data), self._hit
        text = self._held + data
        found = [(at + len(stop), at, name) for name, stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, start, self._hit = min(found)
            self._held = b""
            return text[:start], self._hit
        keep = max(overlap(text, stop) for _, stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> bytes:
        """What was held back, at the end of a text that met no stop string; empty after one."""
        held, self._held = self._held, b""
        return held


def _encoded(stop: str) -> bytes:
    try:
        data = stop.encode()
    except UnicodeEncodeError as error:
        raise BadRequest("a stop string holds half of a surrogate pair", "stop") from error
    if not data:
        raise BadRequest("a stop string must not be empty", "stop")
    return data


def overlap(text: AnyStr, tag: AnyStr) -> int:
    """Length of the longest proper beginning of `tag` that `text` ends with."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0


def whole_characters(data: bytes) -> int:
    """How many bytes of `data` come before a UTF-8 character that its end cuts; broken bytes count as whole."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(data) - len(decoder.getstate()[0])


class Utf8Decoder:
    """Bytes to text across calls: a cut character waits for its rest, and U+FFFD stands only where the bytes are wrong."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(data)

    def flush(self) -> str:
        """The end: a character still cut is wrong now."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class EventStream:
    """One request's events on an asyncio loop; the engine calls `sink` from its thread.

    Use as `async with EventStream(...) as events: async for event in events:`. Done and Failed end it. A consumer that
    leaves before that (client gone, exception, task cancelled) has `cancel` called, once. The queue has no bound: the
    engine must never wait for a client, and a request is bounded by its max_tokens.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, cancel: Callable[[], None]) -> None:
        self._loop = loop
        self._cancel = cancel
        self._lock = threading.Lock()
        self._events: deque[Event] = deque()
        self._woken = False  # a wake-up is on its way to the loop; one serves all events until it runs
        self._ready = asyncio.Event()
        self._ended = False

    def sink(self, event: Event) -> None:
        """Takes an event from any thread and never waits or raises; a closed loop cancels the request."""
        with self._lock:
            if self._ended:
                return
            self._events.append(event)
            wake, self._woken = not self._woken, True
        if not wake:
            return
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # the loop is closed: nobody will ever read this
            self._end()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while not self._ended:
            event = self._take()
            if event is None:
                await self._ready.wait()
                continue
            if isinstance(event, Done | Failed):
                self._ended = True
            return event
        raise StopAsyncIteration

    def _take(self) -> Event | None:
        with self._lock:
            if self._events:
                return self._events.popleft()
            self._woken = False
            self._ready.clear()
            return None

    async def __aenter__(self) -> "EventStream":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        """Cancels unless the request has ended or was cancelled before."""
        with self._lock:
            ended, self._ended = self._ended, True
        if not ended:
            self._cancel()
