"""One turn, shared by every API: a prompt and its choices in, deltas and reports out."""

import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from engine.deltas import ContentDelta, Delta, Parsed, collect
from engine.request import Done, Finish, Request, Token
from engine.sampling import SamplingParams
from engine.stream import Utf8Decoder
from engine.toolparse import OutputParser
from server.choices import Submits, events
from server.prompt import Prompt

LOG = logging.getLogger("kvalet.server")


@dataclass(frozen=True, slots=True)
class Turn:
    """What one prompt asks for: a request of the engine's for each choice. `parser` makes what reads choice n's text; without
    one the text is the answer as it stands (completions). `ended` is told what the only choice has said."""

    id: str
    created: int
    model: str
    prompt: Prompt
    requests: tuple[Request, ...]
    parser: Callable[[int], OutputParser] | None = None
    echo: str = ""
    ended: "Callable[[Said], None] | None" = None


@dataclass(frozen=True, slots=True)
class Step:
    """What happened to one choice: deltas that can be shown, the token behind them, and at the end why and what it cost."""

    choice: int
    deltas: tuple[Delta, ...] = ()
    token: Token | None = None
    done: Done | None = None
    calls: int = 0

    @property
    def finish(self) -> str | None:
        """OpenAI's finish_reason; None while it goes on."""
        if self.done is None:
            return None
        return "tool_calls" if self.calls and self.done.finish is Finish.STOP else self.done.finish.value


class Voice:
    """Turns the bytes of one choice into deltas."""

    def __init__(self, parser: OutputParser | None) -> None:
        self._parser = parser
        self._decoder = Utf8Decoder()

    def token(self, choice: int, token: Token) -> Step:
        return Step(choice, tuple(self._feed(self._decoder.feed(token.text))), token)

    def end(self, choice: int, done: Done) -> Step:
        deltas = self._feed(self._decoder.feed(done.text) + self._decoder.flush())
        if self._parser is not None:
            deltas += self._parser.finish()
        return Step(choice, tuple(deltas), None, done, self._parser.calls if self._parser else 0)

    def _feed(self, text: str) -> list[Delta]:
        if self._parser is not None:
            return self._parser.feed(text)
        return [ContentDelta(text)] if text else []


async def steps(engine: Submits, turn: Turn) -> AsyncGenerator[Step | None, None]:
    """None once the turn is queued, then every step of every choice. Raises as choices.events does."""
    heard = Heard() if turn.ended else None
    voices = [Voice(turn.parser(choice) if turn.parser else None) for choice in range(len(turn.requests))]
    async with aclosing(events(engine, turn.requests)) as chosen:
        async for item in chosen:
            if item is None:
                yield None
                continue
            choice, event = item
            if isinstance(event, Done):
                log_end(turn, event)
            voice = voices[choice]
            step = voice.token(choice, event) if isinstance(event, Token) else voice.end(choice, event)
            if heard is not None and turn.ended is not None and (said := heard.add(step)):
                turn.ended(said)
            yield step


def log_end(turn: Turn, done: Done) -> None:
    """One line for each answer: what it cost, and where it resumed."""
    resume, timings = done.resume, done.timings
    LOG.info(
        "%s: %d prompt tokens, %d from %s, %d read in %.0f ms; %d generated in %.0f ms (%s)",
        turn.id[:20],
        done.prompt_tokens,
        resume.position,
        resume.source.value,
        timings.prompt_n,
        timings.prompt_ms,
        done.completion_tokens,
        timings.predicted_ms,
        done.finish.value,
    )


@dataclass(frozen=True, slots=True)
class Said:
    """Everything one choice said, put together, and its last step."""

    parsed: Parsed
    tokens: tuple[Token, ...]
    end: Step
    done: Done


@dataclass(slots=True)
class Heard:
    """What one choice has said so far."""

    deltas: list[Delta] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)

    def add(self, step: Step) -> Said | None:
        """Takes a step; the last one gives the whole."""
        self.deltas += step.deltas
        self.tokens += [step.token] if step.token else []
        if step.done is None:
            return None
        return Said(collect(self.deltas), tuple(self.tokens), step, step.done)


async def whole(engine: Submits, turn: Turn) -> list[Said]:
    """What each choice said, when all have ended."""
    heard = [Heard() for _ in turn.requests]
    said: dict[int, Said] = {}
    async with aclosing(steps(engine, turn)) as happening:
        async for step in happening:
            if step is not None and (ended := heard[step.choice].add(step)):
                said[step.choice] = ended
    return [said[choice] for choice in range(len(heard))]


def copies(first: Request, n: int) -> tuple[Request, ...]:
    """`n` requests like `first`; a seed that was given counts up, so that the choices differ."""
    return (first, *(replace(first, id=f"{first.id}/{choice}", sampling=_seeded(first, choice)) for choice in range(1, n)))


def _seeded(first: Request, choice: int) -> SamplingParams:
    seed = first.sampling.seed
    return first.sampling if seed is None else replace(first.sampling, seed=(seed + choice) & 0xFFFFFFFF)


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def now() -> int:
    """Seconds since the epoch, as OpenAI's `created`."""
    return int(time.time())


def ends(said: Sequence[Said]) -> list[Done]:
    return [one.done for one in said]
