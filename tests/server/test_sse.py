"""Server-sent events: one line each whatever they hold, pings while nothing comes, and an end when the client has gone."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from server import sse
from server.errors import ApiError
from tests.server.serving import Answers, serving

HI = [{"role": "user", "content": "hi"}]


def test_an_event_is_one_line_to_every_client_whatever_text_it_holds() -> None:
    text = "a\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029é🙂"
    assert len(sse.compact({"text": text}).splitlines()) == 1
    assert json.loads(sse.compact({"text": text})) == {"text": text}


async def collected(stream: AsyncGenerator[str, None]) -> list[str]:
    return [event async for event in stream]


def test_an_error_after_the_first_chunk_is_the_last_event_and_no_done_follows() -> None:
    async def chunks() -> AsyncGenerator[dict[str, Any], None]:
        yield {"n": 1}
        yield {"n": 2}
        raise ApiError(500, "broken", code="x")

    first, second, last = asyncio.run(collected(sse.openai_events(chunks())))
    assert (first, second) == ('data: {"n":1}\n\n', 'data: {"n":2}\n\n')
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == "broken"


def test_comments_keep_a_connection_alive_while_a_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "PING_SECONDS", 0.02)
    with serving(script=Answers("ok"), seconds_per_token=0.002) as client:
        messages = [{"role": "user", "content": "x" * 200}]
        answer = client.post("/v1/chat/completions", json={"messages": messages, "stream": True})
        lines = answer.text.splitlines()
        assert ": reading" in lines[:-4]
        assert [line for line in lines if line.startswith("data")][-1] == "data: [DONE]"


class Gone:
    """A request whose client leaves after so many messages were asked for."""

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}


def test_work_is_cancelled_when_the_client_has_gone() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    async def run() -> None:
        with pytest.raises(ApiError, match="closed the connection"):
            await sse.while_connected(Gone(), work())  # type: ignore[arg-type]

    asyncio.run(run())
    assert ended == ["cancelled"]


def test_work_that_is_done_first_gives_its_result() -> None:
    async def work() -> int:
        return 7

    async def run() -> int:
        return await sse.while_connected(Gone(), work())  # type: ignore[arg-type]

    assert asyncio.run(run()) == 7
