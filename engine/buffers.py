"""Memory for saved states that comes back warm: a payload's buffer returns to the pool when its last view is gone.

Touching fresh memory is what makes a save slow (20 MB: about 40 ms in new pages, 7 ms when the kernel fills them in one call,
1 ms in pages used before). A model's blocks have one size and its checkpoints another, so buffers are kept by exact size.
"""

import mmap
import sys
import threading
import weakref

import numpy as np
from numpy.typing import NDArray

_MAPPED_FROM = 1 << 18  # bytes; smaller buffers come from the ordinary allocator
_POPULATE = getattr(mmap, "MAP_POPULATE", 0) if sys.platform == "linux" else 0

Buffer = NDArray[np.uint8]


class BufferPool:
    """Hands out writable buffers; keeps at most `idle_bytes` of returned ones. Safe from any thread.

    A payload that is held costs its own size and nothing more; what is idle is memory beside the cache's budget.
    """

    def __init__(self, idle_bytes: int) -> None:
        self._limit = idle_bytes
        self._idle: dict[int, list[Buffer]] = {}
        self._idle_bytes = 0
        self._lock = threading.RLock()  # a collection inside take() may give a buffer back on the same thread

    @property
    def idle_bytes(self) -> int:
        return self._idle_bytes

    def take(self, nbytes: int) -> memoryview:
        """A writable view of `nbytes` bytes of undefined content, the caller's until its last view is dropped."""
        base = self._reuse(nbytes)
        if base is None:
            base = _fresh(nbytes)
        lease = base[:]  # views made of the memoryview keep this array alive, and only this
        weakref.finalize(lease, self._give_back, base).atexit = False
        return lease.data

    def _reuse(self, nbytes: int) -> Buffer | None:
        with self._lock:
            same = self._idle.get(nbytes)
            if not same:
                return None
            self._idle_bytes -= nbytes
            return same.pop()

    def _give_back(self, base: Buffer) -> None:
        with self._lock:
            if self._idle_bytes + base.nbytes <= self._limit:
                self._idle.setdefault(base.nbytes, []).append(base)
                self._idle_bytes += base.nbytes


def _fresh(nbytes: int) -> Buffer:
    if nbytes < _MAPPED_FROM or not _POPULATE:
        return np.empty(nbytes, np.uint8)
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _POPULATE)
    return np.frombuffer(pages, np.uint8)
