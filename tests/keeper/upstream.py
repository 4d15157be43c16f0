"""The scripted upstream: a real HTTP server with an OpenAI chat API, behind which a Reader answers (or a function of the test).

It streams or not, reports cached tokens as a server with a perfect prefix cache would, refuses prompts beyond its window as real
servers do, and can be told to fail, to stop in the middle of a stream, and to be slow.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from tests.keeper.counting import PrefixCache, count, rendered
from tests.keeper.reader import Reader

Answer = Callable[[dict[str, Any]], dict[str, Any]]  # request body -> assistant message; "finish_reason" in it sets that


@dataclass
class Upstream:
    """What a test can set and look at."""

    answer: Answer
    window: int = 1_000_000
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    usages: list[dict[str, Any]] = field(default_factory=list)
    fail: list[tuple[int, bytes]] = field(default_factory=list)  # status and body of the next answers
    die_after: int | None = None  # chunks of a stream after which the connection breaks
    pause_after: int | None = None  # chunks of a stream after which nothing comes for a minute
    delay: float = 0.0
    cache: PrefixCache = field(default_factory=PrefixCache)


def reading(reader: Reader) -> Answer:
    """A Reader as an Answer."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        return reader.reply(body["messages"], [tool["function"]["name"] for tool in body.get("tools") or ()])

    return answer


def app_of(up: Upstream) -> FastAPI:
    app = FastAPI()

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse(
            {"object": "list", "data": [{"id": "scripted", "object": "model"}]}, headers={"x-upstream": "scripted"}
        )

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = json.loads(await request.body())
        up.bodies.append(body)
        up.headers.append(dict(request.headers))
        if up.delay:
            await asyncio.sleep(up.delay)
        if up.fail:
            status, text = up.fail.pop(0)
            return Response(text, status, media_type="application/json", headers={"x-upstream": "scripted"})
        prompt = count(body["messages"], body.get("tools") or ())
        if prompt > up.window:
            error = {"message": f"{prompt} tokens are more than {up.window}", "code": "context_length_exceeded"}
            return JSONResponse({"error": error}, 400)
        message = up.answer(body)
        completion = _completion(up, body, message, prompt)
        if body.get("stream"):
            return StreamingResponse(_stream(up, body, completion), media_type="text/event-stream")
        return JSONResponse(completion)

    return app


def _completion(up: Upstream, body: dict[str, Any], message: dict[str, Any], prompt: int) -> dict[str, Any]:
    finish = message.pop("finish_reason", None) or ("tool_calls" if message.get("tool_calls") else "stop")
    cached = up.cache.cached(rendered(body["messages"], body.get("tools") or ()))
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": count([message]),
        "total_tokens": prompt + count([message]),
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    up.usages.append(usage)
    choice = {"index": 0, "message": message, "finish_reason": finish}
    made = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body.get("model"), "choices": [choice]}
    return {**made, "usage": usage, "system_fingerprint": "scripted"}


async def _stream(up: Upstream, body: dict[str, Any], completion: dict[str, Any]) -> AsyncIterator[bytes]:
    for number, chunk in enumerate(_chunks(body, completion)):
        if up.die_after is not None and number >= up.die_after:
            raise ConnectionError("the upstream dies here")
        if number == up.pause_after:
            await asyncio.sleep(60)
        yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def _chunks(body: dict[str, Any], completion: dict[str, Any]) -> Iterator[dict[str, Any]]:
    head = {k: completion[k] for k in ("id", "created", "model", "system_fingerprint")} | {"object": "chat.completion.chunk"}
    choice = completion["choices"][0]
    for delta in _deltas(choice["message"]):
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": completion["usage"]}


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for name in ("reasoning_content", "content"):
        text = message.get(name) or ""
        for start in range(0, len(text), 7):
            yield {name: text[start : start + 7]}
    for index, found in enumerate(message.get("tool_calls") or ()):
        function = found["function"]
        yield {
            "tool_calls": [
                {"index": index, "id": found["id"], "type": "function", "function": {"name": function["name"], "arguments": ""}}
            ]
        }
        for start in range(0, len(function["arguments"]), 5):
            yield {"tool_calls": [{"index": index, "function": {"arguments": function["arguments"][start : start + 5]}}]}


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The app on 127.0.0.1 at a free port, in a thread, until the block ends; gives its URL."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
        if not thread.is_alive():
            raise RuntimeError("the server did not start")
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


@contextmanager
def upstream(answer: Answer, **settings: Any) -> Iterator[Upstream]:
    """A scripted upstream that is up until the block ends."""
    up = Upstream(answer, **settings)
    with serving(app_of(up)) as url:
        up.url = url
        yield up
