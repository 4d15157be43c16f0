"""What every request passes first, as plain ASGI layers: the API key, and a count of answers by route and status."""

import hmac
from collections import Counter

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError, error_body

OPEN = frozenset({"/health", "/v1/health"})


def presented(headers: Headers) -> str:
    """The key a client sent, as OpenAI's clients (bearer) or Anthropic's (x-api-key) send it."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def right_key(given: str, key: str) -> bool:
    """Compares in constant time, so that the answer's timing says nothing about the key."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), key.encode())


class KeyGuard:
    """Answers 401 to requests without the key; `key` None lets all in. /health and CORS preflights are open."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._key is None or scope["path"] in OPEN or scope["method"] == "OPTIONS":
            return await self._app(scope, receive, send)
        if right_key(presented(Headers(scope=scope)), self._key):
            return await self._app(scope, receive, send)
        error = ApiError(401, "this server needs an API key: send `Authorization: Bearer <key>`", code="invalid_api_key")
        refusal = JSONResponse(error_body(scope["path"], error), 401, headers={"WWW-Authenticate": "Bearer"})
        return await refusal(scope, receive, send)


class BodyLimit:
    """Answers 413 to bodies of more than `limit` bytes: at once where their length is stated, else when they have grown so."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        stated = Headers(scope=scope).get("content-length", "0")
        if stated.isdecimal() and int(stated) > self._limit:
            error = ApiError(413, self._text())
            return await JSONResponse(error_body(scope["path"], error), 413)(scope, receive, send)
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise HTTPException(413, self._text())
            return message

        return await self._app(scope, limited, send)

    def _text(self) -> str:
        return f"the body has more than {self._limit} bytes; the server's --max-body sets the limit"


class AnswerCount:
    """Counts answers in `counts` under (route, status). Routes are templates, so that clients cannot make up labels."""

    def __init__(self, app: ASGIApp, counts: Counter[tuple[str, int]]) -> None:
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                self._counts[route, message["status"]] += 1
            await send(message)

        return await self._app(scope, receive, counted)
