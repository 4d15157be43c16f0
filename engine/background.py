"""The thread that gives the idle engine what to read: one read at a time, dropped as soon as somebody needs what it takes."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from engine.config import Budget
from engine.conversation import Conversation, Foresee, next_of, resident
from engine.errors import Cancelled
from engine.foresight import Ahead, Kind, Prompt, Read, reads
from engine.preread import Fate, Ledger
from engine.request import Done, Event, Failed, Request
from engine.sampling import SamplingParams

_log = logging.getLogger(__name__)
MOST_CONVERSATIONS = 16  # whose next turn is prepared for; the oldest is forgotten first
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class BackgroundStats:
    """`jobs` reads were begun, `preempted` of them were dropped for somebody who waited, `failed` went wrong; `doing` is the kind
    of the one that runs."""

    fate: Fate
    jobs: int
    preempted: int
    failed: int
    last_error: str | None
    doing: Kind | None
    conversations: int


class Desk(Protocol):
    """The engines as the background sees them."""

    @property
    def grid(self) -> int: ...
    @property
    def shared(self) -> bool:
        """Whether the engines share a device, so that whoever works takes from the other."""
        ...

    def free(self, home: int) -> int | None:
        """The engine that may read now, None while there is none."""
        ...

    def ahead(self, kind: Kind, prompt: Prompt) -> Ahead:
        """A prompt that may come, with what is held of it."""
        ...

    def ids(self, tokens: Sequence[int]) -> Sequence[bytes]:
        """Chain ids of the prompt's grid steps."""
        ...

    def token_ms(self) -> float:
        """What reading a token costs."""
        ...

    def read_tokens(self, engine: int) -> int:
        """Tokens that an engine has read in the background since it was made."""
        ...

    def give(self, engine: int, request: Request, sink: Callable[[Event], None]) -> None:
        """Submits a read. Raises what Engine.submit raises."""
        ...

    def take_back(self, engine: int, id: str) -> None:
        """Cancels a read."""
        ...

    def struck(self, engine: int) -> None:
        """A read failed there."""
        ...


@dataclass(slots=True, eq=False)
class _Job:
    id: str
    engine: int
    conversation: Conversation
    read: Read
    before: int  # the engine's read tokens when it began
    outcome: Event | None = None
    unwanted: bool = False


