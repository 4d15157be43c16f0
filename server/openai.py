"""OpenAI's routes: chat completions, completions, models. Thin: what is said is decided in turn.py, here it gets its form."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from engine.deltas import CallStart, ContentDelta, Delta, ReasoningDelta
from engine.request import Done, Token, TokenLogprob
from server import report, sse
from server.asked import chat_turn, completion_turns, session_of
from server.runtime import Runtime, runtime_of
from server.schemas import ChatRequest, CompletionRequest, StreamOptions
from server.turn import Said, Step, Turn, ends, steps, whole

router = APIRouter(tags=["OpenAI"])
chat_router = APIRouter(tags=["OpenAI"])  # of its own, because a keeper takes its place


@chat_router.post("/v1/chat/completions", response_model=None, responses=sse.STREAMED)
async def chat(body: ChatRequest, request: Request) -> Response:
    """An answer to a conversation, whole or as server-sent events."""
    runtime = runtime_of(request)
    turn = await chat_turn(runtime, body, session_of(request, body))
    if body.stream:
        return await streamed(runtime, chat_chunks(runtime, turn, wants_usage(body.stream_options)))
    said = await sse.while_connected(request, whole(runtime.engine, turn))
    return JSONResponse(chat_body(turn, said))


@router.post("/v1/completions", response_model=None, responses=sse.STREAMED)
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Text that continues one prompt or several, whole or as server-sent events."""
    runtime = runtime_of(request)
    turns = await completion_turns(runtime, body, session_of(request, body))
    if body.stream:
        return await streamed(runtime, text_chunks(runtime, turns, wants_usage(body.stream_options)))
    said = await sse.while_connected(request, all_of(runtime, turns))
    return JSONResponse(text_body(turns, said))


@router.get("/v1/models")
@router.get("/models", include_in_schema=False)
def models(request: Request) -> dict[str, Any]:
    """The one model that is served, under each of its names."""
    runtime = runtime_of(request)
    return {"object": "list", "data": [model_body(runtime, name) for name in runtime.names]}


@router.get("/v1/models/{name:path}")
def model(name: str, request: Request) -> dict[str, Any]:
    """One model."""
    runtime = runtime_of(request)
    return model_body(runtime, runtime.known(name))


