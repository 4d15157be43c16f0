"""Stop strings never leak, characters are never cut, and events cross threads in order or cancel their request."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import BadRequest, Cancelled
from engine.request import Event, Failed, Progress, Token
from engine.stream import EventStream, StopMatcher, Utf8Decoder, whole_characters

REPEATABLE = settings(deadline=None, derandomize=True)


def run_matcher(stops: tuple[str, ...], pieces: list[bytes]) -> tuple[bytes, str | None]:
    matcher, shown, hit = StopMatcher(stops), b"", None
    for piece in pieces:
        safe, hit = matcher.feed(piece)
        shown += safe
    return shown + matcher.flush(), hit


def cut(data: bytes, places: list[int]) -> list[bytes]:
    borders = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(borders)]


def reference(stops: tuple[str, ...], text: bytes) -> tuple[bytes, str | None]:
    """Byte by byte: stop at the first end of any stop string, taking the longest that ends there."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop.encode()):
                return text[: end - len(stop.encode())], stop
    return text, None


TEXTS = st.text("abé", max_size=30)
STOPS = st.lists(st.text("abé", min_size=1, max_size=4), max_size=3).map(tuple)


@REPEATABLE
@given(STOPS, TEXTS, st.lists(st.integers(0, 1000)))
def test_a_stop_string_ends_the_text_however_it_is_cut(stops: tuple[str, ...], text: str, places: list[int]) -> None:
    assert run_matcher(stops, cut(text.encode(), places)) == reference(stops, text.encode())


@REPEATABLE
@given(STOPS, TEXTS)
def test_no_byte_shown_belongs_to_a_stop_string(stops: tuple[str, ...], text: str) -> None:
    matcher, shown, final = StopMatcher(stops), b"", reference(stops, text.encode())[0]
    for byte in text.encode():
        shown += matcher.feed(bytes([byte]))[0]
        assert final.startswith(shown)


def test_text_that_cannot_begin_a_stop_is_shown_at_once() -> None:
    matcher = StopMatcher(("\nUser:",))
    assert matcher.feed(b"hello") == (b"hello", None)
    assert matcher.feed(b" there\nUs") == (b" there", None)
    assert matcher.feed(b"age") == (b"\nUsage", None)


def test_nothing_comes_after_the_stop() -> None:
    matcher = StopMatcher(("END",))
    assert matcher.feed(b"one END two") == (b"one ", "END")
    assert matcher.feed(b"three") == (b"", "END")
    assert matcher.flush() == b""


@pytest.mark.parametrize("stop", ["", "\ud800"])
def test_a_stop_string_that_can_never_match_is_refused(stop: str) -> None:
    with pytest.raises(BadRequest) as caught:
        StopMatcher((stop,))
    assert caught.value.param == "stop"


@REPEATABLE
@given(st.text(max_size=20), st.lists(st.integers(0, 1000)))
def test_text_survives_any_cut_of_its_bytes(text: str, places: list[int]) -> None:
    decoder = Utf8Decoder()
    assert "".join(decoder.feed(piece) for piece in cut(text.encode(), places)) + decoder.flush() == text


@REPEATABLE
@given(st.binary(max_size=30), st.lists(st.integers(0, 1000)))
def test_wrong_bytes_are_replaced_the_same_way_however_they_are_cut(data: bytes, places: list[int]) -> None:
    decoder = Utf8Decoder()
    assert "".join(decoder.feed(piece) for piece in cut(data, places)) + decoder.flush() == data.decode(errors="replace")


@REPEATABLE
@given(st.text(max_size=8), st.integers(0, 40))
def test_whole_characters_stop_before_a_cut_one(text: str, length: int) -> None:
    data = text.encode()[:length]
    whole = whole_characters(data)
    assert data[:whole].decode() == text[: len(data[:whole].decode())]
    assert len(data) - whole <= 3


def events(count: int) -> list[Event]:
    return [*(Token("r", number, b"t") for number in range(count)), Failed("r", Cancelled())]


def test_events_cross_from_another_thread_in_order_and_end() -> None:
    async def consume() -> list[Event]:
        stream = EventStream(asyncio.get_running_loop(), lambda: pytest.fail("cancelled though it ended"))
        sender = threading.Thread(target=lambda: deque(map(stream.sink, events(500)), 0))
        sender.start()
        async with stream as arriving:
            seen = [event async for event in arriving]
        sender.join()
        return seen

    seen = asyncio.run(consume())
    assert [event.token for event in seen if isinstance(event, Token)] == list(range(500))
    assert isinstance(seen[-1], Failed)


def test_a_consumer_that_waits_is_woken_by_each_event() -> None:
    async def talk() -> list[str]:
        loop = asyncio.get_running_loop()
        stream = EventStream(loop, lambda: None)
        answers = []
        for number in range(5):
            threading.Thread(target=stream.sink, args=(Progress(f"r{number}", 1, 2),)).start()
            answers.append((await anext(stream)).request)
        return answers

    assert asyncio.run(talk()) == ["r0", "r1", "r2", "r3", "r4"]


def leave(how: Callable[[EventStream], object]) -> list[str]:
    """Cancels seen when a consumer leaves after one event in the way `how` says."""
    cancelled: list[str] = []

    async def consume() -> None:
        stream = EventStream(asyncio.get_running_loop(), lambda: cancelled.append("cancel"))
        stream.sink(events(1)[0])
        async with stream:
            await anext(stream)
            how(stream)
        stream.sink(events(1)[0])

    with suppress(ZeroDivisionError):
        asyncio.run(consume())
    return cancelled


def test_a_consumer_that_leaves_early_cancels_once() -> None:
    assert leave(lambda stream: None) == ["cancel"]
    assert leave(lambda stream: 1 // 0) == ["cancel"]


def test_a_cancelled_task_cancels_the_request() -> None:
    cancelled: list[str] = []

    async def consume() -> None:
        async with EventStream(asyncio.get_running_loop(), lambda: cancelled.append("cancel")) as stream:
            await anext(stream)

    async def main() -> None:
        task = asyncio.create_task(consume())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert cancelled == ["cancel"]


def test_a_sink_whose_loop_is_closed_cancels_and_does_not_raise() -> None:
    cancelled: list[str] = []
    loop = asyncio.new_event_loop()
    stream = EventStream(loop, lambda: cancelled.append("cancel"))
    loop.close()
    for event in events(3):
        stream.sink(event)
    assert cancelled == ["cancel"]
