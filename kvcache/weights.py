"""Which model a file is: a hash of all its bytes, computed once in the background, remembered while the file is untouched."""

import json
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread

from xxhash import xxh3_128

CHUNK = 4 << 20
MEMORY_NAME = "weights.json"
MOST_REMEMBERED = 256
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sighting:
    """What the system says of a file without reading it. ctime is in it because mtime can be set back; ctime cannot."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int


class Interrupted(Exception):
    """Hashing was stopped, or the file changed while it was read."""


class Weights:
    """Hashes of model files, remembered in `folder`/weights.json. A moved or touched file is hashed again and matches."""

    def __init__(self, folder: Path) -> None:
        self._memory = folder / MEMORY_NAME

    def known(self, path: Path) -> bytes | None:
        """The 16-byte hash of a file that has not changed since it was hashed; None when it must be (re)read. Raises OSError."""
        found = self._remembered().get(_key(sight(path)))
        return bytes.fromhex(found) if found else None

    def measure(self, path: Path, stop: Event | None = None, progress: Callable[[int, int], None] | None = None) -> bytes:
        """Hashes a file (xxh3-128 of all bytes, its length first) and remembers it. Raises OSError, Interrupted.

        `progress` gets (bytes done, bytes in all).
        """
        before = sight(path)
        digest = _hash(path, before.size, stop, progress)
        if sight(path) != before:
            raise Interrupted(f"{path} changed while it was read")
        self._remember(before, digest)
        return digest

    def identify(self, path: Path, known: Callable[[bytes], None], stop: Event | None = None) -> Thread | None:
        """Calls `known` with the hash: at once when it is remembered, else from a thread of its own that is returned.

        A file that cannot be read, or changes meanwhile, is logged and `known` is not called: nothing is parked then.
        """
        digest = self.known(path)
        if digest is not None:
            known(digest)
            return None
        thread = Thread(target=self._measure_for, args=(path, known, stop), name="kvalet-weights", daemon=True)
        thread.start()
        return thread

    def _measure_for(self, path: Path, known: Callable[[bytes], None], stop: Event | None) -> None:
        try:
            known(self.measure(path, stop))
        except (OSError, Interrupted) as error:
            log.warning("parking to disk stays off, the model file has no hash: %s", error)

    def _remembered(self) -> dict[str, str]:
        try:
            found = json.loads(self._memory.read_text())
        except (OSError, ValueError):
            return {}
        return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}

    def _remember(self, seen: Sighting, digest: bytes) -> None:
        """Adds a line; the file is replaced in one step, so that two processes at worst forget one hash."""
        lines = self._remembered() | {_key(seen): digest.hex()}
        lines = dict(list(lines.items())[-MOST_REMEMBERED:])
        self._memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, temp = tempfile.mkstemp(dir=self._memory.parent, prefix=".weights-")
        with os.fdopen(fd, "w") as file:
            json.dump(lines, file, indent=0)
        Path(temp).replace(self._memory)


def sight(path: Path) -> Sighting:
    """What identifies a file without reading it. Raises OSError."""
    real = path.resolve()
    stat = real.stat()
    return Sighting(str(real), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev)


def _key(seen: Sighting) -> str:
    return json.dumps(asdict(seen), sort_keys=True)


def _hash(path: Path, size: int, stop: Event | None, progress: Callable[[int, int], None] | None) -> bytes:
    digest, done = xxh3_128(size.to_bytes(8, "little")), 0
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        while n := file.readinto(buffer):
            if stop is not None and stop.is_set():
                raise Interrupted(f"hashing {path} was stopped")
            digest.update(buffer[:n])
            done += n
            if progress is not None:
                progress(done, size)
    return bytes(digest.digest())
