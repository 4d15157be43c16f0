"""The engine without its thread: step() = admit -> restore -> decode -> sample -> emit -> park. One thread calls it.

A request waits, is placed on a slot where the resume choice wants it, has state restored, reads the rest of its prompt in
canonical batches, then decodes token by token. Every failure ends the turns it touched and no other.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.context import Context, Run, Samplers, StateKind, Tokenizer
from engine.costs import CostMeter
from engine.errors import Cancelled, DecodeFailed, EngineError, StateRefused
from engine.logprobs import top_logprobs
from engine.parking import Parker
from engine.placing import Placer
from engine.request import Done, Event, Failed, Finish, Progress, Request, Source, Token
from engine.restoring import Restorer
from engine.scheduler import Limits, Piece, admission_order, beside_limit, plan
from engine.slots import Slot, SlotTable
from engine.stats import Counters, SlotView
from engine.stream import StopMatcher
from engine.turn import Clocks, Phase, Sink, Turn, view
from kvcache.entry import Tier
from kvcache.errors import CacheError
from kvcache.store import Store

_log = logging.getLogger(__name__)
_FAIR_EVERY = 4  # batches that read prompts, of which one serves the prompt that has waited the longest


class Core:
    """Waiting and running turns of one context. Every method but `views` belongs to one thread."""

    def __init__(
        self,
        context: Context,
        store: Store,
        config: EngineConfig,
        tokenizer: Tokenizer,
        samplers: Samplers,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.slots = SlotTable(context.n_slots, config.grid, store.root)
        self.meter = CostMeter()
        self.counters = Counters()
        self.background = Counters()  # the same for requests that nobody waits for
        self.parker = Parker(context, store, self.slots, reuse=config.reuse, clock=clock)
        self._restorer = Restorer(context, store, self.slots, self.parker, clock)
        self.placer = Placer(context, store, self.slots, self._restorer, config, self.meter)
        self.waiting: list[Turn] = []
        self.running: list[Turn] = []
        self._context, self._store, self._config, self._clock = context, store, config, clock
        self._tokenizer, self._samplers = tokenizer, samplers
        self._eog = tokenizer.eog
        self._mixed = context.kind in (StateKind.ATTENTION, StateKind.WINDOW)
        self._prefilled = False  # whether the last batch read prompts
        self._prefills = 0  # batches that read prompts
        self._ended: list[Slot] = []

    @property
    def urgent(self) -> bool:
        """Whether somebody waits for one of the requests here."""
        return any(not turn.request.background for turn in (*self.waiting, *self.running))

    def add(self, request: Request, sink: Sink) -> None:
        """Queues a request; its events go to `sink`, the last one is Done or Failed."""
        limit = self._context.n_ctx - len(request.tokens)
        limit = limit if request.max_tokens < 0 else min(limit, request.max_tokens)
        matcher = StopMatcher(request.stop)
        self._counted(request).requests += 1
        self.waiting.append(Turn(request, sink, matcher, Clocks(self._clock()), list(request.tokens), limit=limit))

    def cancel(self, id: str) -> None:
        """Ends a request that waits or runs; what it has read stays. An id that is not there has ended before."""
        for turn in [turn for turn in (*self.waiting, *self.running) if turn.request.id == id]:
            self._counted(turn.request).cancelled += 1
            self._fail(turn, Cancelled("the request was cancelled"))
        self._settle()

    def step(self) -> bool:
        """One round; False when there was nothing to do."""
        for turn in [turn for turn in self.running if turn.cancelled]:
            self._fail(turn, Cancelled("its events are no longer taken"))
        self._admit()
        self._store.hold_writes(self, any(not turn.generated and not turn.request.background for turn in self.running))
        restored = self._restore()
        pieces = self._plan()
        if pieces:
            self._decode(pieces)
        self._settle()
        return restored or bool(pieces)

    def fail_all(self, error: Exception) -> None:
        """Something is wrong that no turn is known to have caused: every running turn ends, every slot is cleared."""
        for turn in list(self.running):
            self._fail(turn, error)
        self._ended.clear()
        for slot in self.slots:
            self._clear(slot)

    def end_all(self, error: Exception) -> None:
        """Every request still here gets its last event; slots keep what they hold."""
        for turn in [*self.running, *self.waiting]:
            self._fail(turn, error)

    def park_all(self) -> None:
        """Gives the store what every slot holds, before the context goes."""
        self.end_all(Cancelled("the server is stopping"))
        self._store.hold_writes(self, False)
        self._ended.clear()
        for slot in self.slots:
            self.parker.secure(slot, kept=slot.length)

    def views(self) -> tuple[SlotView, ...]:
        """What every slot does; from any thread, so it may be a moment old."""
        turns = {turn.slot.index: turn for turn in list(self.running) if turn.slot is not None}
        return tuple(view(slot, turns.get(slot.index), self._clock()) for slot in self.slots)

    # admission

    def _admit(self) -> None:
        if not self.waiting or len(self.running) == len(self.slots):
            return
        order = admission_order([t.request.session for t in self.waiting], [t.request.session for t in self.running])
        for turn in [self.waiting[i] for i in order]:
            if len(self.running) == len(self.slots):
                return
            self._start(turn)

    def _start(self, turn: Turn) -> None:
        """Places a waiting turn, or leaves it waiting for state that is on its way."""
        try:
            turn.sampler = turn.sampler or self._samplers.make(turn.request.sampling, turn.request.tokens)
            if not self.placer.place(turn, self.running):
                return
        except Exception as error:  # a sampler may refuse a grammar, a context a restore: this turn's failure alone
            self._fail(turn, error)
            return
        self.waiting.remove(turn)
        self.running.append(turn)
        turn.clocks.placed = self._clock()
        self._count_resume(turn)

    def _count_resume(self, turn: Turn) -> None:
        counters, resume = self._counted(turn.request), turn.resume
        if resume is None:
            return
        counters.prompt_tokens += turn.prompt
        counters.restored_tokens += resume.restored
        counters.reread_tokens += resume.reread
        counters.diverged += resume.diverged
        live = resume.position - resume.restored
        counters.cached_live += live
        counters.cached_disk += resume.restored if resume.source is Source.DISK else 0
        counters.cached_ram += resume.restored if resume.source is Source.RAM else 0

    # restoring

    def _restore(self) -> bool:
        restoring = [turn for turn in self.running if turn.phase is Phase.RESTORING]
        for turn in restoring:
            self._restore_one(turn)
        return bool(restoring)

    def _restore_one(self, turn: Turn) -> None:
        restoration, slot = _held(turn.restoration), _held(turn.slot)
        try:
            if not self._restorer.advance(restoration, self._config.restore_slice):
                return
            self.meter.loaded(restoration.tier or Tier.RAM, restoration.nbytes, 1e3 * restoration.seconds)
            turn.clocks.restoring += restoration.seconds
            self._counted(turn.request).restore_ms += 1e3 * restoration.seconds
            turn.restoration, turn.phase = None, Phase.READING
            if slot.length == turn.end:
                self._answer(turn, None)
        except (CacheError, StateRefused) as error:
            _log.warning("restoring failed, looking for another resume point: %s", error)
            self.counters.restores_failed += 1
            self._clear(slot)
            self._place_again(turn)

    def _place_again(self, turn: Turn) -> None:
        """Its slot had to be cleared: the turn starts over from whatever is held elsewhere."""
        turn.resume = None if turn.generated == 0 else turn.resume
        try:
            self.placer.place(turn, ())
        except Exception as error:
            self._fail(turn, error)

    # decoding

    def _plan(self) -> tuple[Piece, ...]:
        works = [turn.work() for turn in self.running if turn.phase is not Phase.RESTORING]
        if not works:
            return ()
        costs, batch, grid = self.meter.costs, self._context.n_batch, self.slots.grid
        beside = beside_limit(costs.prefill, costs.decode, 1e3 * self._config.decode_gap, batch, grid)
        if not self.urgent:
            batch = beside_limit(costs.prefill, 0.0, 1e3 * self._config.background_gap, batch, grid)
        return plan(works, Limits(batch, beside, grid, self._mixed), not self._prefilled, self._prefills % _FAIR_EVERY == 0)

    def _decode(self, pieces: Sequence[Piece]) -> None:
        by_slot = {_held(turn.slot).index: turn for turn in self.running}
        turns = [by_slot[piece.slot] for piece in pieces]
        runs = [_run(turn, piece) for turn, piece in zip(turns, pieces, strict=True)]
        started = self._clock()
        try:
            self._context.decode(runs)
        except Exception as error:
            self._decode_failed(turns, error)
            return
        read = sum(self._note(turn, run) for turn, run in zip(turns, runs, strict=True))
        for number, (turn, run) in enumerate(zip(turns, runs, strict=True)):
            self._after(turn, run, number)
        alone = read == sum(len(run.tokens) for run in runs)
        self._account(self._counted(turns[0].request), read, alone, 1e3 * (self._clock() - started))
        for number, (turn, run) in enumerate(zip(turns, runs, strict=True)):
            self._keep(turn, run, number)

    def _note(self, turn: Turn, run: Run) -> int:
        """The run is in the slot now; returns how many tokens of it were prompt."""
        reading = turn.phase is Phase.READING
        self.slots.append(_held(turn.slot), run.tokens, prefill=reading)
        if not reading:
            return 0
        turn.served = self._prefills + 1
        return len(run.tokens)

    def _account(self, counters: Counters, read: int, alone: bool, ms: float) -> None:
        """A batch of `read` prompt tokens, `alone` or beside decodes, took `ms` until its draws were made (only they wait for a
        GPU to finish)."""
        self._prefilled = read > 0
        self._prefills += read > 0
        counters.read_tokens += read
        if read:
            counters.read_ms += ms
        else:
            counters.decode_ms += ms
            self.meter.decoded(ms)
        if read and alone:
            self.meter.read(read, ms)

    def _decode_failed(self, turns: Sequence[Turn], error: Exception) -> None:
        """Nothing is known of the slots in the batch. Idle slots give up their cells, in case those were what lacked; each turn
        gets one more try from what is held elsewhere, since only one of them need be the cause."""
        _log.warning("a batch of %d turns could not be decoded: %s", len(turns), error)
        self.counters.decodes_failed += 1
        for slot in self.slots:
            if not slot.busy:
                self.parker.secure(slot)
                self._clear(slot)
        for turn in turns:
            self._clear(_held(turn.slot))
        for turn in turns:
            if turn.retried or not isinstance(error, DecodeFailed):
                self._fail(turn, error)
            else:
                turn.retried = True
                self._place_again(turn)

    def _after(self, turn: Turn, run: Run, number: int) -> None:
        """Sampling, or the next piece of the prompt."""
        if run.start + len(run.tokens) < turn.end:
            self._progress(turn)
        else:
            self._answer(turn, number)

    def _answer(self, turn: Turn, run: int | None) -> None:
        """All there is of the turn has been read: the next token, from run `run` of the last decode, or with None from the logits
        that its slot has kept of this very prompt."""
        now = self._clock()
        if turn.phase is Phase.READING:
            turn.phase, turn.clocks.read = Phase.DECODING, turn.clocks.read or now
        if turn.generated >= turn.limit:
            self._finish(turn, Finish.LENGTH)
            return
        try:
            self._sample(turn, run)
        except Exception as error:  # a grammar may find no token, a piece may not exist: this turn's failure alone
            self._fail(turn, error)

    def _sample(self, turn: Turn, run: int | None) -> None:
        request, sampler = turn.request, _held(turn.sampler)
        token = sampler.sample_from(self._kept_logits(turn)) if run is None else sampler.sample(run)
        self._counted(request).generated_tokens += 1
        if token in self._eog and not request.ignore_eos:
            self._finish(turn, Finish.STOP, extra=1)
            return
        turn.sequence.append(token)
        text, stop = turn.matcher.feed(self._tokenizer.piece(token))
        if request.logprobs is None:
            self._emit(turn, Token(request.id, token, text))
        else:
            logits = self._kept_logits(turn) if run is None else self._context.logits(run)
            chosen, top = top_logprobs(logits, token, request.logprobs, self._tokenizer.piece)
            self._emit(turn, Token(request.id, token, text, chosen, top))
        if stop is not None:
            self._finish(turn, Finish.STOP, stop)
        elif turn.generated >= turn.limit:
            self._finish(turn, Finish.LENGTH)

    def _kept_logits(self, turn: Turn) -> NDArray[np.float32]:
        return _held(_held(turn.slot).ending).logits

    def _progress(self, turn: Turn) -> None:
        now = self._clock()
        if now - (turn.clocks.progress or turn.clocks.placed) >= self._config.progress_every:
            turn.clocks.progress = now
            self._emit(turn, Progress(turn.request.id, _held(turn.slot).length, turn.prompt))

    def _keep(self, turn: Turn, run: Run, number: int) -> None:
        """Saves the state a turn stands at where that is wanted; of a generation at least the newest grid multiple."""
        slot = _held(turn.slot)
        if slot.length == turn.prompt and run.want_logits:
            self.parker.keep_ending(slot, number, canonical=self.slots.is_canonical(slot, run.start))
        if slot.length == turn.tip:
            self.parker.keep_tip(slot)
        if slot.length % self.slots.grid or not slot.busy:
            return
        if turn.wants_checkpoint(slot.length):
            kind, pinned = turn.marks.get(slot.length, ("interval", False))
            self.parker.park(slot, kind=kind, pinned=pinned)
        elif turn.phase is Phase.DECODING:
            self.parker.roll(slot)

    # endings

    def _finish(self, turn: Turn, finish: Finish, stop: str | None = None, extra: int = 0) -> None:
        self._counted(turn.request).done += 1
        event = turn.done(finish, stop, extra, self._clock())
        self._end(turn, event)

    def _fail(self, turn: Turn, error: Exception) -> None:
        self._counted(turn.request).failed += not isinstance(error, Cancelled)
        if not isinstance(error, EngineError):
            _log.error("request %s failed", turn.request.id, exc_info=error)
        self._end(turn, Failed(turn.request.id, error))

    def _end(self, turn: Turn, event: Done | Failed) -> None:
        """The last event goes out before its state is parked, so that no client waits for that."""
        turn.phase = Phase.ENDED
        if turn in self.waiting:
            self.waiting.remove(turn)
        if turn in self.running:
            self.running.remove(turn)
        if turn.sampler is not None:
            turn.sampler.close()
        slot = turn.slot
        if slot is not None:
            slot.busy = False
            if slot.restoring:
                self._clear(slot)
            self._ended.append(slot)
            if turn.request.background:  # whoever sent it goes on from what is parked
                self.parker.settle(slot)
        self._emit(turn, event)

    def _settle(self) -> None:
        for slot in self._ended:
            if not slot.busy:
                self.parker.settle(slot)
        self._ended.clear()

    def _counted(self, request: Request) -> Counters:
        return self.background if request.background else self.counters

    def _clear(self, slot: Slot) -> None:
        self._context.clear(slot.index)
        self.slots.clear(slot)

    def _emit(self, turn: Turn, event: Event) -> None:
        try:
            turn.sink(event)
        except Exception:  # a client's fault must not reach the others; without a reader there is nothing left to do for it
            _log.exception("the sink of request %s raised; the request is cancelled", turn.request.id)
            turn.cancelled = True


def _run(turn: Turn, piece: Piece) -> Run:
    last = piece.end == turn.end
    return Run(piece.slot, piece.start, tuple(turn.sequence[piece.start : piece.end]), last and turn.generated < turn.limit)


Held = TypeVar("Held")


def _held(value: Held | None) -> Held:
    """What a turn in this phase always has."""
    if value is None:
        raise EngineError("a turn runs without what its phase needs")
    return value
