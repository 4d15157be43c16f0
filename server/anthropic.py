"""Anthropic's routes: messages, whole and streamed, and the counting of tokens. The turn is the same as everybody's."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from engine.deltas import CallStart, ContentDelta, Delta, Parsed, ReasoningDelta
from engine.request import Done, Exact
from server import report, sse
from server.anthropic_schemas import CountRequest, MessagesRequest
from server.asked import chat_turn, off_loop, session_of
from server.errors import error_body, from_engine
from server.prompt import chat_prompt, render
from server.runtime import Runtime, runtime_of
from server.schemas import ChatTemplateFields
from server.turn import Said, Step, Turn, steps, whole

router = APIRouter(tags=["Anthropic"])
PATH = "/v1/messages"
Event = tuple[str, dict[str, Any]]


@router.post(PATH, response_model=None, responses=sse.STREAMED)
async def messages(body: MessagesRequest, request: Request) -> Response:
    """An answer to a conversation in Anthropic's form, whole or as server-sent events."""
    runtime, asked = runtime_of(request), body.chat_request()
    turn = await chat_turn(runtime, asked, session_of(request, asked))
    if body.stream:
        events = message_events(runtime, turn)
        first = await anext(events)
        return sse.response(named_events, first, events, runtime.settings.drain)
    (said,) = await sse.while_connected(request, whole(runtime.engine, turn))
    return JSONResponse(message_body(turn, said))


@router.post(PATH + "/count_tokens")
async def count_tokens(body: CountRequest, request: Request) -> dict[str, int]:
    """Tokens of the prompt that these messages make."""
    runtime = runtime_of(request)
    fields = ChatTemplateFields.model_validate(body.openai())
    prompt = await off_loop(runtime, partial(prompt_of, runtime, fields))
    return {"input_tokens": prompt}


def prompt_of(runtime: Runtime, fields: ChatTemplateFields) -> int:
    return len(chat_prompt(runtime, render(runtime, fields), Exact.APPEND).tokens)


def message_body(turn: Turn, said: Said) -> dict[str, Any]:
    return {
        **head(turn),
        "content": content_blocks(said.parsed),
        **stop_fields(said.end, said.done),
        "usage": usage(said.done),
        **reports(turn, said.done),
    }


def head(turn: Turn) -> dict[str, Any]:
    return {"id": turn.id.replace("chatcmpl-", "msg_"), "type": "message", "role": "assistant", "model": turn.model}


def content_blocks(parsed: Parsed) -> list[dict[str, Any]]:
    """Thinking, text and calls, as far as there are any."""
    blocks: list[dict[str, Any]] = []
    if parsed.reasoning:
        blocks.append({"type": "thinking", "thinking": parsed.reasoning, "signature": ""})
    if parsed.content or not (parsed.reasoning or parsed.calls):
        blocks.append({"type": "text", "text": parsed.content})
    for call in parsed.calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": input_of(call.arguments)})
    return blocks


def input_of(arguments: str) -> Any:
    """A call's arguments as an object; what is no JSON is handed on under a key of its own."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {"arguments": arguments}


def stop_fields(end: Step, done: Done) -> dict[str, Any]:
    reasons = {"length": "max_tokens", "tool_calls": "tool_use"}
    reason = "stop_sequence" if done.stop is not None else reasons.get(end.finish or "", "end_turn")
    return {"stop_reason": reason, "stop_sequence": done.stop}


def usage(done: Done) -> dict[str, int]:
    """Anthropic counts cached tokens beside the input, not in it."""
    cached = done.resume.position
    return {
        "input_tokens": done.prompt_tokens - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": done.completion_tokens,
    }


def reports(turn: Turn, done: Done) -> dict[str, Any]:
    return {"timings": report.timings(done.timings), "kvalet": report.kvalet(done, turn.prompt)}


class OpenBlock:
    """The content block that a stream is in; each kind of delta belongs to a block of its own."""

    def __init__(self) -> None:
        self._index = -1
        self._key: object = None

    def events(self, delta: Delta) -> list[Event]:
        """What a delta sends: the end of the block before and the start of its own where it needs them, then itself."""
        key = (type(delta),) if isinstance(delta, ContentDelta | ReasoningDelta) else ("call", delta.index)
        begun = [] if key == self._key else [*self.close(), self._start(key, delta)]
        part = self._part(delta)
        return [*begun, *([part] if part else [])]

    def close(self) -> list[Event]:
        if self._key is None:
            return []
        self._key = None
        return [("content_block_stop", {"index": self._index})]

    def _start(self, key: object, delta: Delta) -> Event:
        self._key, self._index = key, self._index + 1
        if isinstance(delta, ContentDelta):
            block: dict[str, Any] = {"type": "text", "text": ""}
        elif isinstance(delta, ReasoningDelta):
            block = {"type": "thinking", "thinking": "", "signature": ""}
        else:
            assert isinstance(delta, CallStart)
            block = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
        return "content_block_start", {"index": self._index, "content_block": block}

    def _part(self, delta: Delta) -> Event | None:
        if isinstance(delta, CallStart):
            return None
        if isinstance(delta, ContentDelta):
            part = {"type": "text_delta", "text": delta.text}
        elif isinstance(delta, ReasoningDelta):
            part = {"type": "thinking_delta", "thinking": delta.text}
        else:
            part = {"type": "input_json_delta", "partial_json": delta.text}
        return "content_block_delta", {"index": self._index, "delta": part}


async def message_events(runtime: Runtime, turn: Turn) -> AsyncGenerator[Event, None]:
    """Names and data of the events of one answer; the first comes when the request is queued."""
    block = OpenBlock()
    async with aclosing(steps(runtime.engine, turn)) as happening:
        async for step in happening:
            if step is None:
                counts = {"input_tokens": len(turn.prompt.tokens), "output_tokens": 0}
                start = {**head(turn), "content": [], "stop_reason": None, "stop_sequence": None, "usage": counts}
                yield "message_start", {"message": start}
                continue
            for delta in step.deltas:
                for event in block.events(delta):
                    yield event
            if step.done is not None:
                for event in block.close():
                    yield event
                yield (
                    "message_delta",
                    {
                        "delta": stop_fields(step, step.done),
                        "usage": usage(step.done),
                        **reports(turn, step.done),
                    },
                )
                yield "message_stop", {}


async def named_events(events: AsyncGenerator[Event, None]) -> AsyncGenerator[str, None]:
    """Events as Anthropic names them; an error among them becomes an event of its own, and the last."""
    async with aclosing(events):
        try:
            async for event in events:
                yield named(*event)
        except Exception as error:
            told = error_body(PATH, from_engine(error))
            yield f"event: error\ndata: {sse.compact(told)}\n\n"


def named(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {sse.compact({'type': name, **data})}\n\n"
