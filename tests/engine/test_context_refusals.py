"""The contract of engine.context: what is refused, what a refusal leaves unharmed, and what payloads are."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engine.context import Context, Run
from engine.errors import ContextMisuse, DecodeFailed, StateRefused
from engine.fake import FakeContext
from tests.engine.conftest import BIT_EXACT, FAKES, Subject, random_words, subjects
from tests.engine.states import State, assert_same, cold, generate, parked, read

if TYPE_CHECKING:
    from engine.llama import LlamaContext

every = pytest.mark.parametrize("subject", subjects(*FAKES, *BIT_EXACT), indirect=True)
with_checkpoints = pytest.mark.parametrize(
    "subject", subjects("fake-hybrid", "fake-window", "fake-recurrent", "tiny", "mamba", "gemma3-270m"), indirect=True
)


@every
def test_wrong_use_is_refused_and_changes_nothing(subject: Subject) -> None:
    context, prompt = subject.make(ctx=256), subject.words(128)
    want = generate(context, 4, cold(context, prompt))
    first = cold(context, prompt)
    for wrong in _wrong_runs(context):
        with pytest.raises(ContextMisuse):
            context.decode(wrong)
    for start, end in ((0, 0), (64, 192), (-64, 0), (64, 64)):
        with pytest.raises(ContextMisuse):
            context.save_block(0, start, end)
    for slot in (-1, 1):
        with pytest.raises(ContextMisuse):
            context.length(slot)
    with pytest.raises(ContextMisuse):
        context.cut(0, 129)
    with pytest.raises(ContextMisuse):
        context.load_block(0, 64, 128, b"")
    assert context.length(0) == 128 and context.ready(0)
    assert generate(context, 4, first) == want


def _wrong_runs(context: Context) -> Iterator[list[Run]]:
    yield []
    yield [Run(0, 128, (), True)]
    yield [Run(0, 127, (5,), True)]
    yield [Run(0, 129, (5,), True)]
    yield [Run(1, 0, (5,), True)]
    yield [Run(0, 128, (context.n_vocab,), True)]
    yield [Run(0, 128, (-1,), True)]
    yield [Run(0, 128, random_words(129), True)]
    yield [Run(0, 128, random_words(300), True)]
    yield [Run(0, 128, (5,), True), Run(0, 129, (5,), True)]


@every
def test_logits_exist_only_for_runs_that_wanted_them(subject: Subject) -> None:
    context = subject.make(slots=2)
    context.decode([Run(0, 0, subject.words(3), False), Run(1, 0, subject.words(3), True)])
    assert context.logits(1).shape == (context.n_vocab,) and context.logits(1).dtype == np.float32
    for run in (0, 2, -1):
        with pytest.raises(ContextMisuse):
            context.logits(run)


@with_checkpoints
def test_a_loaded_block_alone_may_not_decode(subject: Subject) -> None:
    context, prompt = subject.make(), subject.words(130)
    state = parked(context, prompt, 128)
    context.clear(0)
    context.load_block(0, 0, 64, state.blocks[0])
    assert not context.ready(0) and context.length(0) == 64
    with pytest.raises(ContextMisuse):
        context.decode([Run(0, 64, (5,), True)])
    with pytest.raises(ContextMisuse):
        context.save_checkpoint(0)


@with_checkpoints
def test_a_trimmed_slot_may_not_decode_before_its_checkpoint(subject: Subject) -> None:
    context, prompt = subject.make(), subject.words(130)
    state = parked(context, prompt, 128)
    context.trim(0, 64)
    assert context.length(0) == 64 and not context.ready(0)
    context.load_block(0, 64, 128, state.blocks[1])
    context.load_checkpoint(0, 128, state.checkpoints[128])
    assert context.ready(0)


@pytest.mark.parametrize("subject", subjects("fake-hybrid", "fake-recurrent", "tiny", "mamba"), indirect=True)
def test_a_hybrid_is_never_cut_without_a_checkpoint(subject: Subject) -> None:
    """Reports 8 and 49: a refused cut is an answer, not an abort and not a silent success."""
    context, prompt = subject.make(), subject.words(130)
    want = generate(context, 6, cold(context, prompt))
    first = cold(context, prompt)
    for position in (129, 128, 64, 1):
        assert not context.cut(0, position)
    assert context.cut(0, 130)
    assert context.length(0) == 130 and context.ready(0)
    assert generate(context, 6, first) == want


@every
def test_a_closed_context_refuses_everything(subject: Subject) -> None:
    context = subject.make()
    read(context, subject.words(70))
    context.close()
    context.close()
    for ask in (
        lambda: context.decode([Run(0, 70, (5,), True)]),
        lambda: context.logits(0),
        lambda: context.save_block(0, 0, 64),
        lambda: context.load_block(0, 70, 134, b""),
        lambda: context.cut(0, 0),
        lambda: context.trim(0, 0),
        lambda: context.clear(0),
    ):
        with pytest.raises(ContextMisuse):
            ask()


@every
def test_a_cut_to_nothing_is_a_clear(subject: Subject) -> None:
    context = subject.make()
    cold(context, subject.words(70))
    assert context.cut(0, 0)
    assert context.length(0) == 0 and context.ready(0)
    assert context.cut(0, 0)


@pytest.mark.parametrize("subject", subjects("fake-window", "gemma3-270m"), indirect=True)
def test_a_window_is_cut_only_while_it_reaches_far_enough_back(subject: Subject) -> None:
    """llama.cpp says yes to any cut of a window; the state would be silently wrong."""
    context, prompt = subject.make(ctx=2048), subject.words(1900)
    cold(context, prompt)
    assert not context.cut(0, 900)
    assert context.length(0) == 1900
    assert context.cut(0, 1890)
    assert context.length(0) == 1890 and context.ready(0)


@pytest.mark.parametrize("subject", subjects("fake-attention", "smollm2"), indirect=True)
def test_an_attention_model_has_no_checkpoints_and_is_cut_anywhere(subject: Subject) -> None:
    context, prompt = subject.make(), subject.words(200)
    want = cold(context, prompt)
    tokens = generate(context, 6, want)
    assert context.checkpoint_bytes == 0
    with pytest.raises(ContextMisuse):
        context.save_checkpoint(0)
    with pytest.raises(ContextMisuse):
        context.load_checkpoint(0, 64, b"")
    assert context.cut(0, 64)
    assert_same(subject, context, read(context, prompt, 64), want, tokens)


@every
def test_payloads_have_the_sizes_the_context_names(subject: Subject) -> None:
    context = subject.make()
    state = parked(context, subject.words(192), 64, 192)
    assert {len(block) for block in state.blocks} == {context.block_bytes(64)}
    sizes = [len(payload) for payload in state.checkpoints.values()]
    assert all(0 < size <= context.checkpoint_bytes for size in sizes)


@every
def test_a_payload_stays_what_it_was_when_the_context_goes_on(subject: Subject) -> None:
    """Payloads are copies; buffers that were given back are reused, those that are held never."""
    context, prompt = subject.make(), subject.words(256)
    state = parked(context, prompt, 128)
    kept = [bytes(payload) for payload in (*state.blocks, *state.checkpoints.values())]
    for seed in range(4):
        parked(context, subject.words(192, seed=seed), 128, 192)
    assert kept == [bytes(payload) for payload in (*state.blocks, *state.checkpoints.values())]


@every
def test_payloads_can_be_bytes_or_views_of_any_buffer(subject: Subject) -> None:
    """A tier may hold them in a file's pages or a buffer that is not aligned."""
    context, prompt = subject.make(), subject.words(150)
    want = cold(context, prompt)
    tokens = generate(context, 6, want)
    state = parked(context, prompt, 128)
    for pack in (bytes, lambda data: memoryview(b"x" + bytes(data))[1:], lambda data: memoryview(bytearray(data))):
        copy = State([pack(block) for block in state.blocks], {at: pack(data) for at, data in state.checkpoints.items()})
        context.clear(0)
        copy.restore(context, 128)
        assert_same(subject, context, read(context, prompt, 128), want, tokens)


