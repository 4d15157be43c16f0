"""What an engine needs of a context: held by the real one (llama.py) and the fake one (fake.py), one contract suite for both."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvcache.entry import Payload


class StateKind(StrEnum):
    """What of a model's state can be cut at its end, found by asking llama.cpp."""

    ATTENTION = "attention"  # any cut is exact; no checkpoints
    WINDOW = "window"  # sliding window: cuts inside the window only, else a checkpoint
    HYBRID = "hybrid"  # attention + recurrent state: a checkpoint for every cut
    RECURRENT = "recurrent"  # recurrent state alone: checkpoints, blocks are empty


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of one slot in a batch; they continue the slot exactly at `start`.

    With `want_logits` the logits after the last token can be read under the run's index in the batch.
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    want_logits: bool


class Context(Protocol):
    """One llama context with `n_slots` slots in a unified KV cache; used from one thread at a time.

    Positions are token counts: a slot of length n holds tokens [0, n).
    """

    @property
    def kind(self) -> StateKind: ...
    @property
    def n_slots(self) -> int: ...
    @property
    def n_ctx(self) -> int:
        """Tokens one slot may hold."""
        ...

    @property
    def n_batch(self) -> int:
        """Most tokens one decode takes; a multiple of the grid."""
        ...

    @property
    def n_vocab(self) -> int: ...

    def length(self, slot: int) -> int: ...

    def decode(self, runs: Sequence[Run]) -> None:
        """Reads the runs in one llama_decode. Raises DecodeFailed; then every slot named must be cleared."""
        ...

    def logits(self, run: int) -> NDArray[np.float32]:
        """Copy of the logits, shape (n_vocab,), of run number `run` of the last decode."""
        ...

    def save_block(self, slot: int, start: int, end: int) -> Payload:
        """Attention KV of [start, end) of the slot, copied out; empty for a recurrent model."""
        ...

    def save_checkpoint(self, slot: int) -> Payload:
        """The partial state at the slot's present length, copied out. ATTENTION contexts have none: StateRefused."""
        ...

    def load_block(self, slot: int, start: int, end: int, payload: Payload) -> None:
        """Appends a block to a slot of length `start`; state is unusable until load_checkpoint (unless ATTENTION)."""
        ...

    def load_checkpoint(self, slot: int, position: int, payload: Payload) -> None:
        """Puts the partial state at `position` back and cuts the slot there (restore and rollback are the same call).

        Blocks up to `position` must be in the slot. Raises StateRefused; then the slot must be cleared.
        """
        ...

    def cut(self, slot: int, position: int) -> bool:
        """Cuts without a checkpoint where that is exact (attention; window still held); False, changing nothing, where not."""
        ...

    def fork(self, source: int, target: int, end: int) -> None:
        """Shares the attention cells of [0, end) of `source` with the cleared `target`; follow with load_checkpoint."""
        ...

    def clear(self, slot: int) -> None: ...

    def close(self) -> None: ...
