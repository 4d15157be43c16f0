"""A failure ends what it touched and nothing else."""

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.context import Run, Sampler, StateKind
from engine.engine import Engine
from engine.errors import BadRequest, Cancelled, ContextTooLong, DecodeFailed, EngineStopped, QueueFull
from engine.fake import FakeContext, FakeSamplers, FakeTokenizer
from engine.request import Done, Event, Failed, Finish, Progress, Request, Source, Token
from engine.sampling import SamplingParams
from kvcache.config import CacheConfig
from kvcache.entry import Block, CheckpointRef, Match
from kvcache.errors import DamagedEntry, EntryGone
from kvcache.store import Store
from tests.engine.serving import GREEDY, MIB, ROOT, Desk, text

KINDS = list(StateKind)


def test_a_batch_that_fails_once_is_read_again_and_nobody_notices() -> None:
    expected = Desk().ask(text(1000), 20).tokens
    desk = Desk()
    served = desk.submit(text(1000), 20)
    for _ in range(6):
        desk.core.step()
    desk.context.refuse["decode"] = 1
    desk.run()
    assert served.tokens == expected
    assert desk.core.counters.decodes_failed == 1


def test_a_batch_that_keeps_failing_ends_its_turns_and_the_next_request_is_served() -> None:
    desk = Desk(slots=2)
    both = [desk.submit(text(100, seed), 20) for seed in range(2)]
    for _ in range(5):
        desk.core.step()
    desk.context.refuse["decode"] = 2
    desk.run()
    assert all(isinstance(one.error, DecodeFailed) for one in both)
    assert desk.ask(text(100), 5).done.completion_tokens == 5


def test_turns_outside_a_failed_batch_go_on() -> None:
    desk = Desk(slots=2)
    first = desk.submit(text(100), 30)
    while not first.tokens:
        desk.core.step()
    second = desk.submit(text(100, 2), 5)
    desk.core.step()
    expected = Desk().ask(text(100), 30).tokens
    while desk.core.running[-1].slot is None or desk.core.slots[1].length < 64:
        desk.core.step()
    desk.context.refuse["decode"] = 1
    desk.run()
    assert (first.tokens, len(second.tokens)) == (expected, 5)


@pytest.mark.parametrize("method", ["load_block", "load_checkpoint"])
@pytest.mark.parametrize("times", [1, 3, 100])
def test_state_that_llama_refuses_is_read_again(method: str, times: int) -> None:
    desk, prompt = Desk(), text(1000)
    first = desk.ask(prompt)
    desk.ask(text(300, 2))
    desk.context.refuse[method] = times
    again = desk.ask(prompt)
    assert again.tokens == first.tokens


def test_a_window_cut_that_is_refused_falls_back_to_a_checkpoint() -> None:
    desk, prompt = Desk(StateKind.WINDOW), text(1000)
    desk.ask(prompt)
    changed = [*prompt[:500], *text(100, 2)]
    again = desk.ask(changed)
    assert again.done.resume.position == 256
    assert again.tokens == Desk(StateKind.WINDOW).ask(changed).tokens


class Losing(Store):
    """Drops or damages what it had promised, at the moment it is asked for."""

    def __init__(self, error: type[Exception], after: int) -> None:
        super().__init__(CacheConfig(ram_bytes=64 * MIB), ROOT, needs_checkpoint=True)
        self.error: Exception = EntryGone("x") if error is EntryGone else DamagedEntry("x", "flipped")
        self.after, self.armed = after, False

    def restore(self, match: Match, position: int, from_: int = 0) -> Iterator[Block]:
        for number, block in enumerate(super().restore(match, position, from_)):
            if self.armed and number == self.after:
                self.armed = False
                raise self.error
            yield block

    def load_checkpoint(self, ref: CheckpointRef):  # type: ignore[no-untyped-def]
        if self.armed and self.after < 0:
            raise self.error
        return super().load_checkpoint(ref)