def _wrong_blocks(block: bytes, other: bytes) -> Iterator[bytes]:
    """Reports 30 and 31: empty, cut, too long, of another place."""
    yield b""
    yield block[:8]
    yield block[:-1]
    yield block + b"\0"
    yield other


@pytest.mark.parametrize(
    "subject", subjects("fake-hybrid", "fake-window", "fake-attention", "tiny", "smollm2", "gemma3-270m"), indirect=True
)
def test_a_wrong_block_is_refused_and_other_slots_are_untouched(subject: Subject) -> None:
    context, prompt = subject.make(slots=2), subject.words(150)
    state = parked(context, subject.words(128, seed=9), 128)
    want = generate(context, 6, cold(context, prompt))
    first = cold(context, prompt)
    for wrong in _wrong_blocks(bytes(state.blocks[0]), bytes(state.blocks[1])):
        with pytest.raises(StateRefused):
            context.load_block(1, 0, 64, wrong)
        assert not context.ready(1)
        context.clear(1)
    assert generate(context, 6, first) == want


@with_checkpoints
def test_a_wrong_checkpoint_is_refused_and_the_slot_can_be_used_again(subject: Subject) -> None:
    context, prompt = subject.make(slots=2), subject.words(150)
    state = parked(context, prompt, 64, 128)
    want = cold(context, prompt)
    tokens = generate(context, 6, want)
    good = bytes(state.checkpoints[128])
    for wrong in (b"", good[:8], good[:-1], good + b"\0", bytes(state.blocks[0]), bytes(state.checkpoints[64])):
        context.clear(0)
        state.restore(context, 128)
        with pytest.raises(StateRefused):
            context.load_checkpoint(0, 128, wrong)
        assert not context.ready(0)
    context.clear(0)
    state.restore(context, 128)
    assert_same(subject, context, read(context, prompt, 128), want, tokens)


