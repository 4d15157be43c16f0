"""The keeper in front of any OpenAI-compatible server, for agents that send their whole history and manage nothing.

Chat completions go through the keeper, streamed or not. Every other path, and every field the keeper does not know, passes as it
came; so does every error of the upstream, with its status, headers and body.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from prometheus_client import CollectorRegistry, generate_latest

from keeper.archive import Archive
from keeper.config import KeeperConfig
from keeper.errors import KeeperError
from keeper.keeper import Keeper
from server import errors, keeper_api, sse
from server.config import Settings
from server.errors import ApiError
from server.guard import KeyGuard
from server.keeper_turn import answered, streamed
from server.proxy_tokens import Estimate, says_too_long
from server.proxy_upstream import NOT_SENT_BACK, Speaker, Upstream, UpstreamAnswered

CHAT = "/v1/chat/completions"
DRAIN_SECONDS: float = Settings.model_fields["drain"].default  # at SIGTERM, as `serve` gives them
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"]


class Proxy:
    """What lives while a proxy runs: the upstream, the keeper, the estimate of the upstream's tokens."""

    def __init__(self, upstream: Upstream, config: KeeperConfig) -> None:
        self.upstream = upstream
        self.estimate = Estimate()
        own = Speaker(upstream, CHAT, {})
        self.keeper = Keeper(config, own.complete, self.estimate.count, Archive(config.root))

    async def close(self) -> None:
        await self.upstream.close()
        self.keeper.close()


def create_app(proxy: Proxy, api_key: str | None = None) -> FastAPI:
    """The proxy as an app, which closes `proxy` when it ends. `api_key`: what clients must send, where it is given."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await proxy.close()

    app = FastAPI(title="kvalet proxy", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.keeper = proxy.keeper
    errors.install(app)
    install(app)
    app.include_router(keeper_api.router)

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> PlainTextResponse:
        registry = CollectorRegistry()
        registry.register(keeper_api.KeeperCollector(proxy.keeper))
        return PlainTextResponse(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.post(CHAT, response_model=None)
    @app.post("/chat/completions", response_model=None)
    async def chat(request: Request) -> Response:
        return await chat_answer(proxy, request)

    @app.api_route("/{path:path}", methods=METHODS, response_model=None)
    async def other(path: str, request: Request) -> Response:
        return await passed_on(proxy.upstream, request)

    app.add_middleware(KeyGuard, key=api_key)
    return app


def install(app: FastAPI) -> None:
    """The keeper's errors as answers; an upstream's own answer goes out as it came."""

    @app.exception_handler(KeeperError)
    async def keeper(request: Request, error: KeeperError) -> Response:
        if isinstance(error, UpstreamAnswered):
            return Response(error.body, error.status or 502, error.headers)
        return errors.answer(request, errors.from_keeper(error))


async def chat_answer(proxy: Proxy, request: Request) -> Response:
    """One chat completion through the keeper."""
    body = read_body(await request.body())
    speaker = Speaker(proxy.upstream, CHAT, request.headers)
    session = request.headers.get("x-session-id")
    model = proxy.estimate.measuring(speaker)
    try:
        return await _once(proxy, model, body, session)
    except UpstreamAnswered as error:
        if not says_too_long(error.status, error.body):
            raise
        proxy.estimate.was_too_low()
        return await _once(proxy, model, body, session)


async def _once(proxy: Proxy, model: Any, body: Mapping[str, Any], session: str | None) -> Response:
    if not body.get("stream"):
        return JSONResponse(await answered(proxy.keeper, model, body, session))
    chunks = streamed(proxy.keeper, model, body, session)
    first = await anext(chunks)  # an upstream that refuses answers with its own status, before a stream has begun
    return sse.response(events, first, chunks, DRAIN_SECONDS)


def events(chunks: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[str, None]:
    """Server-sent events. An upstream that dies in the middle becomes an error event, and no [DONE] follows it."""
    return sse.openai_events(chunks, told_error)


def told_error(error: Exception) -> str:
    """What the upstream said as it said it, in one line; what the keeper or this server did; other errors are raised again."""
    if isinstance(error, UpstreamAnswered):
        return " ".join(error.body.decode(errors="replace").splitlines())
    if isinstance(error, KeeperError | ApiError):
        return sse.told_error(error)
    raise error


def read_body(content: bytes) -> dict[str, Any]:
    """A request's JSON object; ApiError 400 for anything else."""
    try:
        body = json.loads(content)
        json.dumps(body, ensure_ascii=False).encode()  # a lone surrogate, which no hash and no archive takes, fails here
    except (ValueError, RecursionError) as error:
        raise errors.unreadable(error) from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_body")
    return body


async def passed_on(upstream: Upstream, request: Request) -> Response:
    """Any other request, streamed both ways."""
    headers, body = request.headers, await request.body()
    exchange = upstream.opened(request.method, request.url.path, headers, body or None, request.url.query)
    response = await exchange.__aenter__()

    async def content() -> AsyncIterator[bytes]:
        try:
            async for part in response.aiter_bytes():
                yield part
        finally:
            await exchange.__aexit__(None, None, None)

    kept = {name: value for name, value in response.headers.items() if name.lower() not in NOT_SENT_BACK}
    return StreamingResponse(content(), response.status_code, kept)
