"""The wall to llama.cpp: a context whose state is saved, loaded, cut and rolled back by calls that were verified bit by bit.

The order of calls (facts: shared/facts/llama-state.md; held by tests/engine/test_context_contract.py):
- A blob is `magic u32, sequence i32`, the attention part, the partial part. A block is a whole blob of the scratch sequence whose
  partial part is the *trailer*, what an empty sequence writes there: so it loads with one call and no copy of ours.
- save_block: share the cells with the scratch sequence, empty its partial part (else 20 MB of recurrent state would be copied for
  each 0.8 MB block), get, drop the scratch sequence.
- load_block: set into the scratch sequence and share the cells with the slot. Set drops what the scratch sequence held, so it
  is dropped only before something else is done (each drop walks over all cells: 10 us at 16K).
- load_checkpoint: set with PARTIAL_ONLY, then seq_rm; in the other order llama.cpp refuses and nothing changes.

Where cells lie decides the last bits of the logits (attention sums in cell order). With one slot in use the cells are always
[0, length) in order of position: llama.cpp searches from its head, seq_rm moves the head back to the first freed cell, and a load
goes on at the head. Clearing the last slot in use resets the whole cache, so that this holds again after several slots were used
and their cells interleaved. With a second slot resident it does not hold: bits were equal exactly when the slot's cells began at
a multiple of 64 (the tile of the attention kernel), and llama.cpp gives no say in that. So the bit-exact promise is for one slot.
"""

import ctypes
import struct
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from engine.buffers import BufferPool
from engine.config import ContextConfig
from engine.context import Run, StateKind
from engine.errors import DecodeFailed, ModelError, StateRefused
from engine.llama_batch import Batch
from engine.llama_model import Model
from engine.probe import default_threads
from engine.rules import SlotRules
from engine.state_sizes import StateSizes, kind_seen, learn
from kvcache.entry import Payload

_FULL = C.LLAMA_STATE_SEQ_FLAGS_NONE
_PARTIAL = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_HEADER = 8  # bytes of magic and sequence in front of every blob
_BLOCK_START = struct.Struct("<8xIIi")  # streams, cells, position of the first cell
_TYPES = {
    "f32": C.GGML_TYPE_F32,
    "f16": C.GGML_TYPE_F16,
    "q8_0": C.GGML_TYPE_Q8_0,
    "q5_1": C.GGML_TYPE_Q5_1,
    "q5_0": C.GGML_TYPE_Q5_0,
    "q4_1": C.GGML_TYPE_Q4_1,
    "q4_0": C.GGML_TYPE_Q4_0,
    "iq4_nl": C.GGML_TYPE_IQ4_NL,
}
_MOST_CELLS = 1 << 26  # a cell takes about 60 bytes of bookkeeping alone: a slip of the pen must not eat the machine
_IDLE_CHECKPOINTS, _IDLE_BLOCKS = 2, 16  # buffers the pool may keep idle
_BYTES = ctypes.POINTER(ctypes.c_uint8)


