"""The contract of engine.context, one suite for fake and real contexts: what is exact, on one slot and on several."""

import threading

import numpy as np
import pytest

from engine.context import Run, StateKind
from tests.engine.conftest import BIT_EXACT, FAKES, TOKEN_EXACT, Subject, subjects
from tests.engine.states import assert_same, cold, generate, parked, read

every = pytest.mark.parametrize("subject", subjects(*FAKES, *BIT_EXACT), indirect=True)
trained = pytest.mark.parametrize("subject", subjects(*FAKES, *BIT_EXACT, *TOKEN_EXACT), indirect=True)


@trained
def test_a_restored_prefix_goes_on_as_a_cold_read(subject: Subject) -> None:
    context, prompt = subject.make(), subject.words(300)
    want = cold(context, prompt)
    tokens = generate(context, 12, want)
    state = parked(context, prompt, 128, 256)
    context.clear(0)
    state.restore(context, 256)
    assert_same(subject, context, read(context, prompt, 256), want, tokens)


@trained
def test_a_shorter_stored_prefix_goes_on_as_a_cold_read(subject: Subject) -> None:
    context, prompt = subject.make(), subject.words(300)
    want = cold(context, prompt)
    tokens = generate(context, 12, want)
    state = parked(context, prompt, 128, 256)
    context.clear(0)
    state.restore(context, 128)
    assert_same(subject, context, read(context, prompt, 128), want, tokens)


@trained
def test_a_rollback_after_generating_goes_on_as_a_cold_read(subject: Subject) -> None:
    context, prompt = subject.make(), subject.words(300)
    want = cold(context, prompt)
    tokens = generate(context, 12, want)
    state = parked(context, prompt, 128, 256)
    generate(context, 40, read(context, prompt, 256))
    state.roll_back(context, 256)
    assert_same(subject, context, read(context, prompt, 256), want, tokens)


@trained
def test_an_edited_tail_after_a_rollback_is_read_as_if_cold(subject: Subject) -> None:
    context, prompt = subject.make(), subject.words(300)
    edited = prompt[:200] + subject.words(90, seed=1)
    want = cold(context, edited)
    tokens = generate(context, 12, want)
    state = parked(context, prompt, 192)
    read(context, prompt, 192)
    state.roll_back(context, 192)
    assert_same(subject, context, read(context, edited, 192), want, tokens)


@every
def test_cells_that_agree_stay_and_only_missing_blocks_are_loaded(subject: Subject) -> None:
    """Live slot of one branch, state of another branch in the store: the common blocks are not loaded again."""
    context, prompt = subject.make(), subject.words(300)
    branch = prompt[:130] + subject.words(150, seed=2)
    want = cold(context, branch)
    tokens = generate(context, 12, want)
    state = parked(context, branch, 256)
    cold(context, prompt)
    state.restore(context, 256, keep=128)
    assert_same(subject, context, read(context, branch, 256), want, tokens)


@trained
def test_a_restore_from_another_thread_than_the_one_that_decodes(subject: Subject) -> None:
    context, prompt = subject.make(), subject.words(300)
    want = cold(context, prompt)
    tokens = generate(context, 12, want)
    state = parked(context, prompt, 256)
    context.clear(0)
    thread = threading.Thread(target=state.restore, args=(context, 256))
    thread.start()
    thread.join()
    assert_same(subject, context, read(context, prompt, 256), want, tokens)


@every
def test_one_checkpoint_serves_any_number_of_times(subject: Subject) -> None:
    """Report 33: state that leaks from what was generated before would show by the second time."""
    context, prompt = subject.make(), subject.words(140)
    state = parked(context, prompt, 128)
    want = read(context, prompt, 128)
    tokens = generate(context, 6, want)
    for turn in range(5):
        generate(context, 10 + turn, context.logits(0))
        state.roll_back(context, 128)
        assert_same(subject, context, read(context, prompt, 128), want, tokens)


@every
def test_a_cleared_slot_reads_as_a_fresh_context(subject: Subject) -> None:
    used, fresh, prompt = subject.make(), subject.make(), subject.words(200)
    cold(used, subject.words(400, seed=3))
    got, want = cold(used, prompt), cold(fresh, prompt)
    assert_same(subject, used, got, want, generate(fresh, 12, want))


