"""The shared index: what one process does another one sees, deletions included, and trouble has one of two names."""

import sqlite3
from pathlib import Path

import pytest

from kvcache import index as index_module
from kvcache.errors import DiskTrouble, IndexBroken
from kvcache.facts import EntryKind
from kvcache.index import HOUR, Index, Model, Row

BLOCK, CHECKPOINT = EntryKind.BLOCK, EntryKind.CHECKPOINT


def row(number: int, kind: EntryKind = BLOCK, nbytes: int = 100) -> Row:
    key = number.to_bytes(32, "big")
    return Row(kind, key, bytes(32), 0, 4, nbytes, canonical=True, last_used=float(number), session="s", label="l")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Index, Index]:
    """Two connections as two processes would have them."""
    return Index(tmp_path / "index.sqlite"), Index(tmp_path / "index.sqlite")


def put(index: Index, *rows: Row) -> None:
    with index.transaction() as txn:
        for each in rows:
            txn.put(each, b"packed")


def test_changes_are_told_once_to_each_who_asks(pair: tuple[Index, Index]) -> None:
    one, two = pair
    two.is_changed()
    put(one, row(1), row(2, CHECKPOINT))
    assert two.is_changed()
    assert not two.is_changed()
    first = two.changes(0)
    assert (first.everything, set(first.rows), first.gone) == (True, {row(1), row(2, CHECKPOINT)}, ())
    put(one, row(3))
    assert two.changes(first.seq).rows == (row(3),)
    assert two.changes(two.changes(first.seq).seq).rows == ()


def test_deletions_are_told_and_a_return_after_them_wins(pair: tuple[Index, Index]) -> None:
    one, two = pair
    put(one, row(1), row(2))
    seq = two.changes(0).seq
    with one.transaction() as txn:
        txn.delete([(BLOCK, row(1).key), (BLOCK, row(2).key)])
    put(one, row(2, nbytes=7))
    changes = two.changes(seq)
    assert changes.gone == ((BLOCK, row(1).key), (BLOCK, row(2).key))
    assert changes.rows == (row(2, nbytes=7),)


def test_one_that_was_away_too_long_reads_everything(pair: tuple[Index, Index], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "GONE_KEPT", 3)
    one, two = pair
    put(one, *(row(number) for number in range(10)))
    seq = two.changes(0).seq
    for number in range(6):
        with one.transaction() as txn:
            txn.delete([(BLOCK, row(number).key)])
    changes = two.changes(seq)
    assert changes.everything
    assert set(changes.rows) == {row(number) for number in range(6, 10)}


def test_the_total_follows_every_change_and_nothing_of_a_failed_transaction_stays(pair: tuple[Index, Index]) -> None:
    one, two = pair
    put(one, row(1, nbytes=100), row(2, nbytes=50))
    put(one, row(1, nbytes=70))
    assert two.meta("total") == 120
    with pytest.raises(RuntimeError), one.transaction() as txn:
        txn.delete([(BLOCK, row(1).key)])
        raise RuntimeError
    assert two.meta("total") == 120
    with one.transaction() as txn:
        txn.delete([(BLOCK, row(1).key), (BLOCK, row(9).key)])
        assert txn.total() == 50


def test_use_and_pin_are_updated_and_never_go_back(pair: tuple[Index, Index]) -> None:
    one, two = pair
    put(one, row(5))
    with one.transaction() as txn:
        txn.update(BLOCK, row(5).key, uses=3, last_used=9.0, pinned=True)
        txn.update(BLOCK, row(5).key, uses=1, last_used=2.0, pinned=True)
        txn.update(BLOCK, row(6).key, uses=1, last_used=2.0, pinned=True)
    [found] = two.listing()
    assert (found.uses, found.last_used, found.pinned) == (3, 9.0, True)


def test_reservations_of_others_count_and_go_with_their_owner(pair: tuple[Index, Index]) -> None:
    one, two = pair
    with one.transaction() as txn:
        txn.reserve("a", 10)
        txn.reserve("b", 5)
        txn.reserve("a", 7)
    with two.transaction() as txn:
        assert (txn.reserved(besides="a"), txn.reserved(besides="b")) == (5, 7)
        txn.forget_owner("a")
        assert txn.owners() == ("b",)


def test_bytes_written_are_summed_over_the_last_24_hours(pair: tuple[Index, Index]) -> None:
    one, two = pair
    now = 1000 * HOUR
    for hours_ago in (0, 1, 23, 24, 60):
        with one.transaction() as txn:
            txn.count_written(now - hours_ago * HOUR, 10**hours_ago if hours_ago < 3 else 1000)
    assert two.written_since(now) == 1 + 10 + 1000


def test_tokens_and_models_are_kept(pair: tuple[Index, Index]) -> None:
    one, two = pair
    put(one, row(1))
    with one.transaction() as txn:
        txn.describe(Model(b"f", "name", "{}"))
        txn.describe(Model(b"f", "new name", "{}"))
    assert two.tokens([row(1).key, row(2).key]) == (b"packed", None)
    assert two.models() == (Model(b"f", "new name", "{}"),)


def test_what_is_no_index_is_broken_and_what_is_locked_is_trouble(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(IndexBroken):
        Index(tmp_path / "bad")
    path = tmp_path / "index.sqlite"
    Index(path).close()
    held = sqlite3.connect(path, isolation_level=None)
    impatient = Index(path, busy_seconds=0.01)
    held.execute("BEGIN IMMEDIATE")
    with pytest.raises(DiskTrouble), impatient.transaction():
        pass
    held.close()


def test_another_schema_version_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    Index(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(IndexBroken, match="99"):
        Index(path)


def test_a_replaced_file_is_noticed(tmp_path: Path) -> None:
    index = Index(tmp_path / "index.sqlite")
    assert not index.is_replaced()
    (tmp_path / "index.sqlite").rename(tmp_path / "old")
    assert index.is_replaced()
    Index(tmp_path / "index.sqlite").close()
    assert index.is_replaced()
    index.close()
