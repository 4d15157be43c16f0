"""What the disk tier adds to the contract: restarts, sharing, damage, identity, wear."""

import json
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvcache import disk
from kvcache.batch import Outgoing
from kvcache.chain import chain_ids
from kvcache.config import CacheConfig
from kvcache.entry import Tier
from kvcache.errors import DamagedEntry, EntryGone
from kvcache.index import Index
from kvcache.store import Store
from tests.kvcache.material import (
    FINGERPRINT,
    GRID,
    MIB,
    ROOT,
    blocks_of,
    checkpoint_at,
    disk_store,
    disk_use,
    entry_files,
    park,
    tokens,
)


def restored(store: Store, prompt: tuple[int, ...]) -> int:
    """Loads everything a match names, compares it with what was parked, and returns how many tokens were stored."""
    match = store.match(prompt)
    assert list(store.restore(match, match.stored)) == blocks_of(prompt)[: match.stored // GRID]
    for ref in match.checkpoints:
        assert store.load_checkpoint(ref) == checkpoint_at(prompt, ref.position)
    return match.stored


def test_after_a_restart_everything_is_there_byte_for_byte(tmp_path: Path) -> None:
    prompt = tokens(9 * GRID + 1)
    store = disk_store(tmp_path, ram=MIB)
    park(store, prompt, 4 * GRID, 9 * GRID)
    store.close()
    again = disk_store(tmp_path)
    match = again.match(prompt)
    assert {ref.tier for ref in (*match.blocks, *match.checkpoints)} == {Tier.DISK}
    assert [ref.position for ref in match.checkpoints] == [4 * GRID, 9 * GRID]
    assert restored(again, prompt) == 9 * GRID
    again.close()


def test_without_close_what_was_flushed_is_there(tmp_path: Path) -> None:
    prompt = tokens(5 * GRID)
    park(disk_store(tmp_path), prompt, 5 * GRID)
    again = disk_store(tmp_path)
    assert restored(again, prompt) == 5 * GRID
    again.close()


def test_an_answer_trimmed_or_missing_resumes_at_the_deepest_checkpoint_before_the_change(tmp_path: Path) -> None:
    prompt = tokens(10 * GRID)
    store = disk_store(tmp_path)
    park(store, prompt, 6 * GRID, 8 * GRID, 10 * GRID)
    store.close()
    again = disk_store(tmp_path)
    for changed in (prompt[: 10 * GRID - 1], (*prompt[: 9 * GRID], 1), prompt[: 8 * GRID]):
        match = again.match(changed)
        assert max(ref.position for ref in match.checkpoints if ref.position <= match.stored) == 8 * GRID
    again.close()


def test_a_short_prompt_is_not_written_until_its_conversation_grows(tmp_path: Path) -> None:
    prompt = tokens(8 * GRID)
    store = disk_store(tmp_path, ram=MIB, park_min_tokens=6 * GRID)
    park(store, prompt[: 5 * GRID], 3 * GRID)
    assert entry_files(tmp_path) == []
    park(store, prompt, 7 * GRID)
    assert len(entry_files(tmp_path)) == 8 + 2
    store.close()


def test_files_and_folders_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    store = disk_store(tmp_path / "cache")
    park(store, tokens(3 * GRID), 3 * GRID)
    for path in [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    store.close()


def test_a_missing_or_broken_index_is_rebuilt_from_the_files(tmp_path: Path) -> None:
    prompt = tokens(6 * GRID)
    store = disk_store(tmp_path)
    park(store, prompt, 6 * GRID)
    store.close()
    for damage in (lambda p: p.unlink(), lambda p: p.write_bytes(b"no index at all" * 999), lambda p: p.write_bytes(b"")):
        damage(tmp_path / "index.sqlite")
        again = disk_store(tmp_path)
        assert restored(again, prompt) == 6 * GRID
        again.close()


def test_an_index_that_lies_about_files_is_put_right_on_open(tmp_path: Path) -> None:
    prompt, other = tokens(4 * GRID), tokens(4 * GRID, seed=1)
    store = disk_store(tmp_path)
    park(store, prompt, 4 * GRID)
    park(store, other, 4 * GRID)
    store.close()
    kept = [path for path in entry_files(tmp_path) if path.name.split(".")[0] not in {b.id.hex() for b in blocks_of(other)}]
    for path in set(entry_files(tmp_path)) - set(kept):
        path.unlink()
    again = disk_store(tmp_path)
    assert again.match(other).stored == 0
    assert restored(again, prompt) == 4 * GRID
    assert again.check().ok
    again.close()


def test_another_fingerprint_sees_nothing_and_both_live_in_one_folder(tmp_path: Path) -> None:
    prompt = tokens(4 * GRID)
    one, two = disk_store(tmp_path), disk_store(tmp_path, fingerprint=bytes(16))
    park(one, prompt, 4 * GRID)
    assert two.match(prompt).ids
    assert two.match(prompt).stored == 0
    assert two.children(ROOT) == ()
    park(two, prompt)
    assert two.match(prompt).stored == 4 * GRID
    one.close()
    two.close()


def test_a_file_moved_under_another_models_name_is_refused(tmp_path: Path) -> None:
    prompt = tokens(GRID)
    store = disk_store(tmp_path)
    park(store, prompt)
    store.close()
    (tmp_path / FINGERPRINT.hex()).rename(tmp_path / bytes(16).hex())
    other = disk_store(tmp_path, fingerprint=bytes(16))
    assert other.match(prompt).stored == 0
    assert other.stats().damaged == 1
    other.close()


def test_two_stores_on_one_folder_see_each_others_entries(tmp_path: Path) -> None:
    prompt = tokens(6 * GRID)
    one, two = disk_store(tmp_path), disk_store(tmp_path)
    assert two.match(prompt).stored == 0
    park(one, prompt[: 3 * GRID], 3 * GRID)
    assert restored(two, prompt) == 3 * GRID
    park(two, prompt, 6 * GRID)
    assert restored(one, prompt) == 6 * GRID
    assert len(entry_files(tmp_path)) == 8
    one.remove()
    assert two.match(prompt).stored == 0
    one.close()
    two.close()


def test_what_another_process_deleted_is_a_miss_and_not_a_fault(tmp_path: Path) -> None:
    prompt = tokens(3 * GRID)
    one, two = disk_store(tmp_path), disk_store(tmp_path)
    park(one, prompt, 3 * GRID)
    match = two.match(prompt)
    one.remove()
    with pytest.raises(EntryGone):
        list(two.restore(match, 3 * GRID))
    assert two.stats().damaged == 0
    one.close()
    two.close()


def test_a_damaged_file_is_set_aside_once_and_the_shorter_prefix_still_serves(tmp_path: Path) -> None:
    prompt = tokens(5 * GRID)
    store = disk_store(tmp_path)
    park(store, prompt, 2 * GRID, 5 * GRID)
    path = tmp_path / FINGERPRINT.hex() / f"{chain_ids(ROOT, prompt, GRID)[3].hex()}.block"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    match = store.match(prompt)
    with pytest.raises(DamagedEntry):
        list(store.restore(match, 5 * GRID))
    assert restored(store, prompt) == 3 * GRID
    assert not path.exists()
    stats = store.stats()
    assert (stats.damaged, stats.disk_detail.quarantined if stats.disk_detail else 0) == (1, 1)
    park(store, prompt)
    assert restored(store, prompt) == 5 * GRID
    store.close()


def test_foreign_files_and_leftovers_of_the_dead_are_swept_on_open(tmp_path: Path) -> None:
    prompt = tokens(2 * GRID)
    store = disk_store(tmp_path)
    park(store, prompt)
    store.close()
    folder = tmp_path / FINGERPRINT.hex()
    (folder / ".tmp-0123456789abcdef-1").write_bytes(b"half a file")
    (folder / "notes.txt").write_text("mine")
    (folder / f"{'ab' * 16}.block").write_bytes(b"not what it says")
    again = disk_store(tmp_path)
    assert sorted(path.suffix for path in entry_files(tmp_path)) == [".block", ".block"]
    assert not list(folder.glob(".tmp-*"))
    assert again.stats().damaged == 2
    assert restored(again, prompt) == 2 * GRID
    again.close()
    third = disk_store(tmp_path)
    assert third.stats().damaged == 0
    third.close()


def test_quarantine_keeps_a_bounded_number_of_files(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    park(store, tokens(40 * GRID))
    store.close()
    for path in entry_files(tmp_path):
        path.write_bytes(b"x" * 10)
    (tmp_path / "index.sqlite").unlink()
    again = disk_store(tmp_path)
    assert again.stats().damaged == 40
    assert len(list((tmp_path / "quarantine").iterdir())) == 16
    again.close()


def test_the_disk_budget_holds_and_the_most_recent_conversation_survives(tmp_path: Path) -> None:
    budget = MIB + 40 * (4096 + 640)
    store = disk_store(tmp_path, disk=budget)
    for seed in range(30):
        park(store, tokens(4 * GRID, seed=seed), 4 * GRID)
        assert store.stats().disk.used <= budget
        assert len(entry_files(tmp_path)) <= 40
    assert restored(store, tokens(4 * GRID, seed=29)) == 4 * GRID
    assert store.match(tokens(4 * GRID, seed=0)).stored == 0
    assert store.stats().disk.evictions > 0
    assert store.check().ok
    store.close()


def test_a_pinned_checkpoint_outlives_unpinned_newer_ones_over_a_restart(tmp_path: Path) -> None:
    budget = MIB + 12 * (4096 + 640)
    store = disk_store(tmp_path, disk=budget)
    prompt = tokens(2 * GRID)
    park(store, prompt, 2 * GRID)
    store.pin(chain_ids(ROOT, prompt, GRID)[1])
    store.close()
    again = disk_store(tmp_path, disk=budget)
    for seed in range(1, 20):
        park(again, tokens(3 * GRID, seed=seed), 3 * GRID)
    assert restored(again, prompt) == 2 * GRID
    again.close()


def test_a_use_counts_for_the_whole_chain_under_it(tmp_path: Path) -> None:
    budget = MIB + 8 * (4096 + 640)
    store = disk_store(tmp_path, disk=budget)
    old, newer = tokens(3 * GRID), tokens(3 * GRID, seed=1)
    park(store, old, 3 * GRID)
    park(store, newer, 3 * GRID)
    assert restored(store, old) == 3 * GRID
    park(store, tokens(3 * GRID, seed=2), 3 * GRID)
    assert restored(store, old) == 3 * GRID
    assert store.match(newer).stored == 0
    store.close()


def test_bytes_written_are_metered_over_processes_and_bounded(tmp_path: Path) -> None:
    bound = 30 * (4096 + 640)
    store = disk_store(tmp_path, write_bytes_per_day=bound)
    park(store, tokens(20 * GRID))
    store.close()
    again = disk_store(tmp_path, ram=MIB, write_bytes_per_day=bound)
    more = tokens(20 * GRID, seed=1)
    park(again, more)
    detail = again.stats().disk_detail
    assert detail is not None
    assert detail.written_today == 20 * (4096 + 640)
    assert detail.warning is not None
    assert "24 hours" in detail.warning
    assert again.match(more).stored == 20 * GRID
    assert len(entry_files(tmp_path)) == 20
    again.close()


def test_a_folder_that_cannot_be_used_leaves_the_ram_tier_serving(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = Store(CacheConfig(ram_bytes=MIB, disk_bytes=MIB, dir=tmp_path / "file" / "cache", grid=GRID), ROOT, True)
    assert not store.identify(FINGERPRINT)
    prompt = tokens(3 * GRID)
    park(store, prompt)
    assert store.match(prompt).stored == 3 * GRID
    detail = store.stats().disk_detail
    assert detail is not None
    assert detail.warning is not None
    store.close()


def test_what_was_parked_before_the_weights_were_known_reaches_the_disk_afterwards(tmp_path: Path) -> None:
    config = CacheConfig(ram_bytes=MIB, disk_bytes=64 * MIB, dir=tmp_path, grid=GRID, park_min_tokens=2 * GRID)
    store = Store(config, ROOT, needs_checkpoint=True)
    prompt = tokens(4 * GRID)
    park(store, prompt, 4 * GRID)
    assert not (tmp_path / FINGERPRINT.hex()).exists()
    assert store.identify(FINGERPRINT)
    store.flush()
    assert len(entry_files(tmp_path)) == 5
    store.close()


def test_removing_a_prefix_takes_what_stands_on_it_and_nothing_else(tmp_path: Path) -> None:
    store = disk_store(tmp_path, ram=MIB)
    prompt = tokens(6 * GRID)
    branch = prompt[: 3 * GRID] + tokens(2 * GRID, seed=1)
    park(store, prompt, 6 * GRID)
    park(store, branch, 5 * GRID)
    assert store.remove(chain_ids(ROOT, prompt, GRID)[3]) == 2 * (3 + 1)
    assert store.match(prompt).stored == 3 * GRID
    assert restored(store, branch) == 5 * GRID
    assert store.remove() > 0
    assert entry_files(tmp_path) == []
    store.close()


def test_labels_sessions_and_flags_are_listed_from_disk(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    prompt = tokens(GRID)
    store.park_block(blocks_of(prompt)[0], session="alpha")
    store.park_checkpoint(checkpoint_at(prompt, GRID), pinned=True, kind="system_end", session="alpha")
    store.flush()
    block, checkpoint = store.entries()
    assert (block.tier, block.session, block.label) == (Tier.DISK, "alpha", "")
    assert (checkpoint.label, checkpoint.pinned, checkpoint.position) == ("system_end", True, GRID)
    store.close()


@pytest.mark.parametrize("codec", ["raw", "zstd", "auto"])
def test_every_codec_gives_back_the_same_bytes(tmp_path: Path, codec: str) -> None:
    prompt = tokens(20 * GRID)
    store = disk_store(tmp_path, codec=codec)
    compressible = [type(b)(b.id, b.parent, b.start, b.tokens, b.payload * 50, b.canonical) for b in blocks_of(prompt)]
    for block in compressible:
        store.park_block(block)
    store.flush()
    match = store.match(prompt)
    assert list(store.restore(match, 20 * GRID)) == compressible
    assert store.check().ok
    store.close()


def test_the_index_remembers_what_a_model_was(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    store.close()
    index = Index(tmp_path / "index.sqlite")
    [model] = index.models()
    assert (model.fingerprint, model.name, json.loads(model.settings)) == (FINGERPRINT, "test model", {})
    index.close()


def test_no_process_leaves_its_token_behind_after_close(tmp_path: Path) -> None:
    disk_store(tmp_path).close()
    assert [path.name for path in (tmp_path / "owners").iterdir()] == [".lock"]


def test_a_conversation_that_grows_for_13_turns_is_stored_and_written_once(tmp_path: Path) -> None:
    """The sizes are the tiny model's, where overhead weighs most: 64 KiB a block of 64 tokens, 234 KB a checkpoint."""
    store, prompt, state = disk_store(tmp_path, ram=32 * MIB, grid=64), tokens(5000), 0
    blocks = blocks_of(prompt, 65_536, grid=64)
    for turn in range(1, 14):
        end = 5000 * turn // 13 // 64 * 64
        new = [block for block in blocks[: end // 64] if not store.has_block(block.id)]
        for block in new:
            store.park_block(block)
        last = checkpoint_at(prompt, end, 233_644, grid=64)
        store.park_checkpoint(last, kind="turn_end")
        state += sum(block.nbytes for block in new) + last.nbytes
        store.flush()
    detail = store.stats().disk_detail
    assert detail is not None
    assert detail.written_bytes <= 1.2 * state
    store.close()
    assert disk_use(tmp_path) <= 1.1 * state


def test_a_checkpoint_pinned_while_it_is_written_is_pinned_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, prompt = disk_store(tmp_path, ram=MIB), tokens(GRID)
    write = disk.DiskTier.write

    def pins_first(tier: disk.DiskTier, batch: Sequence[Outgoing]) -> None:
        store.pin(chain_ids(ROOT, prompt, GRID)[0])
        write(tier, batch)

    monkeypatch.setattr(disk.DiskTier, "write", pins_first)
    park(store, prompt, GRID)
    store.close()
    again = disk_store(tmp_path)
    assert [entry.pinned for entry in again.entries()] == [False, True]
    again.close()


def test_a_folder_deleted_under_a_server_is_made_anew(tmp_path: Path) -> None:
    store = disk_store(tmp_path / "cache", ram=MIB)
    first, second = tokens(3 * GRID), tokens(3 * GRID, seed=1)
    park(store, first, 3 * GRID)
    shutil.rmtree(tmp_path / "cache")
    assert restored(store, first) == 3 * GRID
    assert store.stats().disk_detail is not None
    park(store, second, 3 * GRID)
    store.close()
    again = disk_store(tmp_path / "cache")
    assert restored(again, second) == 3 * GRID
    assert again.check().ok
    again.close()


def test_an_entry_larger_than_the_budget_is_refused_and_evicts_nothing(tmp_path: Path) -> None:
    store, prompt = disk_store(tmp_path, disk=MIB + 4 * 4736, ram=MIB), tokens(2 * GRID)
    park(store, prompt)
    store.park_checkpoint(checkpoint_at(prompt, 2 * GRID, 100_000))
    store.flush()
    assert len(entry_files(tmp_path)) == 2
    assert store.stats().disk.refused == 1
    store.close()
