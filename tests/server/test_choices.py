"""The choices of a request: queued together, told apart, and cancelled together."""

import asyncio
from collections.abc import Callable

import pytest

from engine.errors import QueueFull
from engine.request import Done, Event, Failed, Finish, Progress, Request, Resume, Source, Timings, Token
from engine.sampling import SamplingParams
from server.choices import Chosen, events

RESUME = Resume(Source.NONE, 0, 0, 0, 0, False, "")
TIMINGS = Timings(0, 1, 1.0, 1, 1.0, 0.0, 0.0)


def request(id: str) -> Request:
    return Request(id, (1,), SamplingParams(), 4)


def done(id: str) -> Done:
    return Done(id, Finish.STOP, None, b"", 1, 1, RESUME, TIMINGS)


class Desk:
    """An engine that answers as it is told, or refuses from the n-th request on."""

    def __init__(self, answer: Callable[[Request], list[Event]], takes: int = 100) -> None:
        self._answer, self._takes = answer, takes
        self.submitted: list[str] = []
        self.cancelled: list[str] = []

    def submit(self, request: Request, sink: Callable[[Event], None]) -> None:
        if len(self.submitted) == self._takes:
            raise QueueFull(self._takes)
        self.submitted.append(request.id)
        for event in self._answer(request):
            sink(event)

    def cancel(self, id: str) -> None:
        self.cancelled.append(id)


def run(desk: Desk, *ids: str) -> list[Chosen | None]:
    async def collect() -> list[Chosen | None]:
        return [item async for item in events(desk, [request(id) for id in ids])]

    return asyncio.run(collect())


def spoken(request: Request) -> list[Event]:
    return [Progress(request.id, 1, 2), Token(request.id, 5, request.id.encode()), done(request.id)]


def test_none_comes_first_and_progress_is_not_told() -> None:
    first, token, end = run(Desk(spoken), "a")
    assert first is None
    assert token == (0, Token("a", 5, b"a"))
    assert end == (0, done("a"))


def test_each_choice_keeps_its_number_and_its_order() -> None:
    told = [item for item in run(Desk(spoken), "a", "b", "c") if item]
    for number, id in enumerate("abc"):
        assert [event for choice, event in told if choice == number] == [Token(id, 5, id.encode()), done(id)]


def test_a_choice_that_is_refused_takes_those_before_it_back() -> None:
    desk = Desk(lambda _: [], takes=2)
    with pytest.raises(QueueFull):
        run(desk, "a", "b", "c")
    assert set(desk.cancelled) >= {"a", "b"}


def test_a_choice_that_fails_cancels_the_others() -> None:
    desk = Desk(lambda r: [Failed(r.id, ValueError("no"))] if r.id == "b" else [])
    with pytest.raises(ValueError, match="no"):
        run(desk, "a", "b")
    assert desk.cancelled == ["a"]


def test_who_stops_listening_cancels() -> None:
    desk = Desk(lambda r: [Token(r.id, 5, b"x")])

    async def leave() -> None:
        stream = events(desk, [request("a"), request("b")])
        await anext(stream)
        await anext(stream)
        await stream.aclose()

    asyncio.run(leave())
    assert sorted(desk.cancelled) == ["a", "b"]
