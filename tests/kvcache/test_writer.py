"""Write-behind: nothing waits for it, nothing is lost by closing, and an error does not end it."""

from collections.abc import Sequence
from threading import Event

import pytest

from kvcache import writer as writer_module
from kvcache.facts import EntryKind
from kvcache.tree import Key
from kvcache.writer import BATCH_ENTRIES, Writer


def key(number: int) -> Key:
    return EntryKind.BLOCK, number.to_bytes(4, "big")


class Slow:
    """A write that waits until it is let go, and keeps what it was given."""

    def __init__(self) -> None:
        self.batches: list[tuple[Key, ...]] = []
        self.entered, self.go = Event(), Event()

    def __call__(self, keys: Sequence[Key]) -> None:
        self.entered.set()
        assert self.go.wait(10)
        self.batches.append(tuple(keys))


def test_putting_never_waits_and_order_and_batch_size_are_kept() -> None:
    slow = Slow()
    writer = Writer(slow, lambda: None)
    writer.put(key(0))
    assert slow.entered.wait(10)
    for number in range(1, 80):
        writer.put(key(number))
    writer.put(key(5))
    assert key(0) in writer
    assert key(79) in writer
    assert len(writer.waiting()) == 80
    slow.go.set()
    writer.flush()
    assert [k for batch in slow.batches for k in batch] == [key(number) for number in range(80)]
    assert max(map(len, slow.batches)) == BATCH_ENTRIES
    assert key(0) not in writer
    writer.close()


def test_closing_writes_what_waits() -> None:
    slow = Slow()
    writer = Writer(slow, lambda: None)
    for number in range(40):
        writer.put(key(number))
    slow.go.set()
    writer.close()
    assert sum(map(len, slow.batches)) == 40


def test_an_error_in_writing_is_logged_and_the_next_batch_is_written() -> None:
    seen: list[Key] = []

    def write(keys: Sequence[Key]) -> None:
        seen.extend(keys)
        if key(0) in keys:
            raise RuntimeError("no")

    writer = Writer(write, lambda: None)
    writer.put(key(0))
    writer.flush()
    writer.put(key(1))
    writer.flush()
    assert seen == [key(0), key(1)]
    writer.close()


def test_after_a_quiet_while_the_idle_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "IDLE_SECONDS", 0.01)
    idle = Event()
    writer = Writer(lambda keys: None, idle.set)
    assert idle.wait(10)
    writer.close()
