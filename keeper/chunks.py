"""A streamed reply, chunk by chunk: what the agent may see of it at once, and the whole Reply when it has ended.

The chunks are OpenAI's chat.completion.chunk objects. Text and reasoning pass as they come. A call of the keeper's own tools
never passes, and the calls beside it are numbered as if it were not there. The end (finish_reason, usage) is held back, because
whether the turn has ended is for the keeper to say.
"""

from copy import deepcopy
from typing import Any

from keeper.message import Message, Part, ToolCall, read
from keeper.model import Reply, Usage


class Assembly:
    """Puts one streamed reply together. `hidden` are the names of the keeper's own tools."""

    def __init__(self, hidden: frozenset[str] = frozenset()) -> None:
        self.held: list[dict[str, Any]] = []  # the chunks of the end, in order
        self._hidden = hidden
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._shown: dict[int, int] = {}
        self._finish: str | None = None
        self._usage: Any = None

    @property
    def ended(self) -> bool:
        """Whether the upstream said why it stopped; a stream that breaks off before has no reply."""
        return self._finish is not None

    def feed(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """Takes a chunk; returns what the agent may see of it now, or None."""
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices")
        if not choices:
            self.held.append(chunk)
            return None
        choice = choices[0]
        if choice.get("index"):
            return chunk  # of several choices the first is kept, the others pass
        delta = choice.get("delta") or {}
        self._text.append(delta.get("content") or "")
        self._reasoning.append(delta.get("reasoning_content") or delta.get("reasoning") or "")
        passing = {key: value for key, value in delta.items() if key != "tool_calls"}
        if shown := [call for part in delta.get("tool_calls") or () if (call := self._call(part)) is not None]:
            passing["tool_calls"] = shown
        if choice.get("finish_reason") is None:
            return _with_delta(chunk, passing) if passing or not delta else None
        self._finish = str(choice["finish_reason"])
        self.held.append(_with_delta(chunk, {}))
        return _with_delta(chunk, passing, finish=None) if passing else None

    def _call(self, part: dict[str, Any]) -> dict[str, Any] | None:
        index, function = int(part.get("index") or 0), part.get("function") or {}
        call = self._calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        call["id"] = call["id"] or str(part.get("id") or "")
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""
        if call["name"] in self._hidden:
            return None
        return {**part, "index": self._shown.setdefault(index, len(self._shown))}

    def reply(self) -> Reply:
        """The whole reply."""
        calls = tuple(ToolCall(call["id"], call["name"], call["arguments"]) for _, call in sorted(self._calls.items()))
        text, reasoning = "".join(self._text), "".join(self._reasoning)
        return Reply(
            Message("assistant", (Part("text", text),), calls, reasoning=reasoning), self._finish or "stop", usage_of(self._usage)
        )


def _with_delta(chunk: dict[str, Any], delta: dict[str, Any], finish: object = "as it is") -> dict[str, Any]:
    found = deepcopy(chunk)
    found["choices"][0]["delta"] = delta
    if finish is None:
        found["choices"][0]["finish_reason"] = None
    return found


def usage_of(usage: Any) -> Usage:
    """OpenAI's usage object (or None) as a Usage."""
    if not isinstance(usage, dict):
        return Usage()
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return Usage(int(usage.get("prompt_tokens") or 0), int(cached or 0), int(usage.get("completion_tokens") or 0))


def reply_of(completion: dict[str, Any]) -> Reply:
    """A whole chat.completion object as a Reply (its first choice)."""
    choice = completion["choices"][0]
    message = {"role": "assistant", **(choice.get("message") or {})}
    return Reply(read(message), str(choice.get("finish_reason") or "stop"), usage_of(completion.get("usage")))