class Background:
    """See the module. Every method may be called from any thread and returns at once."""

    def __init__(self, desk: Desk, budget: Budget, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`patience`: seconds without a request before anything is begun, so that a fast agent is never in competition."""
        self._desk, self._budget, self._patience, self._clock = desk, budget, patience, clock
        self._wake = threading.Condition()
        self._news: deque[Callable[[], None]] = deque()
        self._conversations: deque[Conversation] = deque()  # the newest first
        self._open: dict[str, Conversation] = {}  # by the id of the request that goes on with it
        self._ledger = Ledger(desk.grid)
        self._numbers, self._jobs = count(1), count(1)
        self._job: _Job | None = None
        self._quiet_since = clock()
        self._begun = self._preempted = self._failed = 0
        self._last_error: str | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kvalet-background", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Drops what is being read and ends the thread."""
        with self._wake:
            self._closing = True
            self._drop()
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    # what happens in the foreground

    def began(self, engine: int, request: Request) -> int | None:
        """A request goes to `engine`: what is read there, on the same device, or for the same conversation is dropped. The engine
        that answered its conversation last is returned."""
        with self._wake:
            last = next_of(self._conversations, request, self._desk.grid)
            if last is not None:
                self._conversations.remove(last)
                self._open[request.id] = last
            job = self._job
            if job is not None and (self._desk.shared or job.engine == engine or job.conversation is last):
                self._drop()
            return last.home if last is not None else None

    def ended(self, engine: int, request: Request, event: Done | Failed) -> None:
        """A request has ended on `engine`."""
        with self._wake:
            self._quiet_since = self._clock()
            self._news.append(lambda: self._enter(engine, request, event))
            self._wake.notify_all()

    def expect(self, request: str, kind: Kind, foresee: Foresee) -> None:
        """What may follow the request of that id, which has ended."""
        with self._wake:
            self._news.append(lambda: self._expect(request, kind, foresee))
            self._wake.notify_all()

    def stats(self) -> BackgroundStats:
        with self._wake:
            job = self._job
            counts = (self._begun, self._preempted, self._failed, self._last_error)
            return BackgroundStats(self._ledger.fate(), *counts, job.read.kind if job else None, len(self._conversations))

    # on its own thread

    def _run(self) -> None:
        while (chosen := self._choose()) is not None:
            conversation, engine = chosen
            try:
                self._prepare(conversation, engine)
            except Exception as error:  # a template, a store or an engine may fail: the foreground must not notice
                _log.exception("reading in the background failed; serving goes on without it")
                self._fail(conversation, error)

    def _choose(self) -> tuple[Conversation, int] | None:
        """Waits for a conversation with something to read and an engine to read it; None once it is closing."""
        with self._wake:
            while not self._closing:
                while self._news:
                    self._news.popleft()()
                waiting = [one for one in self._conversations if not one.exhausted]
                rest = self._quiet_since + self._patience - self._clock()
                free = self._desk.free(waiting[0].home) if waiting and rest <= 0 else None
                if free is not None:
                    return waiting[0], free
                self._wake.wait(rest if waiting and rest > 0 else None)
        return None

    def _prepare(self, conversation: Conversation, engine: int) -> None:
        read = self._plan(conversation)
        if read is None:
            conversation.exhausted = True
            return
        job = _Job(f"background-{next(self._jobs)}", engine, conversation, read, self._desk.read_tokens(engine))
        request = Request(job.id, read.prompt.tokens, GREEDY, 0, anchors=read.prompt.anchors, exact=read.exact, background=True)
        with self._wake:
            if self._closing or conversation not in self._conversations or self._desk.free(conversation.home) != engine:
                return
            conversation.tried.add((read.kind, read.end))
            self._desk.give(engine, request, lambda event: self._over(job, event))
            self._job, self._begun = job, self._begun + 1
            while job.outcome is None:
                self._wake.wait()
            self._job = None
            self._account(job, job.outcome)

    def _plan(self, conversation: Conversation) -> Read | None:
        budget = self._budget.left(conversation.spent, self._desk.token_ms())
        aheads = [self._desk.ahead(kind, prompt) for kind, prompt in conversation.prompts()]
        found = reads(aheads, conversation.request.exact, self._desk.grid, budget)
        return next((read for read in found if (read.kind, read.end) not in conversation.tried), None)

    def _over(self, job: _Job, event: Event) -> None:
        if isinstance(event, Done | Failed):
            with self._wake:
                job.outcome = event
                self._wake.notify_all()

    def _account(self, job: _Job, event: Event) -> None:
        """What was read, also by a read that was dropped: its whole grid steps are parked."""
        conversation, read, grid = job.conversation, job.read, self._desk.grid
        if isinstance(event, Done):
            start, end = event.resume.position, read.end
        else:
            start = read.start
            end = min(read.end, start + (self._desk.read_tokens(job.engine) - job.before) // grid * grid)
        start = start // grid * grid
        ids = self._desk.ids(read.prompt.tokens)
        conversation.spent += end - start
        conversation.reader = job.engine
        self._ledger.note(read.kind, conversation.number, ids, start, end)
        if conversation.resumed is not None:  # its next turn has ended already
            self._settle(conversation, *conversation.resumed)
        if isinstance(event, Failed):
            self._stopped(job, event.error)

    def _stopped(self, job: _Job, error: Exception) -> None:
        if isinstance(error, Cancelled):
            self._preempted += 1
            job.conversation.tried.discard((job.read.kind, job.read.end))
        else:
            self._desk.struck(job.engine)
            self._fail(job.conversation, error)

    def _fail(self, conversation: Conversation, error: Exception) -> None:
        """Nothing more is tried for this turn, so that what is broken is not asked again at once."""
        with self._wake:
            conversation.exhausted = True
            self._failed += 1
            self._last_error = repr(error)

    def _enter(self, engine: int, request: Request, event: Done | Failed) -> None:
        last = self._open.pop(request.id, None)
        if isinstance(event, Failed):
            if last is not None:
                self._conversations.appendleft(last)
            return
        if last is not None:
            position = event.resume.position
            by_checkpoint = position % self._desk.grid == 0 or last.reader == engine
            last.resumed = (self._desk.ids(request.tokens), position if by_checkpoint else 0)
            self._settle(last, *last.resumed)
        number = last.number if last is not None else next(self._numbers)
        entered = Conversation(number, request, resident(request, event), engine, self._clock())
        self._conversations.appendleft(entered)
        while len(self._conversations) > MOST_CONVERSATIONS:
            self._ledger.gone(self._conversations.pop().number, Kind)

    def _settle(self, conversation: Conversation, ids: Sequence[bytes], position: int) -> None:
        """Its next turn went on from `position`: what was read and lies elsewhere was wasted, a later cut's view excepted."""
        self._ledger.served(ids, position)
        self._ledger.gone(conversation.number, (Kind.ANTICIPATE, Kind.EXACT))

    def _expect(self, request: str, kind: Kind, foresee: Foresee) -> None:
        for conversation in self._conversations:
            if conversation.request.id == request:
                conversation.ahead.append((kind, foresee))
                conversation.exhausted = False

    def _drop(self) -> None:
        if self._job is not None and not self._job.unwanted:
            self._job.unwanted = True
            self._desk.take_back(self._job.engine, self._job.id)
