"""Two engines that look like one: what is read ahead, who answers, who gives way, and what a failure leaves."""

import threading
from collections.abc import Sequence

import pytest

from engine.config import Budget
from engine.context import Run, StateKind
from engine.errors import Cancelled
from engine.fake import FakeContext, FakeSamplers, FakeTokenizer
from engine.foresight import Kind
from engine.request import Done, Exact, Failed, Request, Source
from kvcache.facts import EntryKind
from tests.engine.pairing import Sink, duo, until
from tests.engine.serving import GREEDY, Desk, text

DEVICES = [{"shared": False}, {"shared": True}, {"shared": True, "one_thread": True}]
IDS = ["two devices", "one device", "one thread"]


def stripped(prompt: Sequence[int], seed: int) -> list[int]:
    """A next prompt that leaves the last one five tokens before its end, as a template does that takes thinking back."""
    return [*prompt[:-5], *text(400, seed)]


@pytest.mark.parametrize("devices", DEVICES, ids=IDS)
def test_a_next_prompt_that_was_foreseen_is_read_but_for_its_new_words(devices: dict[str, bool]) -> None:
    with duo(**devices) as pair:
        prompt = text(600)
        for turn in range(1, 5):
            done = pair.ask(prompt, 50)
            ahead = stripped(prompt, turn)
            pair.expect(done, ahead)
            prompt = [*ahead, *text(40, 100 + turn)]
            done = pair.ask(prompt, 50)
            assert done.timings.prompt_n <= 40 + 64
            prompt = [*prompt, *done.generated, *text(30, turn)]
        stats = pair.pair.pair_stats()
        fate = stats.background.fate
        assert fate.used[Kind.ANTICIPATE] > 4 * 256
        assert (stats.background.failed, stats.rescued) == (0, 0)


@pytest.mark.parametrize("devices", DEVICES, ids=IDS)
def test_strict_answers_are_those_of_a_single_engine(devices: dict[str, bool]) -> None:
    """The fake's logits depend on every batch split that is not canonical, as a real CPU's do."""
    with duo(**devices) as pair:
        prompt = text(500)
        for turn in range(1, 6):
            sink = pair.send(prompt, 20, Exact.STRICT)
            assert sink.tokens == cold(prompt) if sink.done else False
            ahead = stripped(prompt, turn)
            pair.expect(sink.done, ahead)
            prompt = [*ahead, *text(50, 100 + turn)]
        assert pair.pair.pair_stats().background.fate.used


def cold(prompt: Sequence[int]) -> list[int]:
    context = FakeContext(StateKind.HYBRID, exact=False)
    desk = Desk()
    desk.context = context
    desk.core = type(desk.core)(context, desk.store, desk.config, FakeTokenizer(), FakeSamplers(context), desk.now)
    return desk.ask(prompt, 20, exact=Exact.STRICT).tokens


def test_the_engine_that_has_read_ahead_answers_and_the_other_reads_ahead_next() -> None:
    with duo() as pair:
        prompt = text(600)
        done = pair.ask(prompt, 20)
        pair.expect(done, ahead := stripped(prompt, 2))
        done = pair.ask([*ahead, *text(30, 3)], 20)
        assert done.resume.source is Source.LIVE
        assert pair.pair.pair_stats().swaps == 1
        assert [context.length(0) > 0 for context in pair.contexts] == [True, True]


def test_a_history_that_goes_another_way_wastes_what_was_read_for_it() -> None:
    with duo() as pair:
        prompt = text(600)
        done = pair.ask(prompt, 20)
        pair.expect(done, stripped(prompt, 2))
        pair.ask([*prompt, *text(50, 9)], 20)
        pair.settle()
        fate = pair.pair.pair_stats().background.fate
        assert sum(fate.wasted.values()) == sum(fate.read.values()) > 0


def test_a_generated_answer_is_made_exact_where_the_prompt_goes_on_from_it() -> None:
    with duo() as pair:
        prompt = text(300)
        done = pair.ask(prompt, 200)
        whole = [*prompt, *done.generated]
        pair.expect(done, [*whole, *text(10, 4)])
        held = pair.store.match(whole, canonical_only=True)
        assert held.checkpoints[-1].position == len(whole) // 64 * 64
        assert set(pair.pair.pair_stats().background.fate.read) == {Kind.EXACT}


def test_the_view_after_a_cut_is_ready_when_it_is_needed_however_late() -> None:
    with duo() as pair:
        prompt, view = text(600), [*text(200), *text(500, 7)]
        done = pair.ask(prompt, 20)
        pair.expect(done, view, Kind.CUT)
        prompt = [*prompt, *done.generated, *text(80, 8)]
        pair.ask(prompt, 20)
        done = pair.ask([*view, *text(30, 9)], 20)
        assert done.timings.prompt_n <= 30 + 64
        until(lambda: pair.pair.pair_stats().background.fate.used == {Kind.CUT: 640})  # told after the answer, on another thread