@every
def test_a_slot_used_after_others_reads_as_a_fresh_context(subject: Subject) -> None:
    """Cells of several slots interleave; when all are cleared the next read lies as in a fresh context."""
    used, fresh, prompt = subject.make(slots=3), subject.make(slots=3), subject.words(200)
    for slot in (2, 0, 1):
        read(used, subject.words(100 + slot, seed=slot), 0, slot)
    for slot in (1, 0, 2):
        used.clear(slot)
    got, want = cold(used, prompt), cold(fresh, prompt)
    assert_same(subject, used, got, want, generate(fresh, 12, want))


@every
def test_every_canonical_read_of_a_prompt_gives_the_same_bits(subject: Subject) -> None:
    """Batches of 64, 128 and 256 tokens, before the remainder as a batch of its own."""
    prompt, found = subject.words(300), []
    for batch in (64, 128, 256):
        found.append(cold(subject.make(batch=batch), prompt))
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


@pytest.mark.parametrize("subject", subjects(*FAKES, "tiny", "tiny-q8"), indirect=True)  # mamba's floats never depend on splits
def test_a_read_that_is_not_canonical_differs_so_that_exactness_tests_can_fail(subject: Subject) -> None:
    context, prompt = subject.make(), subject.words(300)
    want = cold(context, prompt)
    context.clear(0)
    context.decode([Run(0, 0, prompt[:100], False)])
    context.decode([Run(0, 100, prompt[100:297], False)])
    context.decode([Run(0, 297, prompt[297:], True)])  # few enough tokens for other kernels than a wide batch takes
    assert not np.array_equal(context.logits(0), want)


@trained
def test_slots_in_one_batch_say_what_each_says_alone(subject: Subject) -> None:
    context, alone = subject.make(slots=2), subject.make()
    prompts = [subject.words(70, seed=4), subject.words(90, seed=5)]
    want = [generate(alone, 16, cold(alone, prompt)) for prompt in prompts]
    last = [read(context, prompt, 0, slot) for slot, prompt in enumerate(prompts)]
    said = [[int(np.argmax(logits))] for logits in last]
    for _ in range(15):
        context.decode([Run(slot, context.length(slot), (said[slot][-1],), True) for slot in (0, 1)])
        for slot in (0, 1):
            said[slot].append(int(np.argmax(context.logits(slot))))
    assert [tuple(tokens) for tokens in said] == want


@every
def test_two_sessions_with_one_prefix_and_other_secrets_never_mix(subject: Subject) -> None:
    """Report 29: the state of one never answers for the other, whatever is swapped in and out of the one slot."""
    context = subject.make()
    shared = subject.words(192)
    prompts = [shared + subject.words(60, seed=6), shared + subject.words(60, seed=7)]
    want = [cold(context, prompt) for prompt in prompts]
    tokens = [generate(context, 6, cold(context, prompt)) for prompt in prompts]
    state = parked(context, shared, 192)
    for turn in range(6):
        mine = turn % 2
        state.restore(context, 192)
        assert_same(subject, context, read(context, prompts[mine], 192), want[mine], tokens[mine])


@every
def test_a_fork_of_a_whole_slot_goes_on_alone(subject: Subject) -> None:
    context, prompt = subject.make(slots=2), subject.words(150)
    want = generate(context, 12, cold(context, prompt))
    first = cold(context, prompt)
    context.fork(0, 1, 150)
    assert context.ready(1) and context.length(1) == 150
    generate(context, 5, first)
    assert generate(context, 12, first, slot=1) == want


@trained
def test_a_fork_of_a_prefix_is_completed_by_its_checkpoint(subject: Subject) -> None:
    context = subject.make(slots=2)
    prompt = subject.words(200)
    other = prompt[:128] + subject.words(50, seed=8)
    want = generate(context, 12, cold(context, other))
    state = parked(context, prompt, 128)
    read(context, prompt, 128)
    context.fork(0, 1, 128)
    assert context.ready(1) == (context.kind is StateKind.ATTENTION)
    if state.checkpoints:
        context.load_checkpoint(1, 128, state.checkpoints[128])
    assert generate(context, 12, read(context, other, 128, slot=1), slot=1) == want
    assert context.length(0) == 200