class LlamaContext:
    """See engine.context.Context. One lock guards every call, so that a restore may run on another thread than the decode."""

    def __init__(self, model: Model, config: ContextConfig) -> None:
        """Raises ModelError for settings that llama.cpp would refuse, round silently, or not have the memory for."""
        _check(config)
        self.model = model
        self.config = config
        self._lock = threading.RLock()
        self._scratch = config.slots
        self._scratch_used = False
        self._handle = _open(model, config)
        self._memory = C.llama_get_memory(self._handle)
        self._batch = Batch(config.batch, config.slots)
        self._rows: tuple[int, ...] = ()
        self._window = int(C.llama_model_n_swa(model.handle))
        try:
            self._empty_partial = self._get(self._scratch, _PARTIAL, memoryview(bytearray(self._size(self._scratch, _PARTIAL))))
            self._kind, self._sizes = self._measure()
        except (DecodeFailed, StateRefused) as error:
            C.llama_free(self._handle)
            raise ModelError(f"this model cannot be decoded or its state not be copied: {error}") from error
        self._rules = SlotRules(self._kind, config.slots, config.ctx, config.batch, model.n_vocab)
        idle = _IDLE_CHECKPOINTS * self.checkpoint_bytes + _IDLE_BLOCKS * self.block_bytes(config.grid)
        self._pool = BufferPool(idle)

    def _measure(self) -> tuple[StateKind, StateSizes]:
        """Decodes two tokens on slot 0 and looks at what each adds to the blobs; leaves the context empty."""
        sizes = []
        for position in range(2):
            self._decode([Run(0, position, (self.model.bos or 0,), False)])
            sizes.append((self._size(0, _FULL), self._size(0, _PARTIAL)))
        C.llama_memory_clear(self._memory, False)
        fulls, partials = (sizes[0][0], sizes[1][0]), (sizes[0][1], sizes[1][1])
        kind = kind_seen(self.model.kind, fulls, partials)
        return kind, learn(kind, fulls, partials, len(self._empty_partial), self._window)

    @property
    def kind(self) -> StateKind:
        return self._kind

    @property
    def n_slots(self) -> int:
        return self.config.slots

    @property
    def n_ctx(self) -> int:
        return self.config.ctx

    @property
    def n_batch(self) -> int:
        return self.config.batch

    @property
    def n_vocab(self) -> int:
        return self.model.n_vocab

    @property
    def checkpoint_bytes(self) -> int:
        return self._sizes.checkpoint

    def block_bytes(self, tokens: int) -> int:
        return 0 if self._kind is StateKind.RECURRENT else self._sizes.block(tokens)

    def length(self, slot: int) -> int:
        return self._rules.length(slot)

    def ready(self, slot: int) -> bool:
        return self._rules.ready(slot)

    def decode(self, runs: Sequence[Run]) -> None:
        with self._lock:
            self._rules.check_runs(runs)
            self._drop_scratch()
            try:
                self._decode(runs)
            except DecodeFailed:
                self._rules.failed(runs)
                raise
            self._rules.decoded(runs)

    def _decode(self, runs: Sequence[Run]) -> None:
        self._rows = self._batch.fill(runs)
        code = C.llama_decode(self._handle, self._batch.struct)
        if code != 0:
            why = {1: "no room in the KV cache", 2: "aborted"}.get(code, "llama.cpp failed")
            raise DecodeFailed(f"a batch of {len(runs)} runs was not read: {why} (llama_decode returned {code})")

    def logits(self, run: int) -> NDArray[np.float32]:
        with self._lock:
            self._rules.check_logits(run)
            pointer = C.llama_get_logits_ith(self._handle, self._rows[run])
            return np.ctypeslib.as_array(pointer, shape=(self.n_vocab,)).copy()

    def sample(self, chain: Any, run: int) -> int:
        """Draws with a llama.cpp sampler chain from the logits of `run` and lets the chain accept the token."""
        with self._lock:
            self._rules.check_logits(run)
            return int(C.llama_sampler_sample(chain, self._handle, self._rows[run]))

    def save_block(self, slot: int, start: int, end: int) -> Payload:
        with self._lock:
            self._rules.check_save_block(slot, start, end)
            if self._kind is StateKind.RECURRENT:
                return b""
            self._drop_scratch()
            self._share(slot, self._scratch, start, end)
            try:
                return self._save_scratch(start, end)
            finally:
                self._drop(self._scratch)

    def _save_scratch(self, start: int, end: int) -> Payload:
        payload = self._pool.take(self._sizes.block(end - start))
        if self._kind is not StateKind.HYBRID:
            size = self._size(self._scratch, _FULL)
            if size == len(payload):
                self._get(self._scratch, _FULL, payload)
            else:  # the scratch sequence's own window cells follow: put the trailer where they begin
                whole = self._get(self._scratch, _FULL, np.empty(size, np.uint8).data)
                cut = len(payload) - len(self._trailer)
                payload[:cut], payload[cut:] = whole[:cut], self._trailer
        else:
            self._set(self._scratch, _PARTIAL, self._empty_partial)
            self._get(self._scratch, _FULL, payload)
        if _BLOCK_START.unpack_from(payload) != (1, end - start, start):
            raise StateRefused(f"llama.cpp wrote an unknown layout for the block [{start}, {end})")
        return payload.toreadonly()

    def save_checkpoint(self, slot: int) -> Payload:
        with self._lock:
            self._rules.check_save_checkpoint(slot)
            varies = self._sizes.checkpoint_token > 0
            payload = self._pool.take(self._size(slot, _PARTIAL) if varies else self._sizes.checkpoint)
            return self._get(slot, _PARTIAL, payload).toreadonly()

    def load_block(self, slot: int, start: int, end: int, payload: Payload) -> None:
        with self._lock:
            self._rules.check_load_block(slot, start, end)
            right = self.block_bytes(end - start)
            if len(payload) != right:
                raise self._refusal(slot, f"a block of {len(payload)} bytes where {right} are right")
            if self._kind is not StateKind.RECURRENT:
                self._load_scratch(slot, start, end, payload)
            self._rules.loaded_block(slot, end)

    def _load_scratch(self, slot: int, start: int, end: int, payload: Payload) -> None:
        streams, cells, position = _BLOCK_START.unpack_from(payload)
        if (streams, cells, position) != (1, end - start, start):
            raise self._refusal(slot, f"the block holds {cells} cells from {position}, not [{start}, {end})")
        self._scratch_used = True
        if not self._set(self._scratch, _FULL, payload):
            raise self._refusal(slot, f"llama.cpp refused the block [{start}, {end})")
        self._share(self._scratch, slot, start, end)

    def load_checkpoint(self, slot: int, position: int, payload: Payload) -> None:
        with self._lock:
            self._rules.check_load_checkpoint(slot, position)
            self._drop_scratch()
            if not self._sizes.is_checkpoint(len(payload), position):
                raise self._refusal(slot, f"{len(payload)} bytes are no checkpoint at {position}")
            if not self._set(slot, _PARTIAL, payload):
                raise self._refusal(slot, f"llama.cpp refused the checkpoint at {position}")
            if position < self._rules.length(slot) and not C.llama_memory_seq_rm(self._memory, slot, position, -1):
                raise self._refusal(slot, f"llama.cpp would not cut at {position}")
            if not self._stands_at(slot, position):
                raise self._refusal(slot, f"the checkpoint is not of position {position}")
            self._rules.loaded_checkpoint(slot, position)

    def _stands_at(self, slot: int, position: int) -> bool:
        """Whether the partial state just loaded is of that position; a recurrent one exists at one position only."""
        ends = C.llama_memory_seq_pos_max(self._memory, slot) == position - 1
        if self._kind is StateKind.WINDOW:
            return bool(ends)
        return bool(ends and C.llama_memory_seq_pos_min(self._memory, slot) == position - 1)

    def cut(self, slot: int, position: int) -> bool:
        with self._lock:
            self._rules.check_cut(slot, position)
            self._drop_scratch()
            if position == 0:
                self.clear(slot)
                return True
            if position < self._rules.length(slot) and not self._cut(slot, position):
                return False
            self._rules.was_cut(slot, position)
            return True

    def _cut(self, slot: int, position: int) -> bool:
        return self._may_cut(slot, position) and bool(C.llama_memory_seq_rm(self._memory, slot, position, -1))

    def _may_cut(self, slot: int, position: int) -> bool:
        """llama.cpp cuts a window whose older cells are gone without a word, so they are counted first."""
        if self._kind is StateKind.WINDOW:
            oldest = C.llama_memory_seq_pos_min(self._memory, slot)
            return self._rules.ready(slot) and 0 <= oldest <= max(0, position - self._window)
        return self._kind is StateKind.ATTENTION

    def trim(self, slot: int, position: int) -> None:
        with self._lock:
            self._rules.check_cut(slot, position)
            self._drop_scratch()
            if position == 0:
                return self.clear(slot)
            if self._kind in (StateKind.HYBRID, StateKind.RECURRENT):
                self._set(slot, _PARTIAL, self._empty_partial)
            if self._kind is not StateKind.RECURRENT and not C.llama_memory_seq_rm(self._memory, slot, position, -1):
                raise self._refusal(slot, f"llama.cpp would not trim at {position}")
            self._rules.trimmed(slot, position)
            return None

    def fork(self, source: int, target: int, end: int) -> None:
        with self._lock:
            self._rules.check_fork(source, target, end)
            self._drop_scratch()
            self._share(source, target, 0, end)
            whole = self._rules.ready(source) and end == self._rules.length(source)
            if not whole and self._kind in (StateKind.HYBRID, StateKind.RECURRENT):
                self._set(target, _PARTIAL, self._empty_partial)
            self._rules.forked(source, target, end)

    def clear(self, slot: int) -> None:
        with self._lock:
            self._rules.cleared(slot)
            self._drop_scratch()
            if self._rules.all_empty():
                C.llama_memory_clear(self._memory, False)
            else:
                self._drop(slot)

    def close(self) -> None:
        with self._lock:
            if self._handle:
                C.llama_free(self._handle)
                self._handle = None
                self._rules.closed()

    @property
    def _trailer(self) -> memoryview:
        return self._empty_partial[_HEADER:]

    def _drop_scratch(self) -> None:
        if self._scratch_used:
            self._drop(self._scratch)
            self._scratch_used = False

    def _share(self, source: int, target: int, start: int, end: int) -> None:
        C.llama_memory_seq_cp(self._memory, source, target, start, end)

    def _drop(self, sequence: int) -> None:
        if not C.llama_memory_seq_rm(self._memory, sequence, -1, -1):
            raise StateRefused(f"llama.cpp would not clear sequence {sequence}")

    def _size(self, sequence: int, flags: int) -> int:
        return int(C.llama_state_seq_get_size_ext(self._handle, sequence, flags))

    def _get(self, sequence: int, flags: int, into: memoryview) -> memoryview:
        written = C.llama_state_seq_get_data_ext(self._handle, _address(into), len(into), sequence, flags)
        if written != len(into):
            raise StateRefused(f"llama.cpp wrote {written} bytes of sequence {sequence} where {len(into)} were expected")
        return into

    def _set(self, sequence: int, flags: int, payload: Payload) -> bool:
        """Reads `payload` in place; its size and layout were checked by the caller, because a wrong one may abort the process."""
        read = C.llama_state_seq_set_data_ext(self._handle, _address(payload), len(payload), sequence, flags)
        return bool(read == len(payload))

    def _refusal(self, slot: int, why: str) -> StateRefused:
        self._rules.broken(slot)
        return StateRefused(f"slot {slot}: {why}")


