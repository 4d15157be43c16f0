"""What is resident where: the tokens of every slot, their chain ids, and how much of them came from a canonical read.

The table mirrors the context; whoever changes one changes the other in the same breath, and clears both when in doubt.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvcache.chain import child_id, pack_tokens
from kvcache.entry import Checkpoint


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of the last prompt that a slot read: `logits`, shape (n_vocab,), are those of its last token, so the same prompt
    is answered with nothing read. `state` is None where any cut is exact. `canonical`: the whole prompt was a canonical read."""

    position: int
    state: Checkpoint | None
    logits: NDArray[np.float32]
    canonical: bool

    @property
    def nbytes(self) -> int:
        return self.logits.nbytes + (self.state.nbytes if self.state else 0)


@dataclass(slots=True)
class Slot:
    """One llama sequence that can decode. Lengths are token counts.

    `ids[k]` is the chain id after (k+1)*grid tokens. `canonical` leading tokens came from a canonical read, always whole
    grid steps. `parked` leading blocks were offered to the store since they were last changed. `prompt` is the length of the
    last prompt read here; `rolling` the newest checkpoint of a generation, not yet parked. `tip`: the state at the start of the
    last answer, off the grid, so never parked and never canonical; it spares an append-mode prompt that leaves there (asked
    again, or with the answer written otherwise) up to a grid step of reading. `ending` is kept beside the slot like it.
    """

    index: int
    tokens: list[int] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)
    canonical: int = 0
    parked: int = 0
    prompt: int = 0
    session: str | None = None
    used: int = 0
    busy: bool = False
    restoring: bool = False
    rolling: Checkpoint | None = None
    tip: Checkpoint | None = None
    ending: Ending | None = None

    @property
    def length(self) -> int:
        return len(self.tokens)


class SlotTable:
    """Owns the slots' bookkeeping. `root` is the chain id of the empty prefix, None when nothing is ever stored."""

    def __init__(self, count: int, grid: int, root: bytes) -> None:
        self.grid = grid
        self._root = root
        self._tick = 0
        self._slots = tuple(Slot(index) for index in range(count))

    def __getitem__(self, index: int) -> Slot:
        return self._slots[index]

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def append(self, slot: Slot, tokens: Sequence[int], *, prefill: bool) -> None:
        """`tokens` were decoded. A prefill run that continues a canonical read on the grid extends it (contract 5)."""
        start = slot.length
        slot.tokens.extend(tokens)
        if slot.length // self.grid > len(slot.ids):
            self._extend_ids(slot)
        if prefill and start == slot.canonical and slot.length % self.grid == 0:
            slot.canonical = slot.length

    def adopt(self, slot: Slot, tokens: Sequence[int], *, canonical: bool) -> None:
        """A stored block follows in the slot: `tokens` are one grid step."""
        if canonical and slot.canonical == slot.length:
            slot.canonical += len(tokens)
        slot.tokens.extend(tokens)
        self._extend_ids(slot)
        slot.parked = max(slot.parked, len(slot.ids))

    def state_from(self, slot: Slot, *, canonical: bool) -> None:
        """The slot's partial state now is a checkpoint's; unless that is canonical, what is read on from it is not."""
        if not canonical:
            slot.canonical = min(slot.canonical, max(0, slot.length - self.grid))

    def share(self, source: Slot, target: Slot, end: int) -> None:
        """`target`, empty, shares the first `end` tokens of `source`."""
        target.tokens = source.tokens[:end]
        target.ids = source.ids[: end // self.grid]
        target.canonical = min(source.canonical, end // self.grid * self.grid)
        target.parked = min(source.parked, len(target.ids))

    def cut(self, slot: Slot, end: int) -> None:
        """Tokens from `end` on are dropped."""
        del slot.tokens[end:]
        whole = end // self.grid
        del slot.ids[whole:]
        slot.canonical = min(slot.canonical, whole * self.grid)
        slot.parked = min(slot.parked, whole)
        if slot.rolling is not None and slot.rolling.position > end:
            slot.rolling = None
        if slot.tip is not None and slot.tip.position > end:
            slot.tip = None
        if slot.ending is not None and slot.ending.position > end:
            slot.ending = None

    def clear(self, slot: Slot) -> None:
        self.cut(slot, 0)
        slot.prompt, slot.session, slot.rolling, slot.restoring = 0, None, None, False

    def is_canonical(self, slot: Slot, start: int) -> bool:
        """Whether all of the slot was a canonical read, of which the run that began at `start` was the last."""
        return slot.canonical == slot.length or slot.canonical == start == slot.length // self.grid * self.grid

    def touch(self, slot: Slot) -> None:
        self._tick += 1
        slot.used = self._tick

    def id_at(self, slot: Slot, position: int) -> bytes:
        """Chain id of the first `position` tokens, a multiple of the grid."""
        return slot.ids[position // self.grid - 1] if position else self._root

    def _extend_ids(self, slot: Slot) -> None:
        for start in range(len(slot.ids) * self.grid, slot.length - self.grid + 1, self.grid):
            parent = self.id_at(slot, start)
            slot.ids.append(child_id(parent, pack_tokens(slot.tokens[start : start + self.grid])))


def victim(slots: Sequence[Slot]) -> int | None:
    """The idle slot to take for something new: an empty one, else the one unused the longest; None when all are busy."""
    idle = [slot for slot in slots if not slot.busy]
    return min(idle, key=lambda slot: (slot.length > 0, slot.used)).index if idle else None


def common_prefix(a: list[int], b: list[int]) -> int:
    """Leading equal tokens. Compares slices, which is C speed (and why both are lists), and halves only the one that differs."""
    limit = min(len(a), len(b))
    start, step = 0, 1024
    while start < limit and step:
        end = min(start + step, limit)
        if a[start:end] == b[start:end]:
            start = end
        else:
            limit, step = end - 1, max(1, (end - start) // 2)
    return start
