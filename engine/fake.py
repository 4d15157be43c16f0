"""A deterministic weightless Context, with a tokenizer and samplers to match: what engine and server tests run on.

It keeps every rule of engine.context. Its logits depend on every token before them and on every cell and checkpoint that was
loaded, so a wrong block or a stale state changes the answer. With `exact=False` they depend on the batch splits too, as a
real CPU back end's do: only canonical reads (docs/guarantees.md) agree with each other. Unlike llama.cpp it notices damaged
bytes, and then raises DamageReachedContext, which nothing catches: the store must have refused them before.
"""

import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.context import Run, StateKind
from engine.errors import BadRequest, DecodeFailed, StateRefused
from engine.rules import SlotRules
from engine.sampling import SamplingParams
from engine.vocabulary import CONTROL, MARKS
from kvcache.entry import Payload

_MASK = (1 << 64) - 1
_HEAD = struct.Struct("<4sIIIQ")  # magic, kind of payload, start or position, count, check over the rest
_CELL = struct.Struct("<iQ")  # token, digest
_BLOCK, _CHECKPOINT = 1, 2
_CANONICAL = 0
SPECIAL = (*CONTROL, *MARKS)

Script = Callable[[tuple[int, ...]], int | None]


class DamageReachedContext(Exception):
    """Bytes that no save made came to a load; a real context would have taken them silently or aborted the process."""


@dataclass(slots=True)
class _Slot:
    """What a slot holds: (token, digest) a cell, their running sum, and the state that exists at one position only."""

    cells: list[tuple[int, int]] = field(default_factory=list)
    total: int = 0
    partial: int = 0
    oldest: int = 0  # first position that the sliding window still holds


