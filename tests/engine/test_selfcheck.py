"""The self-check: says bits where bits hold, and never says fine to a context whose state does not come back."""

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.context import StateKind
from engine.fake import FakeContext
from engine.selfcheck import Promise, canonical_read, self_check, try_grid, verify
from kvcache.entry import Payload
from tests.engine.conftest import BIT_EXACT, FAKES, TOKEN_EXACT, Subject, random_words, subjects


@pytest.mark.parametrize("subject", subjects(*FAKES, *BIT_EXACT), indirect=True)
def test_a_sound_context_passes_with_equal_bits_and_is_left_empty(subject: Subject) -> None:
    context = subject.make()
    found = self_check(context)
    assert found.ok and found.promise is Promise.BITS and not found.failed
    assert context.length(0) == 0 and context.ready(0)


@pytest.mark.parametrize("subject", subjects(*TOKEN_EXACT), indirect=True)
def test_trained_models_pass_at_least_with_equal_tokens(subject: Subject) -> None:
    found = self_check(subject.make())
    assert found.ok and found.promise is not Promise.NONE, found.failed


class Forgetful(FakeContext):
    """Loads checkpoints of what it should hold, slightly wrong, as a faulty back end would: without a word."""

    def load_checkpoint(self, slot: int, position: int, payload: Payload) -> None:
        super().load_checkpoint(slot, position, payload)
        self._slots[slot].partial ^= 1


class Noisy(FakeContext):
    """The last bits of its logits differ from read to read; which token is likeliest does not."""

    def logits(self, run: int) -> NDArray[np.float32]:
        values = super().logits(run)
        best = int(np.argmax(values))
        self.calls["logits"] += 1
        values[(best + 1) % len(values)] -= self.calls["logits"] * 1e-3
        return values


def test_state_that_comes_back_wrong_fails_and_every_way_is_named() -> None:
    found = self_check(Forgetful())
    assert not found.ok and found.promise is Promise.NONE
    assert [text.split(" at ")[0] for text in found.failed] == ["rollback", "restore", "restore of a prefix"]


def test_equal_tokens_without_equal_bits_pass_as_tokens() -> None:
    found = self_check(Noisy())
    assert found.ok and found.promise is Promise.TOKENS


@pytest.mark.parametrize("method", ["load_block", "load_checkpoint"])
def test_a_refused_load_fails_the_check_with_its_reason(method: str) -> None:
    context = FakeContext()
    context.refuse[method] = 1
    found = self_check(context)
    assert not found.ok and "refuse" in found.failed[0]
    assert context.length(0) == 0


def test_a_refused_cut_fails_the_check_of_an_attention_model() -> None:
    context = FakeContext(StateKind.ATTENTION)
    context.refuse["cut"] = 1
    found = self_check(context)
    assert not found.ok and "would not cut" in found.failed[0]


def test_a_context_that_cannot_even_decode_fails_and_does_not_raise() -> None:
    context = FakeContext()
    context.refuse["decode"] = 1
    found = self_check(context)
    assert not found.ok and found.report is None and "decode" in found.failed[0]


def test_verify_tries_every_grid_that_fits_and_finds_the_smallest_that_holds() -> None:
    """The fake's floats agree on its grid of 64 and its multiples only."""
    context = FakeContext(exact=False, n_batch=256)
    seen: list[int] = []
    found = verify(context, grids=(256, 16, 32, 64, 128, 512), progress=seen.append)
    assert seen == [report.grid for report in found.reports] == [16, 32, 64, 128, 256]
    assert [report.promise is Promise.BITS for report in found.reports] == [False, False, True, True, True]
    assert found.smallest(Promise.BITS) == 64


def test_verify_says_none_where_nothing_holds() -> None:
    assert verify(Forgetful(), grids=(64,)).smallest(Promise.TOKENS) is None


def test_verify_fits_small_contexts_and_skips_what_does_not_fit() -> None:
    found = verify(FakeContext(n_ctx=300), grids=(64, 128, 256))
    assert [(report.grid, report.tokens <= 292) for report in found.reports] == [(64, True), (128, True)]


def test_a_report_counts_what_was_parked_and_measures_each_way() -> None:
    context = FakeContext()
    report = try_grid(context, 64, 200)
    assert report.state_bytes == 3 * context.block_bytes(64) + 2 * context.checkpoint_bytes
    assert [(trial.way, trial.position, trial.reread) for trial in report.trials] == [
        ("other batches", 0, 200),
        ("rollback", 192, 8),
        ("restore", 192, 8),
        ("restore of a prefix", 64, 136),
    ]
    assert all(trial.ms > 0 and trial.reread_ms > 0 and trial.difference == 0 for trial in report.trials)


def test_a_canonical_read_is_cut_on_the_grid_with_the_remainder_alone() -> None:
    context = FakeContext(n_batch=200)
    canonical_read(context, 0, random_words(500), 0, 64)
    assert [(run.start, len(run.tokens), run.want_logits) for (run,) in context.batches] == [
        (0, 192, False),
        (192, 192, False),
        (384, 64, False),
        (448, 52, True),
    ]
