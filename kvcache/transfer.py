"""Moving parked state between folders and machines: a tar of entry files, each as it lies in the folder, parents first."""

import io
import json
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from time import time

from kvcache.admin import Progress, chain_of, listing
from kvcache.batch import BatchWriter, Outgoing
from kvcache.config import CacheConfig
from kvcache.errors import DamagedEntry
from kvcache.eviction import by_name
from kvcache.facts import EntryKind
from kvcache.folder import Folder, split_key
from kvcache.format import MAX_HEADER
from kvcache.index import Model
from kvcache.mirror import Mirror
from kvcache.reading import Buffers, parse_entry

MODELS_MEMBER = "models.json"
_MEMBER = re.compile(r"[0-9a-f]{32}/[0-9a-f]{32}\.(block|checkpoint)")
MOST_ENTRY_BYTES = (4 << 30) + MAX_HEADER


@dataclass(frozen=True, slots=True)
class Moved:
    """What an export or import did. `refused`: no room or no parent; `damaged`: bytes that were not what they should be."""

    entries: int
    bytes: int
    refused: int = 0
    damaged: tuple[str, ...] = ()


def export_to(folder: Folder, target: Path, keys: Sequence[bytes] | None = None, progress: Progress | None = None) -> Moved:
    """Writes entries and the chains they stand on into a tar; `keys` (fingerprint + chain id) None means all.

    The tar appears under its name only when it is complete. Files that vanish meanwhile are left out with what stands
    on them being refused at import. Raises OSError.
    """
    rows = listing(folder)
    wanted = chain_of(rows, [row.key for row in rows] if keys is None else keys)
    sizes = {(row.kind, row.key): row.bytes for row in rows}
    total, done, entries = sum(sizes[key] for key in wanted), 0, 0
    part = target.with_name(f".{target.name}.part")
    try:
        with tarfile.open(part, "w") as tar:
            _add_bytes(tar, MODELS_MEMBER, _models_json(folder.index.models()))
            for kind, key in wanted:
                path = folder.files.path(kind, *split_key(key))
                entries += _add_file(tar, path)
                done += sizes[kind, key]
                if progress is not None:
                    progress(done, total)
        part.chmod(0o600)
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    return Moved(entries, target.stat().st_size)


def import_from(archive: Path, config: CacheConfig, progress: Progress | None = None) -> Moved:
    """Adds a tar's entries to the folder `config.dir`, under its budget, every byte proved first.

    Raises OSError, DiskTrouble, and tarfile.TarError for what is no tar. Names in the tar are never used as paths.
    """
    mirror = Mirror(config.dir or Path(), by_name(config.eviction), True, RLock())
    try:
        with tarfile.open(archive, "r:") as tar:
            return _Import(config, mirror, archive.stat().st_size, progress).run(tar)
    finally:
        mirror.close()


class _Import:
    def __init__(self, config: CacheConfig, mirror: Mirror, total: int, progress: Progress | None) -> None:
        self._config, self._mirror, self._total, self._progress = config, mirror, total, progress
        self._writers: dict[bytes, BatchWriter] = {}
        self._buffers = Buffers(spare=8 << 20)
        self._damaged: list[str] = []
        self._entries = self._refused = 0

    def run(self, tar: tarfile.TarFile) -> Moved:
        for member in tar:
            if member.name == MODELS_MEMBER and member.isfile() and member.size < MAX_HEADER:
                self._describe(_read(tar, member))
            else:
                self._take(tar, member)
            if self._progress is not None:
                self._progress(min(self._total, member.offset_data + member.size), self._total)
        written = sum(writer.written for writer in self._writers.values())
        return Moved(self._entries, written, self._refused, tuple(self._damaged))

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        if not (member.isfile() and _MEMBER.fullmatch(member.name) and member.size <= MOST_ENTRY_BYTES):
            self._damaged.append(f"{member.name[:80]}: not an entry's name")
            return
        try:
            header, payload = parse_entry(memoryview(_read(tar, member)), member.name, self._buffers)
        except DamagedEntry as error:
            self._damaged.append(str(error))
            return
        entry = header.block(payload) if header.kind is EntryKind.BLOCK else header.checkpoint(payload)
        writer = self._writer(header.fingerprint)
        before = writer.refused
        writer.write([Outgoing(entry, header.label)])
        self._refused += writer.refused - before
        self._entries += writer.refused == before

    def _writer(self, fingerprint: bytes) -> BatchWriter:
        if fingerprint not in self._writers:
            self._writers[fingerprint] = BatchWriter(self._config, fingerprint, self._mirror, self._buffers, time)
        return self._writers[fingerprint]

    def _describe(self, text: bytes) -> None:
        """Takes over what fingerprints stand for; a list that cannot be read costs only the names."""
        try:
            models = [Model(bytes.fromhex(m["fingerprint"]), str(m["name"]), str(m["settings"])) for m in json.loads(text)]
        except (ValueError, KeyError, TypeError):
            self._damaged.append(f"{MODELS_MEMBER}: not a list of models")
            return
        with self._mirror.transaction() as txn:
            for model in models:
                txn.describe(model)


def _models_json(models: Sequence[Model]) -> bytes:
    return json.dumps([{"fingerprint": m.fingerprint.hex(), "name": m.name, "settings": m.settings} for m in models]).encode()


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o600
    tar.addfile(info, io.BytesIO(data))


def _add_file(tar: tarfile.TarFile, path: Path) -> bool:
    """Adds one entry file under FINGERPRINT/NAME; False when it vanished."""
    try:
        with path.open("rb") as file:
            info = tarfile.TarInfo(f"{path.parent.name}/{path.name}")
            info.size, info.mode = path.stat().st_size, 0o600
            tar.addfile(info, file)
    except FileNotFoundError:
        return False
    return True


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return file.read() if file is not None else b""