def model_body(runtime: Runtime, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": runtime.started, "owned_by": "kvalet", "meta": runtime.card.meta}


def wants_usage(options: StreamOptions | None) -> bool:
    return bool(options and options.include_usage)


async def streamed(runtime: Runtime, chunks: AsyncGenerator[dict[str, Any], None]) -> Response:
    """Starts a stream only when its requests are queued, so that a refused one still gets its own status."""
    first = await anext(chunks)
    return sse.response(sse.openai_events, first, chunks, runtime.settings.drain)


# chat


def chat_body(turn: Turn, said: list[Said]) -> dict[str, Any]:
    return {
        **head(turn, "chat.completion"),
        "choices": [chat_choice(index, one, wants_logprobs(turn)) for index, one in enumerate(said)],
        "usage": report.usage(ends(said)),
        **reports(turn, said),
    }


def wants_logprobs(turn: Turn) -> bool:
    return turn.requests[0].logprobs is not None


def chat_choice(index: int, said: Said, logprobs: bool) -> dict[str, Any]:
    """`logprobs`: whether they were asked for; then even an answer without tokens has the object."""
    return {
        "index": index,
        "message": said.parsed.message(),
        "logprobs": chat_logprobs(said.tokens) or ({"content": [], "refusal": None} if logprobs else None),
        "finish_reason": said.end.finish,
    }


def call_body(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def chat_chunks(runtime: Runtime, turn: Turn, usage: bool) -> AsyncGenerator[dict[str, Any], None]:
    """chat.completion.chunk objects. The first, with the role, comes when the request is queued; the last of each choice
    carries what the reply cost."""
    base = head(turn, "chat.completion.chunk") | ({"usage": None} if usage else {})
    pending: list[list[Token]] = [[] for _ in turn.requests]
    last: list[Step] = []
    async with aclosing(steps(runtime.engine, turn)) as happening:
        async for step in happening:
            if step is None:
                for number in range(len(turn.requests)):
                    yield base | {"choices": [chunk_choice(number, {"role": "assistant", "content": ""})]}
                continue
            pending[step.choice] += [step.token] if step.token and step.token.logprob else []
            for delta in step.deltas:
                tokens, pending[step.choice] = pending[step.choice], []
                yield base | {"choices": [chunk_choice(step.choice, delta_body(delta), tokens)]}
            if step.done is not None:
                last.append(step)
                choice = chunk_choice(step.choice, {}, pending[step.choice], step.finish)
                yield base | {"choices": [choice]} | step_reports(turn, step, usage)
    if usage:
        yield base | {"choices": [], "usage": report.usage([s.done for s in last if s.done])}


def chunk_choice(
    index: int, delta: dict[str, Any], tokens: Sequence[Token] | None = None, finish: str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": chat_logprobs(tokens or []), "finish_reason": finish}


def delta_body(delta: Delta) -> dict[str, Any]:
    if isinstance(delta, ContentDelta):
        return {"content": delta.text}
    if isinstance(delta, ReasoningDelta):
        return {"reasoning_content": delta.text}
    if isinstance(delta, CallStart):
        return {"tool_calls": [{"index": delta.index, **call_body(delta.id, delta.name, "")}]}
    return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}


def step_reports(turn: Turn, step: Step, usage: bool) -> dict[str, Any]:
    """Usage, unless it comes in a chunk of its own, timings and the `kvalet` object of one choice that has ended."""
    assert step.done is not None
    own = {} if usage else {"usage": report.usage([step.done])}
    return {**own, "timings": report.timings(step.done.timings), "kvalet": report.kvalet(step.done, turn.prompt)}


def chat_logprobs(tokens: Sequence[Token]) -> dict[str, Any] | None:
    """OpenAI's logprobs object over the tokens that have one."""
    content = [entry | {"top_logprobs": [logprob_body(one) for one in top]} for entry, top in logprob_entries(tokens)]
    return {"content": content, "refusal": None} if content else None


def logprob_entries(tokens: Sequence[Token]) -> Iterator[tuple[dict[str, Any], tuple[TokenLogprob, ...]]]:
    for token in tokens:
        if token.logprob is not None:
            yield logprob_body(token.logprob), token.top


def logprob_body(one: TokenLogprob) -> dict[str, Any]:
    text = one.text.decode("utf-8", "replace")
    return {"id": one.token, "token": text, "logprob": one.logprob, "bytes": list(one.text)}


# completions


async def all_of(runtime: Runtime, turns: list[Turn]) -> list[list[Said]]:
    """The prompts of one request one after the other, so that a later one finds what it shares with an earlier one."""
    return [await whole(runtime.engine, turn) for turn in turns]


NO_TEXT_LOGPROBS: Mapping[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def text_body(turns: list[Turn], said: list[list[Said]]) -> dict[str, Any]:
    choices = [(turn.echo, one) for turn, choices in zip(turns, said, strict=True) for one in choices]
    bodies = [text_choice(index, echo + one.parsed.content, one.tokens, one.end) for index, (echo, one) in enumerate(choices)]
    if wants_logprobs(turns[0]):
        bodies = [body | {"logprobs": body["logprobs"] or NO_TEXT_LOGPROBS} for body in bodies]
    return {
        **head(turns[0], "text_completion"),
        "choices": bodies,
        "usage": report.total([report.usage(ends(choices)) for choices in said]),
        **reports(turns[0], said[0]),
    }


def text_choice(index: int, text: str, tokens: Sequence[Token], end: Step | None) -> dict[str, Any]:
    finish = end.finish if end else None
    return {"index": index, "text": text, "logprobs": text_logprobs(tokens), "finish_reason": finish}


def text_logprobs(tokens: Sequence[Token]) -> dict[str, Any] | None:
    """The older logprobs object: parallel lists. `text_offset` counts characters of the generated text."""
    entries = [token for token in tokens if token.logprob is not None]
    if not entries:
        return None
    texts = [token.logprob.text.decode("utf-8", "replace") for token in entries if token.logprob]
    offsets = [sum(map(len, texts[:i])) for i in range(len(texts))]
    return {
        "tokens": texts,
        "token_logprobs": [token.logprob.logprob for token in entries if token.logprob],
        "top_logprobs": [{t.text.decode("utf-8", "replace"): t.logprob for t in token.top} for token in entries],
        "text_offset": offsets,
    }


async def text_chunks(runtime: Runtime, turns: list[Turn], usage: bool) -> AsyncGenerator[dict[str, Any], None]:
    """text_completion objects; the prompts are continued one after the other."""
    base = head(turns[0], "text_completion") | ({"usage": None} if usage else {})
    used, first = [], 0
    for turn in turns:
        dones: list[Done] = []
        async with aclosing(steps(runtime.engine, turn)) as happening:
            async for step in happening:
                if step is None:
                    for number in range(len(turn.requests)):
                        yield base | {"choices": [text_choice(first + number, turn.echo, [], None)]}
                elif (chunk := text_chunk(first, step)) is not None:
                    dones += [step.done] if step.done else []
                    yield base | chunk | (step_reports(turn, step, usage) if step.done else {})
        used.append(report.usage(dones))
        first += len(turn.requests)
    if usage:
        yield base | {"choices": [], "usage": report.total(used)}


def text_chunk(first: int, step: Step) -> dict[str, Any] | None:
    """The choices of a chunk; None for a token that shows nothing yet and has no logprobs."""
    text = "".join(delta.text for delta in step.deltas if isinstance(delta, ContentDelta))
    tokens = [step.token] if step.token and step.token.logprob else []
    if not (text or tokens or step.done):
        return None
    return {"choices": [text_choice(first + step.choice, text, tokens, step)]}


# shared


def head(turn: Turn, kind: str) -> dict[str, Any]:
    return {"id": turn.id, "object": kind, "created": turn.created, "model": turn.model}


def reports(turn: Turn, said: list[Said]) -> dict[str, Any]:
    """Timings and the `kvalet` object of the first choice, which is the one that read the prompt."""
    return {"timings": report.timings(said[0].done.timings), "kvalet": report.kvalet(said[0].done, turn.prompt)}
