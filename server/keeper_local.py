"""`kvalet serve --keeper`: the keeper over the engine of this process. Chat completions go through it; everything else does not.

Tokens are counted with the model's own tokenizer over the model's own template, so a view never exceeds the window.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from engine.errors import EngineError
from keeper.archive import Archive
from keeper.chunks import reply_of
from keeper.config import KeeperConfig, Thinking
from keeper.errors import KeeperError, UpstreamFailed
from keeper.keeper import Keeper
from keeper.model import Body, CountTokens, Reply
from keeper.strategies.tope import Prices, Tope
from keeper.turn import Turn as KeptTurn
from server import errors, keeper_api, openai, sse
from server.asked import chat_turn, session_of
from server.config import ConfigError
from server.errors import ApiError, from_engine
from server.folders import archive_folder
from server.keeper_turn import answered, streamed, unheard
from server.outlook import Outlook
from server.remembered import Remembered
from server.runtime import Runtime, runtime_of
from server.schemas import ChatRequest
from server.turn import Turn, whole

router = APIRouter(tags=["OpenAI"])
TURN_START = "<|im_start|>"


@router.post("/v1/chat/completions", response_model=None, responses=sse.STREAMED)
async def chat(body: ChatRequest, request: Request) -> Response:
    """An answer to a conversation of any length, whole or as server-sent events."""
    runtime, keeper = runtime_of(request), keeper_api.keeper_of(request)
    session = session_of(request, body)
    model = LocalModel(runtime, session)
    raw = await request.json()
    ended = foretelling(runtime, keeper, model, raw, session)
    if body.stream:
        chunks = streamed(keeper, model, raw, session, ended)
        first = await anext(chunks)
        return sse.response(sse.openai_events, first, chunks, runtime.settings.drain)
    return JSONResponse(await sse.while_connected(request, answered(keeper, model, raw, session, ended)))


class LocalModel:
    """This process's engine as the model behind a keeper (see keeper_turn.Speaks)."""

    def __init__(self, runtime: Runtime, session: str | None, *, background: bool = False) -> None:
        """`background`: nobody waits for what is asked here."""
        self._runtime = runtime
        self._session = session
        self._background = background
        self.last = ""  # the engine's id of the last request

    async def _turn(self, body: Mapping[str, Any]) -> Turn:
        turn = await chat_turn(self._runtime, ChatRequest.model_validate(body), self._session, foretells=False)
        self.last = turn.requests[0].id
        if not self._background:
            return turn
        return replace(turn, requests=tuple(replace(request, background=True) for request in turn.requests))

    async def whole(self, body: Mapping[str, Any]) -> dict[str, Any]:
        turn = await self._turn(body)
        return openai.chat_body(turn, await whole(self._runtime.engine, turn))

    async def chunks(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        turn = await self._turn(body)
        async with aclosing(openai.chat_chunks(self._runtime, turn, usage=True)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def complete(self, body: Body) -> Reply:
        """A call of the keeper's own; what goes wrong in it is for the keeper to judge."""
        try:
            return reply_of(await self.whole(body))
        except (EngineError, ApiError) as error:
            told = from_engine(error)
            raise UpstreamFailed(told.message, told.status) from error


def foretelling(
    runtime: Runtime, keeper: Keeper, model: LocalModel, body: Mapping[str, Any], session: str | None
) -> Callable[[KeptTurn], None]:
    """What to do when an agent's turn has ended: the views that may come next are told to whoever reads ahead."""
    pair, loop = runtime.pair, asyncio.get_running_loop()
    if pair is None:
        return unheard

    def ended(turn: KeptTurn) -> None:
        complete = LocalModel(runtime, session, background=True).complete
        ahead = Outlook(runtime, keeper, loop, body, turn.reply.message, session, complete)
        pair.expect(model.last, ahead.next_view, ahead.after_a_cut)

    return ended


def counting(runtime: Runtime) -> CountTokens:
    """Counts as the engine will: the rendered prompt, tokenized. Control tokens border turns, so that each turn counts alone."""

    tokens = Remembered(lambda segment: len(runtime.tokenizer.tokenize(segment, special=True)))

    def count(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> int:
        if not messages:
            return 0
        first, *rest = runtime.template.render(messages, tools or None).text.split(TURN_START)
        return int(runtime.tokenizer.adds_bos) + tokens(first) + sum(tokens(TURN_START + segment) for segment in rest)

    return count


def keeper_for(runtime: Runtime) -> Keeper:
    """The keeper that these settings ask for. Raises ConfigError for a window beyond the model's context."""
    settings = runtime.settings
    if settings.window > runtime.n_ctx:
        raise ConfigError(f"--window {settings.window} is more than the model's context of {runtime.n_ctx} tokens (--ctx)")
    try:
        config = KeeperConfig(
            window=settings.window or runtime.n_ctx,
            strategy=settings.keeper or "in_place",
            root=settings.archive or archive_folder(),
            thinking=Thinking(settings.thinking),
            thinking_effort=settings.thinking_effort,
            tool_tree=settings.tool_tree,
        )
        measured = Tope(lambda: prices(runtime)) if config.strategy == Tope.name else None
        return Keeper(config, LocalModel(runtime, None).complete, counting(runtime), Archive(config.root), measured)
    except KeeperError as error:
        raise ConfigError(f"--keeper: {error}") from error
    except ValueError as error:
        raise ConfigError(f"--window: {error}") from error


def prices(runtime: Runtime) -> Prices:
    """What reading and restoring cost this engine so far; assumed until it did either."""
    done, known = runtime.engine.stats().counters, Prices()
    reread = done.read_ms / done.read_tokens if done.read_tokens else known.reread_ms_a_token
    restore = done.restore_ms / done.restored_tokens if done.restored_tokens else known.restore_ms_a_token
    return Prices(known.restore_ms, restore, reread)


def install(app: FastAPI, runtime: Runtime) -> None:
    """Puts the keeper before the app's own chat route. To be called before that route is added."""
    app.state.keeper = keeper_for(runtime)
    app.include_router(router)
    app.include_router(keeper_api.router)

    @app.exception_handler(KeeperError)
    async def failed(request: Request, error: KeeperError) -> JSONResponse:
        return errors.answer(request, errors.from_keeper(error))
