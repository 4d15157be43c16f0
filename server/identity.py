"""Tells the store which model it keeps state of, as soon as the weights are hashed: until then nothing goes to disk."""

import logging
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from threading import Event, Thread

from engine.catalog import SPLIT
from kvcache.weights import Interrupted, Weights

LOG = logging.getLogger("kvalet.server")


class Identity:
    """Hashes a model's file, all parts of it, on a thread of its own where they are not known; `found` gets 16 bytes, once."""

    def __init__(self, weights: Weights, path: Path, found: Callable[[bytes], object]) -> None:
        self._weights = weights
        self._files = files_of(path)
        self._found = found
        self._stop = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """`found` is called before this returns when every file is known already. Raises OSError for one that is gone."""
        known = [self._weights.known(file) for file in self._files]
        hashes = [one for one in known if one is not None]
        if len(hashes) == len(self._files):
            self._found(joined(hashes))
            return
        LOG.info("hashing the model file; parking to disk starts when that is done")
        self._thread = Thread(target=self._measure, name="kvalet-weights", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops hashing; a model that is not known by then stays unknown."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _measure(self) -> None:
        try:
            hashes = [self._weights.known(file) or self._weights.measure(file, self._stop) for file in self._files]
        except (OSError, Interrupted) as error:
            LOG.warning("parking to disk stays off, the model file has no hash: %s", error)
            return
        self._found(joined(hashes))


def files_of(path: Path) -> list[Path]:
    """Every part of a split model, the file itself else."""
    match = SPLIT.fullmatch(path.name)
    if match is None:
        return [path]
    parts = int(match["parts"])
    return [path.with_name(f"{match['stem']}-{part:05d}-of-{match['parts']}.gguf") for part in range(1, parts + 1)]


def joined(hashes: list[bytes]) -> bytes:
    """One hash for all parts; a single file keeps its own."""
    return hashes[0] if len(hashes) == 1 else blake2b(b"".join(hashes), digest_size=16).digest()
