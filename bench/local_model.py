"""A model served in this process, as the keeper wants one: complete() and count_tokens() over the real engine, one slot.

What an HTTP server would add is left out, what decides answers and costs is not: the chat template, the transcript, reuse of the
live slot and of parked state, the parser of tool calls.
"""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

from engine.chat import load_template
from engine.config import ContextConfig, EngineConfig, ModelConfig
from engine.context import StateKind
from engine.deltas import collect
from engine.engine import Engine
from engine.errors import EngineError
from engine.llama import LlamaContext
from engine.llama_backend import Backend
from engine.llama_model import Model
from engine.request import Done, Failed, Finish, Request
from engine.sampler import LlamaSamplers
from engine.sampling import SamplingParams
from engine.stream import EventStream, Utf8Decoder
from engine.transcript import Transcript
from keeper.errors import UpstreamFailed
from keeper.message import read
from keeper.model import Body, Reply, Usage
from kvcache.config import MIB, CacheConfig
from kvcache.fingerprint import settings_root
from kvcache.store import Store

MOST = 256  # tokens of a reply where the request says nothing
MEMORY = 256 * MIB  # of parked state


@dataclass
class Spent:
    """Tokens since this model was opened: of prompts, of those from the cache, of those read again, and generated."""

    calls: int = 0
    prompt: int = 0
    cached: int = 0
    reread: int = 0
    generated: int = 0

    def add(self, done: Done) -> None:
        self.calls += 1
        self.prompt += done.prompt_tokens
        self.cached += done.resume.position
        self.reread += done.resume.reread
        self.generated += done.completion_tokens


@dataclass(eq=False)
class LocalModel:
    """Opens `path` with `ctx` tokens of context; a context manager."""

    path: Path
    ctx: int
    threads: int = 0
    spent: Spent = field(default_factory=Spent)

    def __enter__(self) -> "LocalModel":
        self._backend = Backend()
        self._model = Model(ModelConfig(self.path, extra_buffers=False), self._backend)
        self._context = LlamaContext(self._model, ContextConfig(ctx=self.ctx, slots=1, threads=self.threads))
        root = settings_root(dict(self._model.fingerprint_facts()))
        needs_checkpoint = self._context.kind is not StateKind.ATTENTION
        self._store = Store(CacheConfig(ram_bytes=MEMORY, park_min_tokens=64), root, needs_checkpoint=needs_checkpoint)
        samplers = LlamaSamplers(self._context)
        self._engine = Engine(self._context, self._store, EngineConfig(), self._model, samplers)
        self._engine.start()
        self._transcript = Transcript(self._model)
        self._template = load_template(self._model.chat_templates.get("default"), self._has_token)
        self._names = itertools.count()
        self._sizes = lru_cache(maxsize=4096)(self._size)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._engine.close()
        self._store.close()
        self._context.close()
        self._model.close()
        self._backend.close()

    def _has_token(self, text: str) -> bool:
        return len(self._model.tokenize(text, special=True)) == 1

    def count_tokens(self, messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of the rendered prompt, as keeper.model.CountTokens."""
        return self._sizes(self._template.render(messages, list(tools) or None).text)

    def _size(self, text: str) -> int:
        return len(self._model.tokenize(text, special=True))

    async def complete(self, body: Body) -> Reply:
        """One whole call, as keeper.model.Complete: greedy unless the body names a temperature. Raises UpstreamFailed."""
        tools = list(body.get("tools") or ())
        rendered = self._template.render(list(body["messages"]), tools or None, **dict(body.get("chat_template_kwargs") or {}))
        tokens = self._transcript.read(rendered.text, self._engine.resident(), self._store).tokens
        sampling = SamplingParams(temperature=float(body.get("temperature") or 0.0), seed=body.get("seed") or 1)
        most = int(body.get("max_tokens") or MOST)
        request = Request(f"bench-{next(self._names)}", tokens, sampling, most)
        text, done = await self._generate(request)
        self.spent.add(done)
        parser = self._template.parser(tools or None, rendered, seed=request.id)
        parsed = collect([*parser.feed(text), *parser.finish()])
        ended = "tool_calls" if parsed.calls else "stop" if done.finish is Finish.STOP else "length"
        return Reply(read(parsed.message()), ended, Usage(done.prompt_tokens, done.resume.position, done.completion_tokens))

    async def _generate(self, request: Request) -> tuple[str, Done]:
        decoder, said = Utf8Decoder(), ""
        try:
            async with EventStream(asyncio.get_running_loop(), lambda: self._engine.cancel(request.id)) as events:
                self._engine.submit(request, events.sink)
                async for event in events:
                    if isinstance(event, Failed):
                        raise event.error
                    if isinstance(event, Done):
                        return said + decoder.feed(event.text) + decoder.flush(), event
                    said += decoder.feed(getattr(event, "text", b""))
        except EngineError as error:
            raise UpstreamFailed(str(error)) from error
        raise UpstreamFailed("the engine ended without a word")
