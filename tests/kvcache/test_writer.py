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


class Recorder:
    """A write that keeps what it was given and says that it came."""

    def __init__(self) -> None:
        self.seen: list[Key] = []
        self.came = Event()

    def __call__(self, keys: Sequence[Key]) -> None:
        self.seen += keys
        self.came.set()


def test_what_is_held_is_written_when_the_last_holder_lets_go() -> None:
    write = Recorder()
    writer = Writer(write, lambda: None, most_held=100, hold_seconds=3600)
    writer.hold("a", True)
    writer.hold("b", True)
    writer.put(key(0), 100)
    writer.hold("a", False)
    assert not write.came.wait(0.05)
    assert writer.waiting() == (key(0),)
    writer.hold("b", False)
    assert write.came.wait(10)
    writer.close()


def test_more_bytes_than_may_wait_are_written_at_once() -> None:
    write = Recorder()
    writer = Writer(write, lambda: None, most_held=100, hold_seconds=3600)
    writer.hold("a", True)
    writer.put(key(0), 60)
    writer.put(key(0), 60)
    assert not write.came.wait(0.05)
    writer.put(key(1), 60)
    assert write.came.wait(10)
    writer.close()


def test_what_is_little_is_written_though_it_is_held() -> None:
    write = Recorder()
    writer = Writer(write, lambda: None, least_held=50, most_held=100, hold_seconds=3600)
    writer.hold("a", True)
    writer.put(key(0), 60)
    assert not write.came.wait(0.05)
    writer.flush()
    write.came.clear()
    writer.put(key(1), 40)
    assert write.came.wait(10)
    writer.close()


def test_a_hold_ends_by_itself() -> None:
    write = Recorder()
    writer = Writer(write, lambda: None, most_held=100, hold_seconds=0.01)
    writer.hold("a", True)
    writer.put(key(0), 1)
    assert write.came.wait(10)
    writer.close()


@pytest.mark.parametrize("end", ["flush", "close"])
def test_flushing_and_closing_do_not_wait_for_a_holder(end: str) -> None:
    write = Recorder()
    writer = Writer(write, lambda: None, most_held=100, hold_seconds=3600)
    writer.hold("a", True)
    writer.put(key(0), 1)
    getattr(writer, end)()
    assert write.seen == [key(0)]
    writer.close()