@pytest.mark.parametrize("error", [EntryGone, DamagedEntry])
@pytest.mark.parametrize("after", [-1, 0, 5])
def test_an_entry_that_is_lost_or_damaged_costs_reading_and_no_more(error: type[Exception], after: int) -> None:
    store = Losing(error, after)
    desk, prompt = Desk(store=store), text(1000)
    first = desk.ask(prompt)
    desk.ask(text(300, 2))
    store.armed = True
    again = desk.ask(prompt)
    assert again.tokens == first.tokens
    assert again.done.resume.source is (Source.NONE if after < 0 else Source.RAM)


class Picky(FakeSamplers):
    """Samplers of which one cannot be made, and one fails at its third token."""

    def make(self, params: SamplingParams, prompt: Sequence[int]) -> Sampler:
        sampler = super().make(params, prompt)
        if params.seed == 13:
            raise BadRequest("no such grammar", "grammar")
        return Failing(sampler) if params.seed == 14 else sampler


class Failing:
    def __init__(self, inner: Sampler) -> None:
        self._inner, self._left = inner, 2

    def sample(self, run: int) -> int:
        self._left -= 1
        if self._left < 0:
            raise ValueError("the grammar allows no token here")
        return self._inner.sample(run)

    def sample_from(self, logits: NDArray[np.float32]) -> int:
        return self._inner.sample_from(logits)

    def close(self) -> None:
        self._inner.close()


@pytest.mark.parametrize(("seed", "error"), [(13, BadRequest), (14, ValueError)])
def test_a_sampler_that_fails_ends_its_own_request(seed: int, error: type[Exception]) -> None:
    desk = Desk(slots=2)
    desk.core._samplers = Picky(desk.context)
    other = desk.submit(text(100), 20)
    bad = desk.submit(text(100, 2), 20, sampling=SamplingParams(temperature=0.0, seed=seed))
    desk.run()
    assert isinstance(bad.error, error)
    assert other.tokens == Desk().ask(text(100), 20).tokens
    assert desk.ask([*text(100, 2), 5], 5).done.completion_tokens == 5


def test_parking_that_fails_does_not_fail_the_request() -> None:
    desk = Desk()

    def broken(slot: int) -> bytes:
        raise MemoryError

    desk.context.save_checkpoint = broken  # type: ignore[method-assign]
    assert desk.ask(text(1000), 5).done.completion_tokens == 5
    assert desk.core.parker.failures > 0


def test_a_sink_that_raises_cancels_its_request_alone() -> None:
    desk = Desk(slots=2)
    served = desk.submit(text(100), 20)

    def broken(event: Event) -> None:
        raise RuntimeError("the client is gone")

    desk.core.add(Request("broken", tuple(text(100, 2)), GREEDY, 500, ignore_eos=True), broken)
    desk.run()
    assert len(served.tokens) == 20
    assert desk.context.length(1) < 150


def test_a_cancelled_request_stops_at_once_wherever_it_is() -> None:
    desk = Desk()
    running, waiting = desk.submit(text(2000), 20), desk.submit(text(100, 2), 20)
    desk.core.step()
    desk.core.cancel("r1")
    desk.core.cancel("r0")
    desk.core.cancel("never")
    assert isinstance(running.error, Cancelled)
    assert isinstance(waiting.error, Cancelled)
    assert not desk.core.step()


def test_a_request_cancelled_while_it_is_restored_leaves_its_state_parked() -> None:
    desk, prompt = Desk(config=EngineConfig(restore_slice=-1.0)), text(2000)
    desk.ask(prompt)
    desk.ask(text(100, 2))
    desk.submit(prompt)
    for _ in range(3):
        desk.core.step()
    desk.core.cancel("r2")
    assert desk.context.length(0) == 0
    assert desk.ask(prompt).done.resume.source is Source.RAM


def test_generation_ends_at_the_context_and_never_beyond() -> None:
    desk = Desk(ctx=256)
    done = desk.ask(text(200), -1).done
    assert (done.finish, done.completion_tokens) == (Finish.LENGTH, 56)


