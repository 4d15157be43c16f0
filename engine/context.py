"""What an engine needs of a context: held by the real one (llama.py) and the fake one (fake.py), one contract suite for both."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.sampling import SamplingParams
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

    Positions are token counts: a slot of length n holds tokens [0, n). A slot is *ready* when it may decode; loading
    a block, trimming, and forking short of the source's end leave it not ready until load_checkpoint (ATTENTION: always
    ready). Wrong use raises ContextMisuse and changes nothing. After DecodeFailed or StateRefused clear the slot.
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

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes the largest checkpoint takes; 0 for ATTENTION."""
        ...

    def block_bytes(self, tokens: int) -> int:
        """Bytes a block of so many tokens takes; 0 for RECURRENT."""
        ...

    def length(self, slot: int) -> int: ...

    def ready(self, slot: int) -> bool: ...

    def decode(self, runs: Sequence[Run]) -> None:
        """Reads the runs, at most one a slot, in one llama_decode. Raises DecodeFailed."""
        ...

    def logits(self, run: int) -> NDArray[np.float32]:
        """Copy of the logits, shape (n_vocab,), of run number `run` of the last decode."""
        ...

    def save_block(self, slot: int, start: int, end: int) -> Payload:
        """Attention KV of [start, end) of the slot, copied out; empty for a recurrent model."""
        ...

    def save_checkpoint(self, slot: int) -> Payload:
        """The partial state at the length of a ready slot, copied out. ATTENTION contexts have none: ContextMisuse."""
        ...

    def load_block(self, slot: int, start: int, end: int, payload: Payload) -> None:
        """Appends a block to a slot of length `start`. Raises StateRefused for bytes of the wrong size or position."""
        ...

    def load_checkpoint(self, slot: int, position: int, payload: Payload) -> None:
        """Puts the partial state at `position` back and cuts the slot there (restore and rollback are the same call).

        Blocks up to `position` must be in the slot. Raises StateRefused.
        """
        ...

    def cut(self, slot: int, position: int) -> bool:
        """Cuts without a checkpoint where that is exact (attention; window still held); False, changing nothing, where not."""
        ...

    def trim(self, slot: int, position: int) -> None:
        """Drops the attention cells from `position` on, and the partial state with them: load blocks, then a checkpoint."""
        ...

    def fork(self, source: int, target: int, end: int) -> None:
        """Shares the attention cells of [0, end) of `source` with the cleared `target`, which is ready if `source` is
        ready and `end` its length (its partial state is shared too), else follow with load_checkpoint."""
        ...

    def clear(self, slot: int) -> None: ...

    def close(self) -> None: ...


class Sampler(Protocol):
    """Draws the tokens of one request; keeps its penalties' history, its grammar's state and its random state."""

    def sample(self, run: int) -> int:
        """A token from the logits of run number `run` of the last decode; it is accepted (counts for penalties, grammar)."""
        ...

    def sample_from(self, logits: NDArray[np.float32]) -> int:
        """The same from a copy of logits, shape (n_vocab,), that were read earlier."""
        ...

    def close(self) -> None: ...


class Samplers(Protocol):
    """Makes samplers that draw from one context."""

    def check(self, params: SamplingParams) -> None:
        """Raises BadRequest (with the parameter's name) for what `make` could not honour. Safe from any thread."""
        ...

    def make(self, params: SamplingParams, prompt: Sequence[int]) -> Sampler:
        """A sampler for a request whose whole prompt is `prompt` (penalties look back into it)."""
        ...


class Tokenizer(Protocol):
    """Text to tokens and back; safe from any thread."""

    @property
    def n_vocab(self) -> int: ...
    @property
    def eog(self) -> frozenset[int]:
        """Tokens that end a generation."""
        ...

    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def adds_bos(self) -> bool:
        """Whether the model wants its beginning-of-sequence token before a prompt."""
        ...

    def tokenize(self, text: str | bytes, *, special: bool, add_bos: bool = False) -> list[int]:
        """`special`: texts of control tokens become those tokens (a rendered template), else they stay plain text."""
        ...

    def piece(self, token: int) -> bytes:
        """The token's exact bytes, control tokens as their text. Raises BadRequest for a token outside the vocabulary."""
        ...

    def detokenize(self, tokens: Sequence[int]) -> bytes: ...
