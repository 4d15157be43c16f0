"""Reading: buffers are never changed under a reader's feet, order is kept, and errors come out where they belong."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvcache.reading import PAGE, Buffers, in_order, is_cached, read_file

MIB = 1 << 20


def test_a_buffer_is_used_again_only_when_no_view_of_it_is_left() -> None:
    buffers = Buffers(spare=MIB)
    view = buffers.take(5000)
    view[:5] = b"first"
    part = view[2:4].toreadonly()
    del view
    other = buffers.take(5000)
    other[:5] = b"other"
    assert bytes(part) == b"rs"
    assert buffers.held_bytes() == 4 * PAGE
    del part, other
    buffers.take(5000)
    buffers.take(5000)
    assert buffers.held_bytes() == 4 * PAGE


def test_idle_buffers_are_given_back_beyond_the_spare_bytes_beside_the_largest() -> None:
    buffers = Buffers(spare=4 * PAGE)
    views = [buffers.take(PAGE * size) for size in (64, 1, 1, 1, 1, 1, 1)]
    views.clear()
    buffers.take(8 * PAGE)
    assert buffers.held_bytes() == (64 + 8) * PAGE


@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * MIB + 5])
@pytest.mark.parametrize("cached", [None, True, False])
def test_any_file_is_read_whole_with_or_without_the_page_cache(tmp_path: Path, size: int, cached: bool | None) -> None:
    path, data = tmp_path / "file", os.urandom(size)
    path.write_bytes(data)
    assert read_file(path, Buffers(spare=0), cached=cached) == data


def test_a_file_dropped_from_the_page_cache_is_known_to_be_cold(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(MIB))
    assert is_cached(path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if is_cached(path):
        pytest.skip("this file system keeps its pages (a tmpfs has nowhere to drop them to)")
    assert len(read_file(path, Buffers(spare=0))) == MIB


def test_results_come_in_order_and_no_more_are_started_than_asked_for() -> None:
    started: list[int] = []

    def work(item: int) -> int:
        started.append(item)
        return item * item

    with ThreadPoolExecutor(3) as pool:
        results = in_order(pool, work, list(range(20)), ahead=2)
        assert next(results) == 0
        assert set(started) <= {0, 1, 2}
        assert list(results) == [item * item for item in range(1, 20)]


def test_an_error_comes_out_at_its_item_and_ends_the_stream() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise ValueError("three")
        return item

    with ThreadPoolExecutor(2) as pool:
        results = in_order(pool, work, list(range(9)), ahead=3)
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="three"):
            next(results)
        assert list(results) == []