def _check(config: ContextConfig) -> None:
    if config.grid < 1 or config.batch < 1 or config.batch % config.grid:
        raise ModelError(f"a batch of {config.batch} tokens is no multiple of the grid of {config.grid}")
    if config.slots < 1 or config.ctx < 1 or config.ctx * config.slots > _MOST_CELLS:
        raise ModelError(f"{config.slots} slots of {config.ctx} tokens cannot be a context: 1 to {_MOST_CELLS} tokens in all")


def _open(model: Model, config: ContextConfig) -> Any:
    mark = model.backend.mark()
    handle = C.llama_init_from_model(model.handle, _params(config))
    if not handle:
        reason = model.backend.errors_since(mark) or "llama.cpp gave no reason"
        raise ModelError(f"cannot make a context of {config.slots} x {config.ctx} tokens: {reason}")
    return handle


def _params(config: ContextConfig) -> Any:
    params = C.llama_context_default_params()
    params.n_ctx = config.ctx * config.slots
    params.n_batch = params.n_ubatch = config.batch
    params.n_seq_max = config.slots + 1  # and the scratch sequence
    params.n_outputs_max = config.slots + 1  # one row of logits a slot; the default reserves n_batch rows
    params.n_threads = params.n_threads_batch = config.threads or default_threads()
    params.flash_attn_type = 1 if config.flash_attn else 0
    params.type_k, params.type_v = _type(config.type_k), _type(config.type_v)
    params.kv_unified = True  # cells can be shared between sequences, which the scratch sequence lives on
    params.swa_full = False  # a window cache of window size, as llama-server has it; beyond it checkpoints serve
    return params


def _type(name: str) -> int:
    try:
        return int(_TYPES[name])
    except KeyError:
        raise ModelError(f"K/V type {name!r} is not one of {', '.join(_TYPES)}") from None


def _address(data: Payload) -> Any:
    return ctypes.cast(np.frombuffer(data, np.uint8).__array_interface__["data"][0], _BYTES)  # .ctypes.data takes 3 times as long
