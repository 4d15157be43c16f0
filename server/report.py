"""What a reply says of itself: usage as OpenAI has it, timings as llama-server has them, and the `kvalet` object."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.request import Done, Resume, Timings


@dataclass(frozen=True, slots=True)
class Place:
    """Where a prompt stopped being equal to what was read before: message of the request, character in its content, token."""

    message: int | None
    char: int
    token: int

    def body(self) -> dict[str, int | None]:
        return {"message": self.message, "char": self.char, "token": self.token}


def usage(dones: Sequence[Done]) -> dict[str, Any]:
    """Token counts of all choices over one prompt; the prompt counts once, and what was cached of it too."""
    prompt, completion = dones[0].prompt_tokens, sum(done.completion_tokens for done in dones)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": dones[0].resume.position},
    }


def total(usages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sum over the prompts of one request."""
    summed = {name: sum(one[name] for one in usages) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    cached = sum(one["prompt_tokens_details"]["cached_tokens"] for one in usages)
    return {**summed, "prompt_tokens_details": {"cached_tokens": cached}}


def timings(given: Timings) -> dict[str, Any]:
    """Milliseconds, counts and rates of one choice, under llama-server's names, and two of our own."""
    return {
        "cache_n": given.cache_n,
        "prompt_n": given.prompt_n,
        "prompt_ms": given.prompt_ms,
        **rates("prompt", given.prompt_n, given.prompt_ms),
        "predicted_n": given.predicted_n,
        "predicted_ms": given.predicted_ms,
        **rates("predicted", given.predicted_n, given.predicted_ms),
        "queued_ms": given.queued_ms,
        "restore_ms": given.restore_ms,
    }


def rates(name: str, count: int, ms: float) -> dict[str, float]:
    """Milliseconds a token and tokens a second; 0 where nothing happened."""
    return {
        f"{name}_per_token_ms": ms / count if count else 0.0,
        f"{name}_per_second": 1e3 * count / ms if ms > 0 else 0.0,
    }


class Located(Protocol):
    """What is needed of a prompt here."""

    @property
    def notes(self) -> Sequence[str]: ...
    def diverged(self, resume: Resume) -> Place | None: ...


def kvalet(done: Done, prompt: Located) -> dict[str, Any]:
    """Where a request resumed, what it read again, and where and why reuse stopped; `notes`: what was done to its messages."""
    resume, diverged = done.resume, prompt.diverged(done.resume)
    return {
        "resumed_from": resume.source.value,
        "restored_tokens": resume.restored,
        "reread_tokens": resume.reread,
        "diverged_at": diverged.body() if diverged else None,
        "reason": resume.reason,
        **({"notes": list(prompt.notes)} if prompt.notes else {}),
    }
