"""Tokens of a prompt where the tokenizer is on the other side of HTTP: an estimate that every answer's usage corrects.

A prompt is weighed by its characters: a word of Latin letters counts a quarter of its letters, every other visible character one.
That is more than a byte-pair tokenizer makes of prose, code or JSON, so the first views are small rather than too large. Each
answer reports its true prompt tokens; the estimate is scaled by the largest ratio seen among the last answers, and a little more.
An upstream that still says "too long" raises the scale by a quarter, and the request is prepared once more.
"""

import json
import re
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from keeper.chunks import usage_of
from keeper.model import Body, Reply
from server.keeper_turn import Speaks
from server.remembered import Remembered

MARGIN = 1.03  # over the largest ratio seen: the next prompt may be a little denser
FIRST_SCALE = 1.0
PER_MESSAGE = 8  # role and markers
REMEMBERED = 32  # answers whose ratio counts
WORD = re.compile(r"[A-Za-z]+|[^\sA-Za-z]")
TOO_LONG = re.compile(
    rb"context[_ ]length|context size|maximum context|too (?:long|large)|exceeds? the (?:available )?context", re.IGNORECASE
)


def says_too_long(status: int | None, body: bytes) -> bool:
    """Whether an upstream's error means that the prompt did not fit its window (llama-server, vLLM, SGLang, OpenAI)."""
    return status in (400, 413, 500) and bool(TOO_LONG.search(body))


def weight(text: str) -> float:
    """Rough tokens of one piece of text, before scaling."""
    return sum(max(1.0, len(word) / 4) for word in WORD.findall(text))


class Estimate:
    """Counts for one upstream; `scale` is what its answers taught."""

    def __init__(self) -> None:
        self.scale = FIRST_SCALE
        self._ratios: deque[float] = deque(maxlen=REMEMBERED)
        self._penalty = 1.0
        self._weigh = Remembered(weight)

    def count(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> int:
        """Tokens of the rendered prompt, estimated: rather too many than too few."""
        return int(self._weight(messages, tools) * self.scale) + 1

    def _weight(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> float:
        total = sum(self._weigh(json.dumps(tool, ensure_ascii=False)) for tool in tools)
        for message in messages:
            content, calls = message.get("content"), message.get("tool_calls")
            total += PER_MESSAGE + self._weigh(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))
            total += self._weigh(json.dumps(calls, ensure_ascii=False)) if calls else 0
        return total

    def learn(self, body: Mapping[str, Any], prompt_tokens: int) -> None:
        """What a prompt really took."""
        guessed = self._weight(body.get("messages") or (), body.get("tools") or ())
        if prompt_tokens > 0 and guessed > 0:
            self._ratios.append(prompt_tokens / guessed)
            self.scale = max(self._ratios) * MARGIN * self._penalty

    def was_too_low(self) -> None:
        """The upstream refused a prompt that was counted as fitting."""
        self._penalty *= 1.25
        self.scale *= 1.25

    def measuring(self, model: Speaks) -> Speaks:
        """The same model; every answer's usage is learnt from."""
        return _Measured(self, model)


class _Measured:
    def __init__(self, estimate: Estimate, model: Speaks) -> None:
        self._estimate = estimate
        self._model = model

    async def whole(self, body: Mapping[str, Any]) -> dict[str, Any]:
        completion = await self._model.whole(body)
        self._estimate.learn(body, usage_of(completion.get("usage")).prompt)
        return completion

    async def chunks(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(self._model.chunks(body)) as chunks:
            async for chunk in chunks:
                if chunk.get("usage"):
                    self._estimate.learn(body, usage_of(chunk["usage"]).prompt)
                yield chunk

    async def complete(self, body: Body) -> Reply:
        reply = await self._model.complete(body)
        self._estimate.learn(body, reply.usage.prompt)
        return reply
