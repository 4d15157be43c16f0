"""The rules of the Context contract, as bookkeeping that real and fake context share: what is where, and what may be asked."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.context import Run, StateKind
from engine.errors import ContextMisuse


@dataclass(slots=True)
class _Slot:
    length: int = 0
    ready: bool = True


class SlotRules:
    """Lengths and readiness of `n_slots` slots. The check_ methods raise ContextMisuse and change nothing; the others record
    what a context has done, so a call is: check, act, record."""

    def __init__(self, kind: StateKind, n_slots: int, n_ctx: int, n_batch: int, n_vocab: int) -> None:
        self.kind = kind
        self._n_ctx = n_ctx
        self._n_batch = n_batch
        self._n_vocab = n_vocab
        self._slots = [_Slot() for _ in range(n_slots)]
        self._outputs: tuple[bool, ...] = ()

    def length(self, slot: int) -> int:
        return self._at(slot).length

    def ready(self, slot: int) -> bool:
        return self._at(slot).ready

    def check_runs(self, runs: Sequence[Run]) -> None:
        if not 0 < sum(len(run.tokens) for run in runs) <= self._n_batch:
            raise ContextMisuse(f"a batch takes 1 to {self._n_batch} tokens")
        if len({run.slot for run in runs}) != len(runs):
            raise ContextMisuse("a slot appears twice in a batch")
        for run in runs:
            self._check_run(run)

    def _check_run(self, run: Run) -> None:
        state = self._at(run.slot)
        if not run.tokens:
            raise ContextMisuse(f"an empty run for slot {run.slot}")
        if not state.ready:
            raise ContextMisuse(f"slot {run.slot} has no partial state: load a checkpoint first")
        if run.start != state.length:
            raise ContextMisuse(f"run starts at {run.start}, slot {run.slot} is {state.length} long")
        end = run.start + len(run.tokens)
        if end > self._n_ctx:
            raise ContextMisuse(f"slot {run.slot} would hold {end} tokens of {self._n_ctx}")
        if min(run.tokens) < 0 or max(run.tokens) >= self._n_vocab:
            raise ContextMisuse(f"a token is outside [0, {self._n_vocab})")

    def decoded(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self._at(run.slot).length += len(run.tokens)
        self._outputs = tuple(run.want_logits for run in runs)

    def failed(self, runs: Sequence[Run]) -> None:
        """A decode failed: what the slots hold is unknown, so they may not decode before they are cleared."""
        self._outputs = ()
        for run in runs:
            self.broken(run.slot)

    def broken(self, slot: int) -> None:
        self._at(slot).ready = False

    def check_logits(self, run: int) -> None:
        if not (0 <= run < len(self._outputs) and self._outputs[run]):
            raise ContextMisuse(f"run {run} of the last decode has no logits")

    def check_save_block(self, slot: int, start: int, end: int) -> None:
        if not 0 <= start < end <= self.length(slot):
            raise ContextMisuse(f"[{start}, {end}) is not in slot {slot}, which is {self.length(slot)} long")

    def check_save_checkpoint(self, slot: int) -> None:
        self._check_has_checkpoints()
        state = self._at(slot)
        if not state.ready or state.length == 0:
            raise ContextMisuse(f"slot {slot} has no partial state to save")

    def check_load_block(self, slot: int, start: int, end: int) -> None:
        if start != self._at(slot).length:
            raise ContextMisuse(f"block starts at {start}, slot {slot} is {self.length(slot)} long")
        if not start < end <= self._n_ctx:
            raise ContextMisuse(f"block [{start}, {end}) is empty or beyond the {self._n_ctx} tokens of a slot")

    def loaded_block(self, slot: int, end: int) -> None:
        self._set(slot, end, self.kind is StateKind.ATTENTION)

    def check_load_checkpoint(self, slot: int, position: int) -> None:
        self._check_has_checkpoints()
        if not 0 < position <= self.length(slot):
            raise ContextMisuse(f"position {position} is not in slot {slot}, {self.length(slot)} long")

    def loaded_checkpoint(self, slot: int, position: int) -> None:
        self._set(slot, position, True)

    def check_cut(self, slot: int, position: int) -> None:
        if not 0 <= position <= self.length(slot):
            raise ContextMisuse(f"cannot cut slot {slot}, {self.length(slot)} long, at {position}")

    def was_cut(self, slot: int, position: int) -> None:
        self._set(slot, position, self.ready(slot) or position == 0)

    def trimmed(self, slot: int, position: int) -> None:
        self._set(slot, position, position == 0 or self.kind is StateKind.ATTENTION)

    def check_fork(self, source: int, target: int, end: int) -> None:
        if source == target or self.length(target) > 0:
            raise ContextMisuse(f"fork needs a cleared slot, {target} is not")
        if not 0 < end <= self.length(source):
            raise ContextMisuse(f"slot {source} is {self.length(source)} long, not {end}")

    def forked(self, source: int, target: int, end: int) -> None:
        whole = self.ready(source) and end == self.length(source)
        self._set(target, end, whole or self.kind is StateKind.ATTENTION)

    def cleared(self, slot: int) -> None:
        self._set(slot, 0, True)

    def closed(self) -> None:
        """The context is gone: whatever is asked of it from now on is refused, where llama.cpp would follow a null pointer."""
        self._slots, self._outputs = [], ()

    def all_empty(self) -> bool:
        return all(state.length == 0 for state in self._slots)

    def _check_has_checkpoints(self) -> None:
        if self.kind is StateKind.ATTENTION:
            raise ContextMisuse("an attention-only model has no checkpoints")

    def _set(self, slot: int, length: int, ready: bool) -> None:
        state = self._at(slot)
        state.length, state.ready = length, ready

    def _at(self, slot: int) -> _Slot:
        if not 0 <= slot < len(self._slots):
            raise ContextMisuse(f"slot {slot} is outside [0, {len(self._slots)})")
        return self._slots[slot]