def test_stop_strings_and_end_tokens_end_a_turn() -> None:
    word = [*b"yes. no"]
    script = lambda tokens: word[len(tokens) - 100] if len(tokens) < 107 else 258  # noqa: E731
    desk = Desk(script=script)
    served = desk.ask(text(100), 50, stop=(". n",))
    assert (served.done.finish, served.done.stop, served.done.completion_tokens) == (Finish.STOP, ". n", 6)
    assert b"".join(e.text for e in served.events if isinstance(e, Token)) + served.done.text == b"yes"
    ended = desk.ask(text(100), 50, ignore_eos=False)
    assert (ended.done.finish, ended.done.stop, ended.done.completion_tokens) == (Finish.STOP, None, 8)
    assert bytes(ended.done.generated) == b"yes. no"


def test_a_long_prefill_tells_how_far_it_is() -> None:
    desk = Desk()
    served = desk.ask(text(3000))
    positions = [event.position for event in served.events if isinstance(event, Progress)]
    assert positions == sorted(set(positions))
    assert positions[0] < 1000


def test_running_turns_get_a_token_between_any_two_batches_of_a_long_prefill() -> None:
    desk = Desk(slots=2)
    first = desk.submit(text(100), 1000)
    while not first.tokens:
        desk.core.step()
    desk.submit(text(4000, 2), 5)
    while len(desk.core.running) < 2 or desk.core.slots[1].length < 3000:
        desk.core.step()
    batches = [[(run.slot, len(run.tokens)) for run in batch] for batch in desk.context.batches[-40:]]
    assert all(any(slot == 0 for slot, _ in a + b) for a, b in pairwise(batches))
    assert max(length for batch in batches for _, length in batch) <= 128


def test_a_long_prompt_is_not_kept_out_by_short_ones_while_others_decode() -> None:
    desk = Desk(slots=3)
    desk.submit(text(100), 4000)
    long = desk.submit(text(6000, 2), 5)
    for seed in range(10, 80):
        desk.submit(text(500, seed), 1)
    while not long.tokens:
        desk.core.step()
    assert len(desk.core.waiting) > 5


# the thread


def engine(context: FakeContext, ram: int = 64 * MIB, **config: object) -> Engine:
    store = Store(CacheConfig(ram_bytes=ram), ROOT, needs_checkpoint=True)
    return Engine(context, store, EngineConfig(**config), FakeTokenizer(), FakeSamplers(context))  # type: ignore[arg-type]


