"""What the keeper is handed to speak to a model: complete() and count_tokens(). The server and the proxy each bring theirs."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keeper.message import Message

Body = Mapping[str, Any]  # an OpenAI chat completion request, `messages` and `tools` included

# tokens of the rendered prompt, by the model's own tokenizer; no network, no waiting
CountTokens = Callable[[Sequence[dict[str, Any]], Sequence[dict[str, Any]]], int]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call, as the upstream reports them; `cached` of `prompt` came from its prefix cache."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.prompt + other.prompt, self.cached + other.cached, self.completion + other.completion)


@dataclass(frozen=True, slots=True)
class Reply:
    """One finished answer: the message as the model wrote it, why it stopped (stop, length, tool_calls), what it cost."""

    message: Message
    finish: str = "stop"
    usage: Usage = Usage()

    @property
    def thought_it_all_away(self) -> bool:
        """Spent its whole limit on thinking and wrote nothing."""
        return self.finish == "length" and self.message.empty


# one whole, unstreamed call; raises UpstreamFailed
Complete = Callable[[Body], Awaitable[Reply]]
