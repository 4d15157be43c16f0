"""Files of a cache folder: immutable, one an entry. Temp file, fsync, rename, fsync folder; readable by their owner alone.

FOLDER/index.sqlite          derived (index.py)
FOLDER/owners/TOKEN          locked by the process that uses the folder; free = that process is dead
FOLDER/quarantine/           damaged and foreign files, the newest 16
FOLDER/FINGERPRINT/ID.block, ID.checkpoint, .tmp-TOKEN-N
"""

import fcntl
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kvcache.entry import Payload
from kvcache.facts import EntryKind
from kvcache.format import MAX_HEADER, Header, check_size, pack, unpack

DISK_BLOCK = 4096
QUARANTINE_KEPT = 16
SYNC_THREADS = 4
"""fsyncs in flight: each waits for a journal commit that the others share (16 files of 768 KiB: 65 ms one by one, 14 ms so)."""
_ENTRY_NAME = re.compile(r"([0-9a-f]{32})\.(block|checkpoint)")
_MODEL_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Staged:
    """A file that is complete but not visible yet."""

    temp: Path
    final: Path
    nbytes: int


@dataclass(frozen=True, slots=True)
class Found:
    """An entry file seen in a folder; nothing of it was read."""

    kind: EntryKind
    fingerprint: bytes
    id: bytes
    path: Path


