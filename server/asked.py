"""A request's body to turns: which prompt, how it is answered, in how many choices. Rendering and tokenizing run on threads."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from anyio import to_thread
from fastapi import Request as HttpRequest

from engine.request import Exact, Request
from engine.toolparse import OutputParser
from server.errors import ApiError
from server.foresight import foretelling, text_foretelling
from server.prompt import Prompt, chat_prompt, plain_prompt, render
from server.runtime import Runtime
from server.sampling import sampling
from server.schemas import ChatRequest, CompletionRequest, Generation
from server.shape import Shape, shape_of, text_shape
from server.turn import Turn, copies, new_id, now

T = TypeVar("T")


def session_of(request: HttpRequest, body: Generation) -> str | None:
    """The conversation's name, where the client gives one: bookkeeping, never a condition for a hit."""
    return body.prompt_cache_key or request.headers.get("x-session-id")


async def off_loop(runtime: Runtime, work: Callable[[], T]) -> T:
    """Runs heavy Python on one of a few threads, so that streams go on and the engine's thread gets its turn."""
    return await to_thread.run_sync(work, limiter=runtime.preparing)


async def chat_turn(runtime: Runtime, body: ChatRequest, session: str | None, *, foretells: bool = True) -> Turn:
    """The turn a chat request asks for. `foretells`: what follows it can be told from these very messages. Raises ApiError and
    BadRequest."""
    return await off_loop(runtime, partial(make_chat_turn, runtime, body, session, foretells))


def make_chat_turn(runtime: Runtime, body: ChatRequest, session: str | None, foretells: bool = True) -> Turn:
    model, id = runtime.known(body.model), new_id("chatcmpl")
    shape = shape_of(body, runtime.template.dialect)
    rendered = render(runtime, body, forced=not shape.free)
    prompt = chat_prompt(runtime, rendered, exactness(runtime, body))
    tools = None if body.tool_choice == "none" else body.raw_tools()

    def parser(choice: int) -> OutputParser:
        return runtime.template.parser(tools, rendered, seed=f"{id}/{choice}", stream_calls=bool(body.stream))

    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    shape = shape.behind_thinking() if rendered.thinking else shape
    first = request_of(runtime, body, id, prompt, shape, body.limit(), logprobs, session)
    ended = foretelling(runtime, body, first.exact, forced=not shape.free) if foretells and body.n in (None, 1) else None
    return Turn(id, now(), model, prompt, copies(first, body.n or 1), parser, ended=ended)


async def completion_turns(runtime: Runtime, body: CompletionRequest, session: str | None) -> list[Turn]:
    """One turn for each prompt of a completion request. Raises ApiError and BadRequest."""
    return await off_loop(runtime, partial(make_completion_turns, runtime, body, session))


def make_completion_turns(runtime: Runtime, body: CompletionRequest, session: str | None) -> list[Turn]:
    model = runtime.known(body.model)
    prompts = body.prompts()
    if not prompts:
        raise ApiError(400, "prompt: the list is empty", param="prompt", code="invalid_value")
    if body.suffix:
        raise ApiError(400, "suffix: this server does not fill in the middle", param="suffix", code="unsupported_value")
    if body.echo and body.logprobs is not None:
        raise ApiError(400, "echo: logprobs of the prompt itself are not computed", param="echo", code="unsupported_value")
    id, shape = new_id("cmpl"), text_shape(body, body.response_format)
    asked = body.n_probs if body.logprobs is None else body.logprobs
    turns = []
    for number, given in enumerate(prompts):
        prompt = plain_prompt(runtime, given, exactness(runtime, body))
        first = request_of(runtime, body, f"{id}/p{number}", prompt, shape, body.limit(), asked, session)
        echo = echoed(runtime, given) if body.echo else ""
        alone = len(prompts) == 1 and body.n in (None, 1)
        ended = text_foretelling(runtime, given, first.exact) if alone else None
        turns.append(Turn(id, now(), model, prompt, copies(first, body.n or 1), echo=echo, ended=ended))
    return turns


def echoed(runtime: Runtime, given: str | list[int]) -> str:
    return given if isinstance(given, str) else runtime.tokenizer.detokenize(given).decode("utf-8", "replace")


def request_of(
    runtime: Runtime,
    body: Generation,
    id: str,
    prompt: Prompt,
    shape: Shape,
    limit: int | None,
    logprobs: int | None,
    session: str | None,
) -> Request:
    """The engine's request for the first choice."""
    params = sampling(body, shape)
    if body.ignore_eos:  # as llama-server does: what ends a text can never be drawn
        never = tuple((token, float("-inf")) for token in sorted(runtime.tokenizer.eog))
        params = replace(params, logit_bias=(*params.logit_bias, *never))
    return Request(
        id=id,
        tokens=prompt.tokens,
        sampling=params,
        max_tokens=-1 if limit is None else limit,
        stop=body.stops(),
        anchors=prompt.anchors,
        exact=exactness(runtime, body),
        logprobs=logprobs,
        session=session,
        cold=body.cache_prompt is False,
    )


def exactness(runtime: Runtime, body: Generation) -> Exact:
    return Exact(body.exact or runtime.settings.exact)
