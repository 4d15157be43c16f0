"""One request on its way: what it reads, what it has said, and how long that took. Changed by the engine's thread alone."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from engine.context import Sampler
from engine.request import Done, Event, Finish, Request, Resume, Timings
from engine.restoring import Restoration
from engine.scheduler import Work
from engine.slots import Slot
from engine.stats import SlotView
from engine.stream import StopMatcher

Sink = Callable[[Event], None]


class Phase(StrEnum):
    WAITING = "waiting"
    RESTORING = "restoring"
    READING = "reading"
    DECODING = "decoding"
    ENDED = "ended"


@dataclass(slots=True)
class Clocks:
    """Seconds of the engine's clock; 0 until they happened."""

    queued: float
    placed: float = 0.0
    read: float = 0.0
    progress: float = 0.0
    restoring: float = 0.0


@dataclass(slots=True, eq=False)
class Turn:
    """A request and its state. `sequence` is the prompt and what was sampled; all but the last sampled token are (or will be)
    in the slot. Tokens up to `end` are to be read: the prompt at first, then each sampled token in turn. `stops` are the
    positions, ascending, at which checkpoints are wanted; `marks` says why. At `tip`, off the grid, the slot keeps its own."""

    request: Request
    sink: Sink
    matcher: StopMatcher
    clocks: Clocks
    sequence: list[int]
    phase: Phase = Phase.WAITING
    slot: Slot | None = None
    sampler: Sampler | None = None
    restoration: Restoration | None = None
    resume: Resume | None = None
    stops: tuple[int, ...] = ()
    marks: dict[int, tuple[str, bool]] = field(default_factory=dict)
    limit: int = 0  # tokens to generate at most
    tip: int = 0  # 0: none
    served: int = 0
    retried: bool = False
    cancelled: bool = False
    awaits: "tuple[Turn, int] | None" = None  # while it waits: whose state it is going to share, and at which position

    @property
    def prompt(self) -> int:
        return len(self.request.tokens)

    @property
    def generated(self) -> int:
        return len(self.sequence) - self.prompt

    @property
    def end(self) -> int:
        return len(self.sequence)

    @property
    def position(self) -> int:
        """Tokens of `sequence` in the slot; while it is restored those that will be."""
        if self.restoration is not None:
            return self.restoration.plan.position
        return self.slot.length if self.slot is not None else 0

    def is_reading(self) -> bool:
        return self.phase in (Phase.RESTORING, Phase.READING)

    def still_waits(self) -> bool:
        """Whether the state it awaits is still on its way."""
        if self.awaits is None:
            return False
        other, position = self.awaits
        return other.is_reading() and other.position < position

    def work(self) -> Work:
        """As the scheduler sees it; only while it reads or decodes."""
        assert self.slot is not None
        position, end = self.position, self.end
        if self.phase is Phase.DECODING:
            return Work(self.slot.index, position, end, end, True, self.served)
        return Work(self.slot.index, position, end, self.next_stop(position), False, self.served)

    def next_stop(self, position: int) -> int:
        """The next wanted checkpoint after `position`, or the end of what is to be read."""
        at = bisect_right(self.stops, position)
        return min(self.stops[at], self.end) if at < len(self.stops) else self.end

    def wants_checkpoint(self, position: int) -> bool:
        at = bisect_right(self.stops, position)
        return at > 0 and self.stops[at - 1] == position

    def done(self, finish: Finish, stop: str | None, extra: int, now: float) -> Done:
        """The last event; `extra` counts a sampled token that is not in `sequence` (the end token, the last one)."""
        assert self.resume is not None
        clocks, generated = self.clocks, self.generated + extra
        read = clocks.read or now
        timings = Timings(
            cache_n=self.resume.position,
            prompt_n=self.prompt - self.resume.position,
            prompt_ms=1e3 * (read - clocks.placed - clocks.restoring),
            predicted_n=generated,
            predicted_ms=1e3 * (now - read),
            queued_ms=1e3 * (clocks.placed - clocks.queued),
            restore_ms=1e3 * clocks.restoring,
        )
        return Done(
            self.request.id,
            finish,
            stop,
            self.matcher.flush() if stop is None else b"",
            self.prompt,
            generated,
            self.resume,
            timings,
            tuple(self.sequence[self.prompt :]),
        )


def view(slot: Slot, turn: Turn | None, now: float) -> SlotView:
    """The slot and the turn on it, for people and /slots; speeds are tokens a second, 0 before they can be told."""
    if turn is None or turn.resume is None:
        return SlotView(slot.index, "idle", slot.length, slot.canonical, None, slot.session, 0, 0, 0, 0.0, 0.0)
    clocks, position = turn.clocks, min(slot.length, turn.prompt)
    reading = (clocks.read or now) - clocks.placed - clocks.restoring
    return SlotView(
        slot.index,
        turn.phase.value,
        slot.length,
        slot.canonical,
        turn.request.id,
        turn.request.session,
        position,
        turn.prompt,
        turn.generated,
        _rate(position - turn.resume.position, reading),
        _rate(turn.generated, now - clocks.read) if clocks.read else 0.0,
    )


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0