class FakeContext:
    """See the module. `script` names the token that follows a sequence (it gets the highest logit), None: no wish.

    `refuse` counts, by method name, calls that still have to fail as llama.cpp's would (DecodeFailed, StateRefused, or
    False from cut). `batches` records every decode, `calls` counts calls by method name.
    """

    def __init__(
        self,
        kind: StateKind = StateKind.HYBRID,
        *,
        n_slots: int = 1,
        n_ctx: int = 4096,
        n_batch: int = 512,
        grid: int = 64,
        n_vocab: int = 256 + len(SPECIAL),
        window: int = 128,
        exact: bool = True,
        script: Script | None = None,
        cell_bytes: int = 16,
        state_bytes: int = 1024,
        seconds_per_token: float = 0.0,
    ) -> None:
        self._rules = SlotRules(kind, n_slots, n_ctx, n_batch, n_vocab)
        self._slots = [_Slot() for _ in range(n_slots)]
        self._kind, self._n_ctx, self._n_batch, self._n_vocab = kind, n_ctx, n_batch, n_vocab
        self._grid, self._window, self._exact, self._script = grid, window, exact, script
        self._cell_bytes = max(cell_bytes, _CELL.size)
        self._state_bytes = max(state_bytes, 16)
        self._seconds_per_token = seconds_per_token
        self._seeds: list[tuple[int, int | None]] = []
        self.refuse: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.batches: list[tuple[Run, ...]] = []

    @property
    def kind(self) -> StateKind:
        return self._kind

    @property
    def n_slots(self) -> int:
        return len(self._slots)

    @property
    def n_ctx(self) -> int:
        return self._n_ctx

    @property
    def n_batch(self) -> int:
        return self._n_batch

    @property
    def n_vocab(self) -> int:
        return self._n_vocab

    @property
    def checkpoint_bytes(self) -> int:
        return 0 if self._kind is StateKind.ATTENTION else _HEAD.size + self._state_bytes

    def block_bytes(self, tokens: int) -> int:
        return 0 if self._kind is StateKind.RECURRENT else _HEAD.size + tokens * self._cell_bytes

    def length(self, slot: int) -> int:
        return self._rules.length(slot)

    def ready(self, slot: int) -> bool:
        return self._rules.ready(slot)

    def tokens(self, slot: int) -> tuple[int, ...]:
        """What the slot holds, as its cells say (loaded blocks included)."""
        return tuple(token for token, _ in self._slots[slot].cells)

    def decode(self, runs: Sequence[Run]) -> None:
        self._rules.check_runs(runs)
        self._note("decode")
        if self._refused("decode"):
            self._rules.failed(runs)
            raise DecodeFailed("the fake was told to fail this decode")
        time.sleep(self._seconds_per_token * sum(len(run.tokens) for run in runs))
        self._seeds = [self._read(run) for run in runs]
        self._rules.decoded(runs)
        self.batches.append(tuple(runs))

    def _read(self, run: Run) -> tuple[int, int | None]:
        """Extends the slot; returns the seed of the logits after its last token, and the token the script wants there."""
        slot, flavour = self._slots[run.slot], self._flavour(run)
        for token in run.tokens:
            digest = _mix(slot.total, slot.partial, token, flavour)
            slot.cells.append((token, digest))
            slot.total = (slot.total + digest) & _MASK
            slot.partial = self._partial(slot, digest)
        slot.oldest = max(slot.oldest, len(slot.cells) - 2 * self._window)
        wish = self._script(self.tokens(run.slot)) if self._script and run.want_logits else None
        return _mix(slot.total, slot.partial, slot.cells[-1][1], flavour), wish

    def _flavour(self, run: Run) -> int:
        """Equal for all reads whose floats would be equal: whole grid cells anywhere, or one remainder from a grid multiple."""
        whole = run.start % self._grid == 0 and len(run.tokens) % self._grid == 0
        return _CANONICAL if self._exact or whole else _mix(run.start % self._grid, len(run.tokens), 1, 1)

    def _partial(self, slot: _Slot, digest: int) -> int:
        if self._kind is StateKind.ATTENTION:
            return 0
        if self._kind is StateKind.WINDOW:  # the cells in the window say it all; the oldest leave it
            return sum(d for _, d in slot.cells[-self._window :]) & _MASK
        return _mix(slot.partial, digest, 3, 7)

    def logits(self, run: int) -> NDArray[np.float32]:
        self._rules.check_logits(run)
        seed, wish = self._seeds[run]
        values = np.random.default_rng(seed).standard_normal(self._n_vocab, dtype=np.float32) * 4
        if wish is not None:
            values[wish] = 40.0
        return values

    def save_block(self, slot: int, start: int, end: int) -> Payload:
        self._rules.check_save_block(slot, start, end)
        self._note("save_block")
        if self._kind is StateKind.RECURRENT:
            return b""
        cells = self._slots[slot].cells[start:end]
        body = b"".join(_CELL.pack(*cell).ljust(self._cell_bytes, b"\0") for cell in cells)
        return _pack(_BLOCK, start, end - start, body)

    def save_checkpoint(self, slot: int) -> Payload:
        self._rules.check_save_checkpoint(slot)
        self._note("save_checkpoint")
        state = self._slots[slot]
        body = struct.pack("<QQ", state.partial, state.total if self._kind is StateKind.RECURRENT else 0)
        return _pack(_CHECKPOINT, len(state.cells), 1, body.ljust(self._state_bytes, b"\0"))

    def load_block(self, slot: int, start: int, end: int, payload: Payload) -> None:
        self._rules.check_load_block(slot, start, end)
        self._note("load_block")
        self._check_size(slot, "block", len(payload), self.block_bytes(end - start))
        self._refuse_load(slot, "load_block")
        state = self._slots[slot]
        if self._kind is StateKind.RECURRENT:
            state.cells += [(0, 0)] * (end - start)
        else:
            body = self._unpack(slot, _BLOCK, start, end - start, payload)
            cells = [_CELL.unpack_from(body, at) for at in range(0, len(body), self._cell_bytes)]
            state.cells += cells
            state.total = (state.total + sum(digest for _, digest in cells)) & _MASK
        self._rules.loaded_block(slot, end)

    def load_checkpoint(self, slot: int, position: int, payload: Payload) -> None:
        self._rules.check_load_checkpoint(slot, position)
        self._note("load_checkpoint")
        self._check_size(slot, "checkpoint", len(payload), self.checkpoint_bytes)
        self._refuse_load(slot, "load_checkpoint")
        body = self._unpack(slot, _CHECKPOINT, position, 1, payload)
        self._shorten(slot, position)
        state = self._slots[slot]
        state.partial, total = struct.unpack_from("<QQ", body)
        if self._kind is StateKind.RECURRENT:
            state.total = total
        state.oldest = max(0, position - self._window)
        self._rules.loaded_checkpoint(slot, position)

    def cut(self, slot: int, position: int) -> bool:
        self._rules.check_cut(slot, position)
        self._note("cut")
        if not self._can_cut(slot, position) or self._refused("cut"):
            return False
        if position < self.length(slot):
            self._shorten(slot, position)
        self._rules.was_cut(slot, position)
        return True

    def _can_cut(self, slot: int, position: int) -> bool:
        if position in (0, self.length(slot)) or self._kind is StateKind.ATTENTION:
            return True
        return self._kind is StateKind.WINDOW and self.ready(slot) and self._slots[slot].oldest <= max(0, position - self._window)

    def trim(self, slot: int, position: int) -> None:
        self._rules.check_cut(slot, position)
        self._note("trim")
        self._shorten(slot, position)
        self._rules.trimmed(slot, position)

    def fork(self, source: int, target: int, end: int) -> None:
        self._rules.check_fork(source, target, end)
        self._note("fork")
        origin = self._slots[source]
        self._slots[target] = _Slot(list(origin.cells), origin.total, origin.partial, origin.oldest)
        if end < len(origin.cells):
            self._shorten(target, end)
        self._rules.forked(source, target, end)

    def clear(self, slot: int) -> None:
        self._rules.cleared(slot)
        self._note("clear")
        self._slots[slot] = _Slot()

    def close(self) -> None:
        self._slots = []
        self._rules.closed()

    def _shorten(self, slot: int, position: int) -> None:
        state = self._slots[slot]
        del state.cells[position:]
        if self._kind is not StateKind.RECURRENT or position == 0:
            state.total = sum(digest for _, digest in state.cells) & _MASK
        if self._kind is StateKind.WINDOW or position == 0:
            state.partial = sum(d for _, d in state.cells[-self._window :]) & _MASK

    def _unpack(self, slot: int, kind: int, place: int, count: int, payload: Payload) -> memoryview:
        magic, got_kind, got_place, got_count, check = _HEAD.unpack_from(payload)
        body = memoryview(payload)[_HEAD.size :]
        if magic != b"FAKE" or check != _check(got_kind, got_place, got_count, body):
            raise DamageReachedContext(f"damaged bytes were loaded into slot {slot} at {place}")
        if (got_kind, got_place, got_count) != (kind, place, count):
            self._rules.broken(slot)
            raise StateRefused(
                f"the payload is kind {got_kind} at {got_place}+{got_count}, asked for kind {kind} at {place}+{count}"
            )
        return body

    def _check_size(self, slot: int, what: str, got: int, want: int) -> None:
        if got != want:
            self._rules.broken(slot)
            raise StateRefused(f"a {what} of {got} bytes where {want} are right")

    def _refuse_load(self, slot: int, method: str) -> None:
        if self._refused(method):
            self._rules.broken(slot)
            raise StateRefused(f"the fake was told to refuse this {method}")

    def _refused(self, method: str) -> bool:
        if self.refuse[method] <= 0:
            return False
        self.refuse[method] -= 1
        return True

    def _note(self, method: str) -> None:
        self.calls[method] += 1


