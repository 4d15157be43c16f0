"""The FastAPI application over a Runtime: routes, guards, and an OpenAPI description that says what is really answered."""

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware.cors import CORSMiddleware

from server import anthropic, cache_api, errors, keeper_local, llama_compat, metrics, openai
from server.guard import AnswerCount, BodyLimit, KeyGuard
from server.runtime import Runtime

ERROR_REF = {"$ref": "#/components/schemas/Error"}
ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
STATUSES = {
    "400": "The request cannot be served as it is",
    "401": "No or a wrong API key",
    "403": "Not allowed here",
    "404": "No such model or entry",
    "413": "The body is too large",
    "429": "Too many requests wait",
    "500": "The server failed",
    "503": "The server is closing",
}


def create_app(runtime: Runtime) -> FastAPI:
    """An app that owns nothing: everything that lives is in `runtime`, which the caller closes."""
    settings = runtime.settings
    app = FastAPI(title="kvalet", version=version("kvalet"), docs_url=None, redoc_url=None)
    app.state.runtime = runtime
    errors.install(app)
    if settings.keeper is not None:
        keeper_local.install(app, runtime)
    else:
        app.include_router(openai.chat_router)
    for module in (openai, anthropic, llama_compat, cache_api, metrics):
        app.include_router(module.router)
    app.add_middleware(BodyLimit, limit=settings.max_body)
    app.add_middleware(KeyGuard, key=settings.api_key)
    if settings.cors_origin:
        app.add_middleware(CORSMiddleware, allow_origins=settings.cors_origin, allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(AnswerCount, counts=runtime.answers)
    app.openapi = lambda: described(app)  # type: ignore[method-assign]
    return app


def described(app: FastAPI) -> dict[str, Any]:
    """FastAPI's description with our error form: validation answers 400, never FastAPI's 422."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        schemas["Error"] = ERROR_SCHEMA
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        for operation in (op for methods in schema["paths"].values() for op in methods.values()):
            describe_errors(operation["responses"])
        app.openapi_schema = schema
    return app.openapi_schema


def describe_errors(responses: dict[str, Any]) -> None:
    responses.pop("422", None)
    for status, meaning in STATUSES.items():
        responses.setdefault(status, {"description": meaning, "content": {"application/json": {"schema": ERROR_REF}}})
