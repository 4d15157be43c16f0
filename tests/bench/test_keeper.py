"""kvalet-bench keeper on sizes that take no time: every number is there, and memory stays."""

import asyncio
from pathlib import Path

from bench.keeper import SEARCHES, document_rows, measure


def test_each_size_gives_times_searches_and_sizes(tmp_path: Path) -> None:
    rows = asyncio.run(measure(tmp_path, (2_000, 6_000)))
    assert [row.tokens >= size for row, size in zip(rows, (2_000, 6_000), strict=True)] == [True, True]
    assert rows[1].messages > rows[0].messages and rows[1].archive_bytes >= rows[0].archive_bytes
    for row, shown in zip(rows, document_rows(rows), strict=True):
        assert 0 < row.added_ms <= row.added_most_ms and row.first_ms > 0 and row.heap_bytes < 2**20
        assert set(row.searches_ms) == set(SEARCHES) and shown["tokens"] == row.tokens
