"""Files of a cache folder: complete or invisible, owned by a living process or swept."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kvcache.entry import Block
from kvcache.errors import DamagedEntry
from kvcache.facts import EntryKind
from kvcache.files import QUARANTINE_KEPT, Files, Found, disk_bytes
from kvcache.format import CodecId, Header, checksum, header_of
from tests.kvcache.material import FINGERPRINT, GRID, blocks_of, tokens

DIES_HOLDING_A_TOKEN = """
import os, sys
from pathlib import Path
from kvcache.files import Files
files = Files(Path(sys.argv[1]))
print(files.token, flush=True)
(Path(sys.argv[1]) / sys.argv[2] / f".tmp-{files.token}-1").write_bytes(b"half")
os._exit(1)
"""


def header_for(block: Block) -> Header:
    return header_of(block, FINGERPRINT, CodecId.RAW, block.payload, checksum(block.payload))


def store_one(files: Files, block: Block) -> Path:
    staged = files.stage(header_for(block), block.payload)
    assert not staged.final.exists()
    files.publish([staged])
    return staged.final


def test_a_staged_file_is_invisible_until_it_is_published(tmp_path: Path) -> None:
    files, block = Files(tmp_path), blocks_of(tokens(GRID))[0]
    final = store_one(files, block)
    assert [found.id for found in files.found(FINGERPRINT) if isinstance(found, Found)] == [block.id]
    assert stat.S_IMODE(final.stat().st_mode) == 0o600
    files.close()


@pytest.mark.parametrize("count", [1, 64, 980, 981, 5000])
def test_a_header_of_any_length_is_read_without_the_payload(tmp_path: Path, count: int) -> None:
    files, block = Files(tmp_path), blocks_of(tokens(count), 9000, grid=count)[0]
    assert files.read_header(store_one(files, block)) == header_for(block)
    files.close()


def test_the_header_of_a_file_of_the_wrong_length_is_refused(tmp_path: Path) -> None:
    files, block = Files(tmp_path), blocks_of(tokens(GRID), 9000)[0]
    path = store_one(files, block)
    os.truncate(path, 9000)
    with pytest.raises(DamagedEntry, match="its header says"):
        files.read_header(path)
    files.close()


def test_a_batch_that_cannot_be_published_leaves_no_temp_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(tmp_path)
    staged = [files.stage(header_for(block), block.payload) for block in blocks_of(tokens(3 * GRID))]
    real = os.fsync

    def fails(fd: int) -> None:
        real(fd)
        raise OSError(5, "the disk gave up")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="gave up"):
        files.publish(staged)
    assert list((tmp_path / FINGERPRINT.hex()).iterdir()) == []
    files.close()


def test_leftovers_of_the_dead_are_told_from_files_of_the_living(tmp_path: Path) -> None:
    files, living = Files(tmp_path), Files(tmp_path)
    store_one(files, blocks_of(tokens(GRID))[0])
    living.stage(header_for(blocks_of(tokens(GRID, seed=1))[0]), b"x" * 100)
    command = [sys.executable, "-c", DIES_HOLDING_A_TOKEN, str(tmp_path), FINGERPRINT.hex()]
    root = Path(__file__).parent.parent.parent
    dead = subprocess.run(command, capture_output=True, text=True, cwd=root).stdout.strip()
    assert dead in files.owners()
    assert files.dead_owners() == (dead,)
    assert files.bury_dead() == (dead,)
    assert sorted(path.name.split("-")[1] for path in tmp_path.rglob(".tmp-*")) == [living.token]
    assert set(files.owners()) == {files.token, living.token}
    living.close()
    assert files.sweep_orphans() == 1
    files.close()


def test_quarantine_keeps_the_newest_and_their_bytes_are_counted(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for number in range(QUARANTINE_KEPT + 5):
        path = tmp_path / f"damaged-{number}"
        path.write_bytes(b"x" * 5000)
        os.utime(path, (number, number))
        files.set_aside(path)
    files.set_aside(tmp_path / "never there")
    count, nbytes = files.quarantined()
    assert (count, nbytes) == (QUARANTINE_KEPT, QUARANTINE_KEPT * 8192)
    files.close()


def test_a_name_that_is_not_ours_is_told_from_entries(tmp_path: Path) -> None:
    files = Files(tmp_path)
    path = store_one(files, blocks_of(tokens(GRID))[0])
    (path.parent / f"{'0' * 31}g.block").write_bytes(b"")
    (path.parent / f"{'0' * 32}.blob").write_bytes(b"")
    (tmp_path / "not a model").mkdir()
    found = list(files.found(FINGERPRINT))
    assert sum(isinstance(each, Found) and each.kind is EntryKind.BLOCK for each in found) == 1
    assert len(found) == 3
    assert files.models() == (FINGERPRINT,)
    files.close()


@pytest.mark.parametrize(("nbytes", "taken"), [(0, 0), (1, 4096), (4096, 4096), (4097, 8192)])
def test_a_file_takes_whole_disk_blocks(nbytes: int, taken: int) -> None:
    assert disk_bytes(nbytes) == taken