class Waiting:
    """A sink that can be waited for."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended = threading.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Done | Failed):
            self.ended.set()

    def last(self) -> Event:
        assert self.ended.wait(20)
        return self.events[-1]


def request(id: str, length: int = 200, most: int = 10, seed: int = 1) -> Request:
    return Request(id, tuple(text(length, seed)), GREEDY, most, ignore_eos=True)


def test_the_thread_serves_requests_from_many_threads() -> None:
    served = engine(FakeContext(n_slots=2))
    served.start()
    sinks = [Waiting() for _ in range(20)]
    threads = [threading.Thread(target=served.submit, args=(request(f"r{n}", seed=n % 5), sink)) for n, sink in enumerate(sinks)]
    for thread in threads:
        thread.start()
    assert all(isinstance(sink.last(), Done) for sink in sinks)
    served.close()
    stats = served.stats()
    assert (stats.counters.done, stats.counters.requests, stats.alive, stats.waiting) == (20, 20, False, 0)


def test_what_cannot_be_served_is_refused_before_it_is_queued() -> None:
    served = engine(FakeContext(n_ctx=256), max_queue=1)
    with pytest.raises(EngineStopped):
        served.submit(request("early"), Waiting())
    served.start()
    with pytest.raises(ContextTooLong):
        served.submit(request("long", 256), Waiting())
    with pytest.raises(BadRequest):
        served.submit(Request("bad", (1,), SamplingParams(grammar="invalid"), 5), Waiting())
    with pytest.raises(BadRequest):
        served.submit(Request("bad", (1,), GREEDY, 5, stop=("",)), Waiting())
    served.close()
    with pytest.raises(EngineStopped):
        served.submit(request("late"), Waiting())


def test_a_full_queue_refuses_and_goes_on() -> None:
    context = FakeContext(seconds_per_token=0.001)
    served = engine(context, max_queue=2)
    served.start()
    sinks, refused = [Waiting() for _ in range(8)], 0
    for number, sink in enumerate(sinks):
        try:
            served.submit(request(f"r{number}", seed=number), sink)
        except QueueFull:
            refused += 1
            sink.ended.set()
    assert refused >= 5 - 2
    assert all(sink.ended.wait(20) for sink in sinks)
    served.close(drain_seconds=5)
    assert served.stats().counters.refused == refused


def test_closing_lets_running_requests_finish_and_fails_the_rest_and_parks_both() -> None:
    context = FakeContext(seconds_per_token=0.0005)
    served = engine(context)
    served.start()
    first, second = Waiting(), Waiting()
    served.submit(request("a", 400, 5), first)
    served.submit(request("b", 400, 100_000, seed=2), second)
    assert isinstance(first.last(), Done)
    while not second.events:
        threading.Event().wait(0.01)
    served.close(drain_seconds=0.05)
    last = second.last()
    assert isinstance(last, Failed)
    assert isinstance(last.error, Cancelled)
    match = served._core._restorer._store.match(text(400, 2))
    assert match.checkpoints[-1].position == 384


def test_a_fault_of_ours_ends_what_runs_and_the_engine_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    context = FakeContext(seconds_per_token=0.0005)
    served = engine(context)
    served.start()
    sink = Waiting()
    decode, armed = context.decode, [True]

    def broken(runs: Sequence[Run]) -> None:
        if armed[0]:
            armed[0] = False
            raise ZeroDivisionError
        decode(runs)

    monkeypatch.setattr(context, "decode", broken)
    served.submit(request("a"), sink)
    assert isinstance(sink.last(), Failed)
    again = Waiting()
    served.submit(request("b"), again)
    assert isinstance(again.last(), Done)
    assert served.stats().alive
    served.close()


def test_a_round_that_raises_is_seen_in_the_stats(monkeypatch: pytest.MonkeyPatch) -> None:
    served = engine(FakeContext())
    monkeypatch.setattr("engine.engine._BACKOFF", 0.0)
    step, armed = served._core.step, [True]

    def broken() -> bool:
        if armed[0] and served._core.waiting:
            armed[0] = False
            raise ZeroDivisionError("in the planner")
        return step()

    monkeypatch.setattr(served._core, "step", broken)
    served.start()
    sink = Waiting()
    served.submit(request("a"), sink)
    assert isinstance(sink.last(), Done)
    assert served.stats().last_error == "ZeroDivisionError('in the planner')"
    served.close()


def test_a_thread_that_dies_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    served = engine(FakeContext())

    def broken() -> bool:
        if served._core.waiting:
            raise SystemExit
        return False

    monkeypatch.setattr(served._core, "step", broken)
    served.start()
    sink = Waiting()
    served.submit(request("a"), sink)
    assert isinstance(sink.last(), Failed)
    served.close()
    stats = served.stats()
    assert (stats.alive, stats.last_error) == (False, "the engine stopped: SystemExit()")


def test_snapshots_tell_what_slots_hold_and_do() -> None:
    served = engine(FakeContext(n_slots=2))
    served.start()
    sink = Waiting()
    served.submit(request("a"), sink)
    done = sink.last()
    assert isinstance(done, Done)
    served.close()
    first = served.slots()[0]
    assert (first.phase, first.tokens, first.request) == ("idle", 209, None)
    assert served.resident()[0] == (*text(200), *done.generated[:-1])
    assert served.resident()[1] == ()
