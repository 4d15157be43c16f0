"""A llama_batch over arrays that are kept, so that a decode allocates nothing and fills them without a Python loop."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from engine.context import Run


class Batch:
    """Room for `n_batch` tokens of `n_slots` sequences; `struct` is valid until the next fill."""

    def __init__(self, n_batch: int, n_slots: int) -> None:
        self._token = np.zeros(n_batch, np.int32)
        self._position = np.zeros(n_batch, np.int32)
        self._output = np.zeros(n_batch, np.int8)
        self._one = np.ones(n_batch, np.int32)
        self._slots = np.arange(n_slots, dtype=np.int32)  # each token points at its slot's id in here
        self._slot_of = np.zeros(n_batch, np.uint64)
        self.struct = C.llama_batch(
            n_tokens=0,
            token=_pointer(self._token, C.llama_token),
            pos=_pointer(self._position, C.llama_pos),
            n_seq_id=_pointer(self._one, ctypes.c_int32),
            seq_id=_pointer(self._slot_of, ctypes.POINTER(C.llama_seq_id)),
            logits=_pointer(self._output, ctypes.c_int8),
        )

    def fill(self, runs: Sequence[Run]) -> tuple[int, ...]:
        """Puts the runs one after another; returns the row of each one's last token, where its logits are."""
        rows, at = [], 0
        for run in runs:
            end = at + len(run.tokens)
            self._token[at:end] = run.tokens
            self._position[at:end] = np.arange(run.start, run.start + len(run.tokens), dtype=np.int32)
            self._slot_of[at:end] = self._slots.ctypes.data + run.slot * self._slots.itemsize
            self._output[at:end] = 0
            self._output[end - 1] = run.want_logits
            rows.append(end - 1)
            at = end
        self.struct.n_tokens = at
        return tuple(rows)


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