def test_checkpoints_that_placement_wants_and_that_are_gone_are_made_again() -> None:
    with duo() as pair:
        prompt = text(2000)
        done = pair.ask(prompt, 5)
        gone = [ref for ref in pair.store.match(prompt).checkpoints if ref.position == 512]
        assert gone
        pair.store._ram.drop(EntryKind.CHECKPOINT, gone[0].id)
        pair.expect(done, [*prompt, *done.generated, *text(20, 2)])
        assert 512 in [ref.position for ref in pair.store.match(prompt).checkpoints]
        assert pair.pair.pair_stats().background.fate.read[Kind.DENSIFY] == 256


def test_no_more_is_read_between_two_turns_than_the_budget_allows() -> None:
    with duo(budget=Budget(tokens=300)) as pair:
        prompt = text(600)
        done = pair.ask(prompt, 5)
        pair.expect(done, [*prompt[:-5], *text(2000, 2)])
        assert 0 < sum(pair.pair.pair_stats().background.fate.read.values()) <= 300


def test_a_budget_in_seconds_is_as_many_tokens_as_they_take() -> None:
    assert Budget(seconds=2.0).left(100, token_ms=4.0) == 400
    assert Budget(tokens=50).left(100, token_ms=4.0) == 0


@pytest.mark.parametrize("devices", DEVICES, ids=IDS)
def test_who_comes_while_the_background_reads_is_served_at_once_and_half_the_reading_is_kept(devices: dict[str, bool]) -> None:
    with duo(seconds_per_token=0.0002, n_ctx=16384, **devices) as pair:
        prompt = text(600)
        done = pair.ask(prompt, 5)
        ahead = [*prompt[:-5], *text(8000, 2)]
        pair.pair.expect(done.request, lambda: (Kind.ANTICIPATE, prompt_of(ahead)))
        until(lambda: any(engine.read_in_background > 1000 for engine in pair.engines))
        done = pair.ask(prompt[:-5] + text(30, 5), 5)  # the same conversation, gone another way
        assert done.timings.queued_ms + done.timings.prompt_ms < 4000
        pair.settle()
        assert pair.pair.pair_stats().background.preempted == 1
        assert max(ref.position for ref in pair.store.match(ahead).checkpoints) > 1000


def prompt_of(tokens: Sequence[int]):  # type: ignore[no-untyped-def]
    from engine.foresight import Prompt

    return Prompt(tuple(tokens))


def test_a_background_batch_is_short_however_long_the_prompt() -> None:
    with duo(seconds_per_token=0.001) as pair:
        prompt = text(600)
        done = pair.ask(prompt, 5)
        pair.expect(done, [*prompt[:-5], *text(1000, 2)])
        other = pair.contexts[1].batches
        assert max(len(run.tokens) for batch in other for run in batch) == 64


def test_two_conversations_at_once_are_served_by_both_engines_and_find_their_state_again() -> None:
    with duo(seconds_per_token=0.0005) as pair:
        first, second = text(400), text(400, 2)
        one, other = pair.send(first, 40), pair.send(second, 40)
        dones = [one.done, other.done]
        assert all(context.batches for context in pair.contexts)
        longer = [[*first, *dones[0].generated, *text(20, 3)], [*second, *dones[1].generated, *text(20, 4)]]
        assert all(pair.ask(tokens, 5).timings.prompt_n <= 20 + 64 for tokens in longer[::-1])


def test_the_background_rests_while_a_shared_device_serves() -> None:
    with duo(shared=True, seconds_per_token=0.0005) as pair:
        prompt = text(600)
        done = pair.ask(prompt, 5)
        busy = pair.send(text(300, 9), 400)
        until(lambda: len(busy.tokens) > 2)
        pair.pair.expect(done.request, lambda: (Kind.ANTICIPATE, prompt_of(stripped(prompt, 2))))
        assert busy.done
        assert all(engine.read_in_background == 0 for engine in pair.engines)
        pair.settle()
        assert any(engine.read_in_background > 0 for engine in pair.engines)


def test_a_failing_background_is_counted_and_nobody_notices() -> None:
    with duo() as pair:
        prompt = text(600)
        done = pair.ask(prompt, 20)
        for context in pair.contexts:
            break_down(context)
        pair.expect(done, stripped(prompt, 2))
        stats = pair.pair.pair_stats().background
        assert stats.failed == 1
        assert "MemoryError" in str(stats.last_error)
        for context in pair.contexts:
            del context.decode  # type: ignore[method-assign]
        assert pair.ask([*prompt, *done.generated, 1, 2, 3], 5).completion_tokens == 5


def break_down(context: FakeContext) -> None:
    def decode(runs: Sequence[Run]) -> None:
        raise MemoryError("no room on the device")

    context.decode = decode  # type: ignore[method-assign]


def test_a_foresight_that_fails_is_counted_and_nobody_notices() -> None:
    def foresee() -> None:
        raise ZeroDivisionError

    with duo() as pair:
        done = pair.ask(text(100), 5)
        pair.pair.expect(done.request, foresee)
        pair.settle()
        assert pair.pair.pair_stats().background.failed == 1
        assert pair.ask(text(100, 2), 5).completion_tokens == 5


