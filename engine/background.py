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
from engine.conversation import Conversation, Foresee, next_of
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
    """`jobs` reads were begun, `preempted` of them were dropped for somebody who waited, `failed` went wrong; `busy`: there is
    something left to read, now or when an engine is free."""

    fate: Fate
    jobs: int
    preempted: int
    failed: int
    last_error: str | None
    busy: bool
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
    conversation: Conversation | None = None  # None: what somebody else does (lend)
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
            if job is not None and (self._desk.shared or job.engine == engine or job.conversation in (last, None)):
                self._drop()
            return last.home if last is not None else None

    def ended(self, engine: int, request: Request, event: Done | Failed) -> None:
        """A request has ended on `engine`."""
        with self._wake:
            self._quiet_since = self._clock()
            self._news.append(lambda: self._enter(engine, request, event))
            self._wake.notify_all()

    def expect(self, request: str, ahead: Sequence[Foresee]) -> None:
        """What may follow the request of that id, which has ended; the most likely first."""
        with self._wake:
            self._news.append(lambda: self._expect(request, ahead))
            self._wake.notify_all()

    def lend(self, request: Request, sink: Callable[[Event], None]) -> None:
        """Lets somebody else use the engine that is free, under the same conditions. Raises Cancelled where none is."""
        with self._wake:
            at = self._desk.free(-1) if self._job is None and not self._closing else None
            if at is None:
                raise Cancelled("no engine is idle")
            job = self._job = _Job(request.id, at)
            try:
                self._desk.give(at, request, lambda event: self._returned(job, event, sink))
            except Exception:
                self._job = None
                raise

    def cancel(self, id: str) -> None:
        """Ends a lent request."""
        with self._wake:
            if self._job is not None and self._job.id == id:
                self._drop()

    def stats(self) -> BackgroundStats:
        with self._wake:
            counts = (self._begun, self._preempted, self._failed, self._last_error)
            waiting = sum(not one.exhausted for one in self._conversations)
            return BackgroundStats(
                self._ledger.fate(), *counts, bool(self._job or self._news or waiting), len(self._conversations)
            )

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
                free = self._desk.free(waiting[0].home) if waiting and rest <= 0 and self._job is None else None
                if free is not None:
                    return waiting[0], free
                self._wake.wait(rest if waiting and rest > 0 else None)
        return None

    def _prepare(self, conversation: Conversation, engine: int) -> None:
        read = self._plan(conversation)
        if read is None:
            conversation.exhausted = True
            return
        job = _Job(f"background-{next(self._jobs)}", engine, conversation)
        before = self._desk.read_tokens(engine)
        request = Request(job.id, read.prompt.tokens, GREEDY, 0, anchors=read.prompt.anchors, exact=read.exact, background=True)
        with self._wake:
            if not self._may_begin(conversation, engine):
                return
            conversation.tried.add((read.kind, read.end))
            self._desk.give(engine, request, lambda event: self._returned(job, event))
            self._job, self._begun = job, self._begun + 1
            while job.outcome is None:
                self._wake.wait()
            self._account(conversation, engine, read, job.outcome, self._desk.read_tokens(engine) - before)

    def _may_begin(self, conversation: Conversation, engine: int) -> bool:
        """Whether nothing has happened while it was planned."""
        wanted = not self._closing and self._job is None and conversation in self._conversations
        return wanted and self._desk.free(conversation.home) == engine

    def _plan(self, conversation: Conversation) -> Read | None:
        """What is to be read next. A prompt is foreseen when everything before it has been read: it may take long to tell."""
        while (read := self._missing(conversation)) is None:
            if not conversation.foresee():
                return None
        return read

    def _missing(self, conversation: Conversation) -> Read | None:
        budget = self._budget.left(conversation.spent, self._desk.token_ms())
        aheads = [self._desk.ahead(kind, prompt) for kind, prompt in conversation.prompts.items()]
        found = reads(aheads, conversation.request.exact, self._desk.grid, budget)
        return next((read for read in found if (read.kind, read.end) not in conversation.tried), None)

    def _returned(self, job: _Job, event: Event, sink: Callable[[Event], None] | None = None) -> None:
        if isinstance(event, Done | Failed):
            with self._wake:
                job.outcome = event
                self._job = None
                self._quiet_since = self._clock() if job.conversation is None else self._quiet_since
                self._wake.notify_all()
        if sink is not None:
            sink(event)

    def _account(self, conversation: Conversation, engine: int, read: Read, outcome: Event, tokens: int) -> None:
        """What was read, also by a read that was dropped after `tokens`: its whole grid steps are parked."""
        start, end, grid = read.start, read.end, self._desk.grid
        if isinstance(outcome, Done):
            start = outcome.resume.position // grid * grid
        else:
            end = min(end, start + tokens // grid * grid)
        conversation.spent += end - start
        conversation.reader = engine
        self._ledger.note(read.kind, conversation.number, self._desk.ids(read.prompt.tokens), start, end)
        if conversation.resumed is not None:  # its next turn has ended already
            self._settle(conversation, *conversation.resumed)
        if isinstance(outcome, Failed) and isinstance(outcome.error, Cancelled):
            self._preempted += 1
            conversation.tried.discard((read.kind, read.end))
        elif isinstance(outcome, Failed):
            self._desk.struck(engine)
            self._fail(conversation, outcome.error)

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
        position, reader = event.resume.position, last.reader if last is not None else None
        by_checkpoint = position % self._desk.grid == 0 or reader == engine
        resumed = (self._desk.ids(request.tokens), position if by_checkpoint else 0)
        self._ledger.served(*resumed)
        if last is not None:
            last.resumed = resumed
            self._settle(last, *resumed)
        number = last.number if last is not None else next(self._numbers)
        self._conversations.appendleft(Conversation(number, request, engine))
        while len(self._conversations) > MOST_CONVERSATIONS:
            self._ledger.gone(self._conversations.pop().number, Kind)

    def _settle(self, conversation: Conversation, ids: Sequence[bytes], position: int) -> None:
        """Its next turn went on from `position`: what was read and lies elsewhere was wasted, a later cut's view excepted."""
        self._ledger.served(ids, position)
        self._ledger.gone(conversation.number, (Kind.ANTICIPATE, Kind.EXACT))

    def _expect(self, request: str, ahead: Sequence[Foresee]) -> None:
        for conversation in self._conversations:
            if conversation.request.id == request:
                conversation.ahead.extend(ahead)
                conversation.exhausted = False

    def _drop(self) -> None:
        if self._job is not None and not self._job.unwanted:
            self._job.unwanted = True
            self._desk.take_back(self._job.engine, self._job.id)
