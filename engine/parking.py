"""Copying state out of the live context into the store: blocks on the grid, checkpoints where the slot stands."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from engine.context import Context, StateKind
from engine.errors import EngineError
from engine.slots import Ending, Slot, SlotTable
from kvcache.chain import child_id, pack_tokens
from kvcache.entry import Block, Checkpoint
from kvcache.errors import CacheError
from kvcache.store import Store

_log = logging.getLogger(__name__)
_MOST_PINS = 1024  # conversations whose pin is kept; beyond that the oldest pin is let go


class Parker:
    """Gives the store what a slot holds and the store lacks; costs nothing when the store is off or `reuse` is.

    A block goes before the checkpoints that stand on it: only so the pair can reach the disk. Blocks are looked for from
    the last one parked, so that a long conversation is not walked again at every checkpoint. Keeping is a service, no duty:
    what goes wrong here is logged and counted in `failures`, and the turn goes on.
    """

    def __init__(
        self,
        context: Context,
        store: Store,
        slots: SlotTable,
        *,
        reuse: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._context, self._store, self._slots = context, store, slots
        self._checkpoints = context.kind is not StateKind.ATTENTION
        self.enabled = reuse and store.enabled
        self._clock = clock
        self._pins: dict[bytes, str] = {}
        self.checkpoints_saved = self.blocks_saved = self.failures = 0
        self.seconds = 0.0

    def park(self, slot: Slot, *, kind: str = "", pinned: bool = False) -> None:
        """Parks all whole blocks of the slot and, when it stands on the grid, its state there as a checkpoint."""
        self._guarded(lambda: self._park(slot, kind, pinned))

    def roll(self, slot: Slot) -> None:
        """Keeps the state where the slot stands as its newest checkpoint and forgets the one before, which was not parked."""
        slot.rolling = None  # first, so that its buffer serves the new one
        self._guarded(lambda: self._roll(slot))

    def keep_tip(self, slot: Slot) -> None:
        """Keeps the state where the slot stands, off the grid, as its tip (slots.Slot)."""
        slot.tip = None
        self._guarded(lambda: self._keep_tip(slot))

    def keep_ending(self, slot: Slot, run: int, *, canonical: bool) -> None:
        """Keeps how a prompt ended whose last token was in run `run` of the last decode (slots.Ending)."""
        slot.ending = None
        self._guarded(lambda: self._keep_ending(slot, run, canonical))

    def settle(self, slot: Slot) -> None:
        """At the end of a turn: everything that is not parked yet, and the newest checkpoint."""
        self._guarded(lambda: self._settle(slot))

    def secure(self, slot: Slot, kept: int = 0) -> None:
        """Before a slot is taken but for `kept` tokens: what the store has dropped of it since it was parked goes in again, and
        its tip, if that is lost, so that the conversation comes back to it as it would on the slot."""
        slot.parked = 0
        self.settle(slot)
        tip = slot.tip
        if tip is not None and tip.position > kept:
            self._guarded(lambda: self._park_tip(slot, tip))

    def _guarded(self, act: Callable[[], None]) -> None:
        if not self.enabled:
            return
        started = self._clock()
        try:
            act()
        except (EngineError, CacheError, OSError, MemoryError):
            self.failures += 1
            _log.exception("state could not be parked; serving goes on without it")
        self.seconds += self._clock() - started

    def _park(self, slot: Slot, kind: str, pinned: bool) -> None:
        self._park_blocks(slot)
        if self._stands_on_grid(slot) and not self._held(slot) and self._leads_to(self._slots.id_at(slot, slot.length)):
            self._store.park_checkpoint(self._save(slot), kind=kind, session=slot.session)
        if pinned:
            self._pin(slot, kind)

    def _pin(self, slot: Slot, kind: str) -> None:
        """Pins the checkpoint where the slot stands and lets go of the one of the same kind that it followed: of the last user
        message, say, a conversation pins one, however long it grows."""
        id = self._slots.id_at(slot, slot.length)
        for older in [older for older in slot.ids if self._pins.get(older) == kind and older != id]:
            self._store.unpin(older)
            del self._pins[older]
        if self._store.pin(id):
            self._pins[id] = kind
        if len(self._pins) > _MOST_PINS:
            self._store.unpin(oldest := next(iter(self._pins)))
            del self._pins[oldest]

    def _roll(self, slot: Slot) -> None:
        if self._stands_on_grid(slot) and not self._held(slot):
            slot.rolling = self._save(slot)

    def _keep_tip(self, slot: Slot) -> None:
        self.checkpoints_saved += 1
        slot.tip = Checkpoint(b"", slot.length, self._context.save_checkpoint(slot.index), canonical=False)

    def _keep_ending(self, slot: Slot, run: int, canonical: bool) -> None:
        state, logits = None, self._context.logits(run)
        if self._checkpoints:
            self.checkpoints_saved += 1
            state = Checkpoint(b"", slot.length, self._context.save_checkpoint(slot.index), canonical)
        slot.ending = Ending(slot.length, state, logits, canonical)

    def _settle(self, slot: Slot) -> None:
        rolling, slot.rolling = slot.rolling, None
        self._park(slot, "turn_end", False)
        if rolling is not None and self._leads_to(rolling.id):
            self._store.park_checkpoint(rolling, kind="turn_end", session=slot.session)

    def _park_tip(self, slot: Slot, tip: Checkpoint) -> None:
        start = tip.position // self._slots.grid * self._slots.grid
        tokens = tuple(slot.tokens[start : tip.position])
        parent = self._slots.id_at(slot, start)
        id = child_id(parent, pack_tokens(tokens))
        block = Block(id, parent, start, tokens, self._context.save_block(slot.index, start, tip.position), False)
        self._store.park_tip(block, replace(tip, id=id), slot.session)

    def _park_blocks(self, slot: Slot) -> None:
        grid = self._slots.grid
        for number in range(self._first_missing(slot), slot.length // grid):
            start = number * grid
            canonical = start + grid <= slot.canonical
            if not self._store.has_block(slot.ids[number], canonical) and not self._park_block(slot, start, canonical):
                return  # no room: a later block would have a gap before it
            slot.parked = number + 1

    def _park_block(self, slot: Slot, start: int, canonical: bool) -> bool:
        end = start + self._slots.grid
        payload = self._context.save_block(slot.index, start, end)
        parent, id = self._slots.id_at(slot, start), self._slots.id_at(slot, end)
        self.blocks_saved += 1
        return self._store.park_block(Block(id, parent, start, tuple(slot.tokens[start:end]), payload, canonical), slot.session)

    def _first_missing(self, slot: Slot) -> int:
        """The block to go on with: eviction takes the ends of chains, so the last ones parked may be gone again."""
        number = slot.parked
        while number > 0 and not self._store.has_block(slot.ids[number - 1]):
            number -= 1
        return number

    def _stands_on_grid(self, slot: Slot) -> bool:
        return self._checkpoints and slot.length > 0 and slot.length % self._slots.grid == 0

    def _leads_to(self, id: bytes) -> bool:
        """Whether the block before a checkpoint found room: else the checkpoint would drive out one that can be reached."""
        return self._store.has_block(id)

    def _held(self, slot: Slot) -> bool:
        return self._store.has_checkpoint(self._slots.id_at(slot, slot.length), slot.canonical == slot.length)

    def _save(self, slot: Slot) -> Checkpoint:
        self.checkpoints_saved += 1
        id = self._slots.id_at(slot, slot.length)
        return Checkpoint(id, slot.length, self._context.save_checkpoint(slot.index), slot.canonical == slot.length)
