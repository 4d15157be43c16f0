"""Errors as clients see them: OpenAI's form and statuses, whatever raised them."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from engine.errors import BadRequest, Cancelled, EngineError, EngineStopped, QueueFull
from keeper.errors import (
    ArchiveFailed,
    BadHistory,
    KeeperError,
    MessageTooLarge,
    UnknownConversation,
    UnknownStrategy,
    UpstreamFailed,
    WindowTooSmall,
)

LOG = logging.getLogger("kvalet.server")
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "unavailable_error",
}
NOT_FIELDS = {"body", "query", "path", "header", "str", "int", "float", "bool", "dict", "list", "NamedTool"}


class ApiError(Exception):
    """An answer that is an error; `status` is HTTP's, the rest are the fields of OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers

    @property
    def type(self) -> str:
        return TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}


def from_engine(error: Exception) -> ApiError:
    """What a client is told about an error of the engine: its own mistakes in full, ours without inner details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BadRequest):
        return ApiError(400, str(error), param=error.param, code=error.code)
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), code="queue_full", headers={"Retry-After": "1"})
    if isinstance(error, Cancelled | EngineStopped):
        return ApiError(503, "the server is closing or the request was cancelled", code="cancelled")
    if isinstance(error, EngineError):
        return ApiError(500, f"the model could not answer: {error}", code="engine_error")
    if isinstance(error, KeeperError):
        return from_keeper(error)
    LOG.error("a request failed", exc_info=error)
    return ApiError(500, "an unexpected error; the server's log has the details", code="internal_error")


def from_keeper(error: KeeperError) -> ApiError:
    """What a client is told about an error of the keeper."""
    if isinstance(error, BadHistory):
        return ApiError(400, str(error), param=error.param, code="invalid_history")
    if isinstance(error, MessageTooLarge | WindowTooSmall):
        return ApiError(400, str(error), param=error.param, code="context_length_exceeded")
    if isinstance(error, UnknownConversation):
        return ApiError(404, str(error), code="unknown_conversation")
    if isinstance(error, UnknownStrategy):
        return ApiError(400, str(error), code="unknown_strategy")
    if isinstance(error, UpstreamFailed):
        return ApiError(error.status or 502, str(error), code="upstream_failed")
    if isinstance(error, ArchiveFailed):
        return ApiError(500, str(error), code="archive_failed")
    return ApiError(500, str(error), code="keeper_error")


def from_validation(errors: Sequence[Any]) -> ApiError:
    """The deepest complaint about a body (unions complain once a member), with the field's path: messages[0].content."""
    worst = max(errors, key=lambda e: len(fields(e["loc"])))
    if worst["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {worst.get('ctx', {}).get('error', worst['msg'])}", code="invalid_json")
    param, text = path(worst["loc"]), worst["msg"].removeprefix("Value error, ")
    if not param and worst["type"] == "value_error":  # a rule that joins fields
        return ApiError(400, text, code="invalid_value")
    if not param:
        return ApiError(400, "the body must be a JSON object, sent with Content-Type: application/json", code="invalid_body")
    return ApiError(400, f"{param}: {text}", param=param, code="invalid_type")


def unreadable(error: ValueError | RecursionError) -> ApiError:
    """A body that cannot be read as JSON: broken, not UTF-8, nested too deep, or with a number of thousands of digits."""
    reason = "it nests too deep" if isinstance(error, RecursionError) else str(error)
    return ApiError(400, f"the body is not JSON: {reason}", code="invalid_json")


def fields(location: Sequence[str | int]) -> list[str | int]:
    """The parts of pydantic's location that name fields: no 'body', no names of union members."""
    return [part for part in location if isinstance(part, int) or (part.isidentifier() and part not in NOT_FIELDS)]


def path(location: Sequence[str | int]) -> str:
    """('body', 'messages', 0, 'content', 'str') -> messages[0].content."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in fields(location))
    return "".join(parts).removeprefix(".")


def error_body(url_path: str, error: ApiError) -> dict[str, Any]:
    """The error in the form of the API that was called: Anthropic's under /v1/messages, OpenAI's elsewhere."""
    if url_path.startswith("/v1/messages"):
        return {"type": "error", "error": {"type": error.type, "message": error.message}}
    return error.body()


def answer(request: Request, error: ApiError) -> JSONResponse:
    return JSONResponse(error_body(request.url.path, error), error.status, headers=dict(error.headers or {}))


def install(app: FastAPI) -> None:
    """Makes every error of the app leave in OpenAI's form."""

    @app.exception_handler(ApiError)
    async def api(request: Request, error: ApiError) -> JSONResponse:
        return answer(request, error)

    @app.exception_handler(EngineError)
    async def engine(request: Request, error: EngineError) -> JSONResponse:
        return answer(request, from_engine(error))

    @app.exception_handler(RequestValidationError)
    async def validation(request: Request, error: RequestValidationError) -> JSONResponse:
        return answer(request, from_validation(error.errors()))

    @app.exception_handler(ValidationError)
    async def inner(request: Request, error: ValidationError) -> JSONResponse:
        """A body that was fine for its own API and is not for the one it is put into."""
        return answer(request, from_validation(error.errors()))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 400 and isinstance(error.__cause__, ValueError | RecursionError):  # FastAPI gave no reason
            return answer(request, unreadable(error.__cause__))
        message = f"{request.method} {request.url.path}: {error.detail}"
        return answer(request, ApiError(error.status_code, message, headers=error.headers))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        return answer(request, from_engine(error))
