"""Buffers of payloads: reused when the last view is gone, never before; idle memory stays within its bound."""

import threading

import numpy as np
import pytest

from engine.buffers import BufferPool

SIZES = (1000, 1 << 20)  # from the allocator, and mapped


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


@pytest.mark.parametrize("size", SIZES)
def test_a_buffer_comes_back_when_it_is_dropped(size: int) -> None:
    pool = BufferPool(4 * size)
    view = pool.take(size)
    first = address(view)
    del view
    assert pool.idle_bytes == size
    assert address(pool.take(size)) == first


@pytest.mark.parametrize("size", SIZES)
def test_a_buffer_is_kept_while_any_view_of_it_lives(size: int) -> None:
    pool = BufferPool(4 * size)
    view = pool.take(size)
    views = [view[3:7], view.toreadonly(), np.frombuffer(view, np.uint8)[5:]]
    del view
    while views:
        assert pool.idle_bytes == 0
        views.pop()
    assert pool.idle_bytes == size


def test_what_is_held_is_never_handed_out_again() -> None:
    pool = BufferPool(10_000)
    held = [pool.take(500) for _ in range(20)]
    for number, view in enumerate(held):
        view[:] = bytes([number]) * 500
    assert [set(view) for view in held] == [{number} for number in range(20)]


def test_idle_memory_stays_within_its_bound_and_the_rest_is_freed() -> None:
    pool = BufferPool(2500)
    held = [pool.take(1000) for _ in range(5)]
    held.clear()
    assert pool.idle_bytes == 2000


def test_a_pool_that_may_keep_nothing_keeps_nothing() -> None:
    pool = BufferPool(0)
    del [pool.take(100)][0]
    assert pool.idle_bytes == 0


def test_buffers_may_be_dropped_on_other_threads() -> None:
    pool = BufferPool(1 << 20)

    def churn() -> None:
        for _ in range(2000):
            view = pool.take(256)
            view[0] = 1

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < pool.idle_bytes <= 4 * 256