def test_a_request_that_its_engine_fails_is_answered_by_the_other() -> None:
    with duo() as pair:
        expected = pair.ask(prompt := text(300), 20).generated
        for context in pair.contexts[:1]:
            break_down(context)
        asked = [pair.ask([*text(50, seed), *prompt], 20) for seed in range(3)]
        assert all(done.completion_tokens == 20 for done in asked)
        assert pair.ask(prompt, 20).generated == expected
        stats = pair.pair.pair_stats()
        assert stats.rescued >= 1
        assert stats.strikes[0] >= 1
        assert stats.strikes[1] == 0


def test_both_engines_failing_ends_a_request_with_its_error() -> None:
    with duo() as pair:
        for context in pair.contexts:
            break_down(context)
        last = pair.send(text(300), 20).last
        assert isinstance(last, Failed)
        assert isinstance(last.error, MemoryError)


def test_an_engine_whose_thread_dies_leaves_the_other_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    with duo() as pair:
        pair.ask(text(300), 5)

        def dies() -> bool:
            if pair.engines[0]._core.waiting:
                raise SystemExit
            return False

        monkeypatch.setattr(pair.engines[0]._core, "step", dies)
        asked = [pair.ask(text(300, seed), 5) for seed in range(2, 6)]
        assert all(done.completion_tokens == 5 for done in asked)
        assert pair.pair.pair_stats().alive == (False, True)
        assert pair.pair.stats().alive


def test_a_cancelled_request_is_not_given_to_the_other_engine() -> None:
    with duo(seconds_per_token=0.001) as pair:
        sink = pair.send(text(300), 500)
        until(lambda: bool(sink.tokens))
        pair.pair.cancel("r0")
        last = sink.last
        assert isinstance(last, Failed)
        assert isinstance(last.error, Cancelled)
        assert pair.pair.pair_stats().rescued == 0


def test_a_request_that_nobody_waits_for_is_taken_by_an_idle_engine_and_dropped_for_one_that_is_waited_for() -> None:
    with duo(shared=True, seconds_per_token=0.0005) as pair:
        sink = Sink()
        pair.pair.submit(Request("idle", tuple(text(300)), GREEDY, 2000, ignore_eos=True, background=True), sink)
        until(lambda: bool(sink.tokens))
        assert pair.ask(text(200, 2), 5).completion_tokens == 5
        last = sink.last
        assert isinstance(last, Failed)
        assert isinstance(last.error, Cancelled)


def test_a_request_that_nobody_waits_for_is_refused_while_somebody_is_served() -> None:
    with duo(shared=True, seconds_per_token=0.0005) as pair:
        busy = pair.send(text(300), 300)
        with pytest.raises(Cancelled):
            pair.pair.submit(Request("idle", (1, 2), GREEDY, 5, background=True), Sink())
        assert busy.done


def test_what_is_read_in_the_background_is_no_part_of_the_clients_figures() -> None:
    with duo() as pair:
        prompt = text(600)
        done = pair.ask(prompt, 20)
        pair.expect(done, stripped(prompt, 2))
        counters = pair.pair.stats().counters
        assert (counters.requests, counters.done, counters.read_tokens, counters.prompt_tokens) == (1, 1, 600, 600)
        assert pair.store.stats().lookups == 1


def test_views_and_residents_are_those_of_both_engines() -> None:
    with duo(n_slots=2) as pair:
        pair.ask(text(300), 5)
        assert [view.index for view in pair.pair.slots()] == [0, 1, 2, 3]
        assert len(pair.pair.resident()) == 4
        assert pair.pair.stats().slots == 4


def test_closing_parks_both_engines_and_ends_what_is_read() -> None:
    with duo(seconds_per_token=0.001, n_ctx=16384) as pair:
        prompt = text(600)
        done = pair.ask(prompt, 5)
        pair.pair.expect(done.request, lambda: (Kind.ANTICIPATE, prompt_of([*prompt[:-5], *text(8000, 2)])))
        until(lambda: any(engine.read_in_background for engine in pair.engines))
    assert not any(engine.alive for engine in pair.engines)
    assert pair.store.match(prompt).checkpoints


def test_a_hammered_pair_answers_everybody() -> None:
    with duo(seconds_per_token=0.00002) as pair:
        failures: list[object] = []

        def client(seed: int) -> None:
            prompt = text(200 + 30 * seed, seed)
            for turn in range(6):
                done = pair.send(prompt, 10).last
                if not isinstance(done, Done):
                    failures.append(done)
                    return
                ahead = [*prompt[:-5], *text(100, seed + turn)]
                pair.pair.expect(done.request, lambda ahead=ahead: (Kind.ANTICIPATE, prompt_of(ahead)))  # type: ignore[misc]
                prompt = [*ahead, *text(20, turn)]

        clients = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        assert not failures
        pair.settle()
        assert pair.pair.pair_stats().background.failed == 0
