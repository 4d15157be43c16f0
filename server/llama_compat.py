"""The small routes of llama-server that tools and scripts use: health, tokens, templates, properties, slots."""

from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from engine.pair import PairStats
from engine.routing import STRIKES
from engine.sampling import SamplingParams
from engine.stats import SlotView
from server.errors import ApiError
from server.loading import token_text
from server.prompt import render
from server.runtime import check_text, runtime_of
from server.schemas import INT32, Body, ChatTemplateFields, Str

router = APIRouter(tags=["llama-server"])
Token = Annotated[int, Field(ge=0, le=INT32)]


class TokenizeRequest(Body):
    """`content` is text, or a list of texts and tokens."""

    content: Str | list[Str | Token]
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(Body):
    tokens: list[Token]


class TemplateRequest(ChatTemplateFields):
    """The fields of a chat request that shape its prompt."""


@router.head("/health", include_in_schema=False)
@router.get("/health")
@router.get("/v1/health", include_in_schema=False)
def health(request: Request) -> JSONResponse:
    """`ok`, `degraded` when the self-check failed at load (reuse is off then), or 503 when the engine has stopped."""
    runtime = runtime_of(request)
    stats = runtime.engine.stats()
    if not stats.alive:
        raise ApiError(503, f"the engine has stopped: {stats.last_error}", code="engine_stopped")
    body = {"status": "ok" if runtime.check.ok else "degraded", "reuse": stats.reuse, "self_check": check_text(runtime.check)}
    return JSONResponse(body if runtime.pair is None else with_pair(body, runtime.pair.pair_stats()))


def with_pair(body: dict[str, Any], stats: PairStats) -> dict[str, Any]:
    """The engines one by one; a server that has lost one goes on, but not as it was."""
    sound = all(stats.alive) and not any(strikes >= STRIKES for strikes in stats.strikes)
    engines = [{"alive": alive, "strikes": strikes} for alive, strikes in zip(stats.alive, stats.strikes, strict=True)]
    background = {"failed": stats.background.failed, "last_error": stats.background.last_error}
    status = body["status"] if sound else "degraded"
    return {**body, "status": status, "engines": engines, "background": background}


@router.post("/tokenize")
def tokenize(body: TokenizeRequest, request: Request) -> dict[str, list[Any]]:
    """Tokens of a text, with the text of each when `with_pieces` is set (bytes where a token is no whole character)."""
    tokenizer = runtime_of(request).tokenizer
    parts = body.content if isinstance(body.content, list) else [body.content]
    bos = body.add_special and tokenizer.adds_bos
    tokens: list[int] = []
    for number, part in enumerate(parts):
        if isinstance(part, int):
            tokens.append(part)
        else:
            tokens += tokenizer.tokenize(part, special=body.parse_special, add_bos=bos and number == 0)
    if not body.with_pieces:
        return {"tokens": tokens}
    return {"tokens": [{"id": token, "piece": shown(tokenizer.piece(token))} for token in tokens]}


def shown(piece: bytes) -> str | list[int]:
    """The text of a token, or its bytes where it is a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


@router.post("/detokenize")
def detokenize(body: DetokenizeRequest, request: Request) -> dict[str, str]:
    """The text of tokens."""
    return {"content": runtime_of(request).tokenizer.detokenize(body.tokens).decode("utf-8", "replace")}


@router.post("/apply-template")
def apply_template(body: TemplateRequest, request: Request) -> dict[str, str]:
    """The prompt that a chat request with these messages would read."""
    return {"prompt": render(runtime_of(request), body).text}


@router.get("/props")
def props(request: Request) -> dict[str, Any]:
    """What is served, and the defaults of a request."""
    runtime = runtime_of(request)
    defaults = {"n_ctx": runtime.n_ctx, "params": sampling_defaults()}
    return {
        "default_generation_settings": defaults,
        "total_slots": runtime.settings.parallel,
        "model_alias": runtime.card.id,
        "model_path": runtime.card.path,
        "chat_template": runtime.template.source,
        "bos_token": token_text(runtime.tokenizer, runtime.tokenizer.bos),
        "eos_token": token_text(runtime.tokenizer, runtime.tokenizer.eos),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"kvalet {version('kvalet')}",
        "kvalet": runtime.facts(),
    }


def sampling_defaults() -> dict[str, Any]:
    params = SamplingParams()
    return {name: getattr(params, name) for name in SamplingParams.__slots__ if name not in ("logit_bias", "json_schema")}


@router.get("/slots")
def slots(request: Request) -> list[dict[str, Any]]:
    """What each slot holds and does."""
    runtime = runtime_of(request)
    return [slot_body(view, runtime.n_ctx) for view in runtime.engine.slots()]


def slot_body(view: SlotView, n_ctx: int) -> dict[str, Any]:
    """llama-server's fields, then ours."""
    return {
        "id": view.index,
        "n_ctx": n_ctx,
        "speculative": False,
        "is_processing": view.request is not None,
        "id_task": view.request,
        "next_token": {"has_next_token": view.phase == "decoding", "n_decoded": view.generated},
        "phase": view.phase,
        "n_past": view.tokens,
        "n_canonical": view.canonical,
        "n_prompt": view.total,
        "n_prompt_read": view.position,
        "session": view.session,
        "prefill_per_second": view.prefill_per_second,
        "decode_per_second": view.decode_per_second,
    }