class Files:
    """The folder of one cache, as one process sees it. Methods raise OSError as the system does."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder if need be and takes an owner token, so that others can tell our temp files from leftovers."""
        self.folder = folder
        self.token = secrets.token_hex(8)
        self._temps = 0
        self._owner = self._settle_in()

    def resettle(self) -> None:
        """Makes the folder and our token anew when somebody deleted them under us; else nothing happens."""
        if not (self.folder / "owners" / self.token).exists():
            os.close(self._owner)
            self._owner = self._settle_in()

    def _settle_in(self) -> int:
        """Makes what is missing; returns the descriptor that holds our token's lock."""
        for path in (self.folder, self.folder / "owners", self.folder / "quarantine"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
        with self.alone():  # else another process could take the token for a dead one before it is locked
            owner = os.open(self.folder / "owners" / self.token, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(owner, fcntl.LOCK_EX)
        return owner

    def close(self) -> None:
        """Gives the token back; must be called with no write under way."""
        (self.folder / "owners" / self.token).unlink(missing_ok=True)
        os.close(self._owner)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Held while a process opens, rebuilds or sweeps: two must not do that at once. Not re-entrant."""
        lock = os.open(self.folder / "owners" / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def path(self, kind: EntryKind, fingerprint: bytes, id: bytes) -> Path:
        return self.folder / fingerprint.hex() / f"{id.hex()}.{kind.value}"

    def stage(self, header: Header, stored: Payload) -> Staged:
        """Writes one entry into a temp file, not synced yet. The temp file is removed when that fails."""
        final = self.path(header.kind, header.fingerprint, header.id)
        final.parent.mkdir(mode=0o700, exist_ok=True)
        self._temps += 1
        temp = final.parent / f".tmp-{self.token}-{self._temps}"
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _write_all(fd, [pack(header), stored])
        except BaseException:
            temp.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        return Staged(temp, final, header.file_bytes)

    def publish(self, batch: Sequence[Staged]) -> None:
        """Syncs the files, renames them into place and syncs their folders: after this they survive a power cut.

        On an error the temp files that are left are removed; those already renamed are complete and stay.
        """
        try:
            with ThreadPoolExecutor(SYNC_THREADS) as pool:
                list(pool.map(_sync, [item.temp for item in batch]))
            for item in batch:
                item.temp.rename(item.final)
            for parent in {item.final.parent for item in batch}:
                _sync(parent)
        except BaseException:
            self.unstage(batch)
            raise

    def unstage(self, batch: Sequence[Staged]) -> None:
        for item in batch:
            item.temp.unlink(missing_ok=True)

    def remove(self, kind: EntryKind, fingerprint: bytes, id: bytes) -> None:
        self.path(kind, fingerprint, id).unlink(missing_ok=True)

    def read_header(self, path: Path) -> Header:
        """The proved header of a file of the right length; the payload is not read. Raises DamagedEntry, OSError."""
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            head = os.pread(file.fileno(), 4096, 0)
            if len(head) == 4096 < size:
                head += os.pread(file.fileno(), MAX_HEADER, 4096)[: _long_header(head)]
        header = unpack(head, path.name)
        check_size(header, size, path.name)
        return header

    def models(self) -> tuple[bytes, ...]:
        """Fingerprints that have a folder here."""
        return tuple(bytes.fromhex(e.name) for e in os.scandir(self.folder) if _MODEL_NAME.fullmatch(e.name) and e.is_dir())

    def found(self, fingerprint: bytes) -> Iterator[Found | Path]:
        """Entry files of one model; a name that is none of ours comes as a plain path. Live temp files are skipped."""
        with os.scandir(self.folder / fingerprint.hex()) as entries:
            for entry in entries:
                name = _ENTRY_NAME.fullmatch(entry.name)
                if name:
                    yield Found(EntryKind(name[2]), fingerprint, bytes.fromhex(name[1]), Path(entry.path))
                elif not entry.name.startswith(".tmp-"):
                    yield Path(entry.path)

    def owners(self) -> tuple[str, ...]:
        """Tokens of all processes on this folder, dead ones that were not buried yet included."""
        return tuple(entry.name for entry in os.scandir(self.folder / "owners") if not entry.name.startswith("."))

    def dead_owners(self) -> tuple[str, ...]:
        """Tokens whose process is gone. Their temp files and reservations are leftovers."""
        return tuple(token for token in self.owners() if token != self.token and self._is_dead(token))

    def bury_dead(self) -> tuple[str, ...]:
        """Removes what processes left that died since the folder was opened; names their tokens."""
        if len(self.owners()) < 2:
            return ()
        with self.alone():
            dead = self.dead_owners()
            for token in dead:
                self.bury(token)
        return dead

    def bury(self, token: str) -> int:
        """Removes what a dead process left behind; returns how many temp files that were."""
        left = [path for model in self.models() for path in (self.folder / model.hex()).glob(f".tmp-{token}-*")]
        for path in left:
            path.unlink(missing_ok=True)
        (self.folder / "owners" / token).unlink(missing_ok=True)
        return len(left)

    def sweep_orphans(self) -> int:
        """Removes temp files whose owner has no token file any more; returns how many."""
        known = self.owners()
        orphans = [
            path
            for model in self.models()
            for path in (self.folder / model.hex()).glob(".tmp-*")
            if path.name.split("-")[1] not in known
        ]
        for path in orphans:
            path.unlink(missing_ok=True)
        return len(orphans)

    def set_aside(self, path: Path) -> None:
        """Moves a damaged or foreign file into quarantine and forgets the oldest there beyond 16. Missing is fine."""
        target = self.folder / "quarantine" / f"{path.parent.name[:8]}-{path.name}"
        with suppress(FileNotFoundError):
            path.rename(target)
            os.utime(target)
        kept = sorted(os.scandir(target.parent), key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
        for entry in kept[QUARANTINE_KEPT:]:
            Path(entry.path).unlink(missing_ok=True)

    def quarantined(self) -> tuple[int, int]:
        """(files, bytes) in quarantine; the bytes count against the budget."""
        try:
            sizes = [disk_bytes(entry.stat().st_size) for entry in os.scandir(self.folder / "quarantine")]
        except FileNotFoundError:
            return 0, 0  # somebody is deleting
        return len(sizes), sum(sizes)

    def _is_dead(self, token: str) -> bool:
        try:
            fd = os.open(self.folder / "owners" / token, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            return True
        finally:
            os.close(fd)


def disk_bytes(nbytes: int) -> int:
    """What a file of that length takes on a file system with 4 KiB blocks."""
    return -(-nbytes // DISK_BLOCK) * DISK_BLOCK


def _long_header(head: bytes) -> int:
    return max(0, int.from_bytes(head[168:172], "little") - len(head))


def _write_all(fd: int, parts: Sequence[Payload]) -> None:
    views = [memoryview(part).cast("B") for part in parts]
    while views:
        written = os.writev(fd, views)
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if views:
            views[0] = views[0][written:]


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
