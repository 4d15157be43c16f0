"""Several processes park, read and evict in one folder at the same time; run as a script this file is one of them."""

import random
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread

from kvcache.admin import GRACE_SECONDS, listing, verify
from kvcache.errors import EntryGone
from kvcache.facts import EntryKind
from kvcache.folder import open_folder, split_key
from tests.kvcache.material import GRID, MIB, blocks_of, checkpoint_at, disk_store, disk_use, entry_files, park, tokens

PROMPTS = [tokens(2 * GRID) + tokens(4 * GRID, seed=seed) for seed in range(1, 9)]
"""Eight conversations on one system prompt: 2 + 8 * 4 blocks."""
TIGHT = MIB + 20 * 4736


def worker(folder: Path, budget: int, seed: int, rounds: int) -> None:
    """Parks and reads at random; anything but the right bytes or a plain miss ends it with an error."""
    draw = random.Random(seed)
    store = disk_store(folder, disk=budget, ram=0 if seed % 2 else MIB)
    for _ in range(rounds):
        prompt = draw.choice(PROMPTS)
        park(store, prompt, len(prompt))
        wanted = draw.choice(PROMPTS)
        match = store.match(wanted)
        try:
            assert list(store.restore(match, match.stored)) == blocks_of(wanted)[: match.stored // GRID]
            for ref in match.checkpoints:
                assert store.load_checkpoint(ref) == checkpoint_at(wanted, ref.position)
        except EntryGone:
            pass  # another process evicted it between match and load
        assert store.stats().disk.used <= budget
    stats = store.stats()
    assert stats.damaged == 0, stats
    assert stats.disk_detail is not None
    assert stats.disk_detail.warning is None, stats.disk_detail.warning
    store.close()


def run_two(folder: Path, budget: int, rounds: int) -> int:
    """Runs two workers at once and returns the most bytes the folder held while they ran."""
    command = [sys.executable, "-m", "tests.kvcache.test_processes", str(folder), str(budget)]
    root = Path(__file__).parent.parent.parent
    running = [
        subprocess.Popen([*command, str(seed), str(rounds)], stderr=subprocess.PIPE, text=True, cwd=root) for seed in (1, 2)
    ]
    most = 0
    while any(process.poll() is None for process in running):
        most = max(most, disk_use(folder))
        time.sleep(0.002)
    for process in running:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    return most


def test_two_processes_share_what_each_parks_and_store_it_once(tmp_path: Path) -> None:
    run_two(tmp_path, 64 * MIB, rounds=12)
    store = disk_store(tmp_path)
    blocks = [entry.id for entry in store.entries() if entry.kind.value == "block"]
    assert len(blocks) == len(set(blocks)) <= 2 + 8 * 4
    assert store.check().ok
    store.close()
    assert [path.name for path in (tmp_path / "owners").iterdir()] == [".lock"]


def test_two_processes_together_never_exceed_the_disk_budget(tmp_path: Path) -> None:
    assert run_two(tmp_path, TIGHT, rounds=12) <= TIGHT
    assert len(entry_files(tmp_path)) <= 20
    store = disk_store(tmp_path, disk=TIGHT)
    assert store.check().ok
    store.close()


def test_an_eviction_that_takes_its_time_is_no_row_without_a_file(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    park(store, PROMPTS[0], len(PROMPTS[0]))
    store.close()
    folder, other = open_folder(tmp_path), open_folder(tmp_path)
    key = next(row.key for row in listing(folder) if row.kind is EntryKind.CHECKPOINT)
    begun = Event()

    def evict() -> None:
        with other.index.transaction() as txn:
            txn.delete([(EntryKind.CHECKPOINT, key)])
            other.files.remove(EntryKind.CHECKPOINT, *split_key(key))
            begun.set()
            time.sleep(2 * GRACE_SECONDS)

    thread = Thread(target=evict)
    thread.start()
    begun.wait()
    report = verify(folder)
    thread.join()
    assert report.ok, report.problems
    folder.close()
    other.close()


def test_verifying_beside_a_process_that_parks_and_evicts_finds_nothing_wrong(tmp_path: Path) -> None:
    store = disk_store(tmp_path, disk=TIGHT)
    done = Event()

    def keep_parking() -> None:
        while not done.is_set():
            for prompt in PROMPTS:
                park(store, prompt, len(prompt))

    thread = Thread(target=keep_parking)
    thread.start()
    try:
        reports = [store.check() for _ in range(15)]
    finally:
        done.set()
        thread.join()
    assert [report.problems for report in reports if not report.ok] == []
    store.close()


if __name__ == "__main__":
    worker(Path(sys.argv[1]), *(int(argument) for argument in sys.argv[2:]))