def _pack(kind: int, place: int, count: int, body: bytes) -> bytes:
    return _HEAD.pack(b"FAKE", kind, place, count, _check(kind, place, count, memoryview(body))) + body


def _check(kind: int, place: int, count: int, body: memoryview) -> int:
    return zlib.crc32(body, zlib.crc32(struct.pack("<III", kind, place, count)))


def _mix(a: int, b: int, c: int, d: int) -> int:
    """64-bit hash of four numbers (the multipliers and shifts of splitmix64), the same in every process."""
    value = (a + 0x9E3779B97F4A7C15 * (b + 1) + 0xBF58476D1CE4E5B9 * (c + 1) + 0x94D049BB133111EB * (d + 1)) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class FakeTokenizer:
    """One token a byte (ids 0 to 255), then the special tokens of a Qwen template; `<|im_end|>` and `<|endoftext|>` end."""

    def __init__(self, adds_bos: bool = False) -> None:
        self._special = {text.encode(): 256 + i for i, text in enumerate(SPECIAL)}
        self._adds_bos = adds_bos

    @property
    def n_vocab(self) -> int:
        return 256 + len(SPECIAL)

    @property
    def eog(self) -> frozenset[int]:
        return frozenset({self._special[b"<|im_end|>"], self._special[b"<|endoftext|>"]})

    @property
    def bos(self) -> int | None:
        return self._special[b"<|endoftext|>"]

    @property
    def eos(self) -> int | None:
        return self._special[b"<|im_end|>"]

    @property
    def adds_bos(self) -> bool:
        return self._adds_bos

    def tokenize(self, text: str | bytes, *, special: bool, add_bos: bool = False) -> list[int]:
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        tokens = [256] if add_bos else []
        at = 0
        while at < len(raw):
            found = next((name for name in self._special if special and raw.startswith(name, at)), None)
            tokens.append(self._special[found] if found else raw[at])
            at += len(found) if found else 1
        return tokens

    def piece(self, token: int) -> bytes:
        if not 0 <= token < self.n_vocab:
            raise BadRequest(f"token {token} is not in the vocabulary of {self.n_vocab}", "tokens")
        return bytes([token]) if token < 256 else SPECIAL[token - 256].encode()

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self.piece(token) for token in tokens)


class FakeSamplers:
    """Greedy at temperature 0, else a draw from softmax(logits / temperature) under the seed; logit_bias is honoured.

    A grammar or schema is not followed; the grammar text `invalid` is refused, for tests of that error.
    """

    def __init__(self, context: FakeContext) -> None:
        self._context = context

    def check(self, params: SamplingParams) -> None:
        if params.grammar == "invalid":
            raise BadRequest("the grammar does not parse", "grammar")

    def make(self, params: SamplingParams, prompt: Sequence[int]) -> "FakeSampler":
        self.check(params)
        return FakeSampler(self._context, params)


class FakeSampler:
    """The sampler of one request, see FakeSamplers."""

    def __init__(self, context: FakeContext, params: SamplingParams) -> None:
        self._context, self._params = context, params
        self._random = np.random.default_rng(params.seed or 0)

    def sample(self, run: int) -> int:
        return self.sample_from(self._context.logits(run))

    def sample_from(self, logits: NDArray[np.float32]) -> int:
        wide = logits.astype(np.float64)
        for token, bias in self._params.logit_bias:
            wide[token] += bias
        if self._params.temperature <= 0:
            return int(np.argmax(wide))
        weights = np.exp((wide - wide.max()) / self._params.temperature)
        return int(self._random.choice(len(weights), p=weights / weights.sum()))

    def close(self) -> None:
        self._random = np.random.default_rng(0)