@with_checkpoints
def test_a_checkpoint_of_another_position_is_refused(subject: Subject) -> None:
    """Report 4: one token before, one after; position bookkeeping must not be trusted over the state itself."""
    context, prompt = subject.make(), subject.words(200)
    state = parked(context, prompt, 64, 128)
    for position in (127, 65, 63):
        context.clear(0)
        read(context, prompt)
        with pytest.raises(StateRefused):
            context.load_checkpoint(0, position, state.checkpoints[64] if position > 64 else state.checkpoints[128])


@with_checkpoints
def test_checkpoints_serve_divergences_just_before_at_and_after_them(subject: Subject) -> None:
    """Report 4, the other way: each of three later prompts gets the deepest checkpoint that is a prefix of it."""
    context, prompt = subject.make(), subject.words(300)
    state = parked(context, prompt, 64, 128, 192)
    for diverges in (127, 128, 129):
        edited = prompt[:diverges] + subject.words(100, seed=diverges)
        want = cold(context, edited)
        tokens = generate(context, 6, want)
        position = max(at for at in state.checkpoints if at <= diverges)
        context.clear(0)
        state.restore(context, position)
        assert_same(subject, context, read(context, edited, position), want, tokens)


@pytest.mark.model
def test_a_batch_that_llama_cpp_does_not_read_leaves_a_slot_that_must_be_cleared(
    make_real: Callable[..., "LlamaContext"], monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine import llama

    context, prompt = make_real("tiny"), random_words(100)
    want = cold(context, prompt)
    with monkeypatch.context() as patch, pytest.raises(DecodeFailed, match="no room"):
        patch.setattr(llama.C, "llama_decode", lambda *_: 1)
        context.decode([Run(0, 100, (5,), True)])
    assert not context.ready(0)
    with pytest.raises(ContextMisuse):
        context.logits(0)
    np.testing.assert_array_equal(cold(context, prompt), want)


def test_the_fake_fails_where_it_is_told_to_and_only_then() -> None:
    context = FakeContext()
    context.refuse["decode"] = 1
    with pytest.raises(DecodeFailed):
        context.decode([Run(0, 0, (5,), True)])
    assert not context.ready(0)
    context.clear(0)
    context.decode([Run(0, 0, (5,), True)])
    assert context.calls["decode"] == 2 and len(context.batches) == 1
