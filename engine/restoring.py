"""Carrying out a resume plan: the slot's own cells first, then stored blocks a few at a time, the checkpoint last."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.context import Context
from engine.errors import StateRefused
from engine.parking import Parker
from engine.resume import Base, Plan, load_of
from engine.slots import Slot, SlotTable
from kvcache.entry import Block, Checkpoint, Match, Tier
from kvcache.errors import EntryGone
from kvcache.store import Store


class CutRefused(StateRefused):
    """A window model no longer holds what a cut of this slot needs; nothing was changed, another plan is needed."""


@dataclass(slots=True)
class Restoration:
    """A plan half carried out. `tier` is the slowest tier that was needed, None when live cells were enough."""

    plan: Plan
    slot: Slot
    checkpoint: Checkpoint | None
    blocks: Iterator[Block]
    tier: Tier | None
    nbytes: int
    seconds: float = 0.0


class Restorer:
    """Puts a slot and its bookkeeping where a plan wants them."""

    def __init__(
        self, context: Context, store: Store, slots: SlotTable, parker: Parker, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._context, self._store, self._slots, self._parker, self._clock = context, store, slots, parker, clock

    def begin(self, plan: Plan, match: Match) -> Restoration:
        """Secures what the slot is about to lose, then makes it hold `plan.kept` tokens.

        Raises EntryGone and DamagedEntry (the checkpoint was dropped or is bad) and CutRefused, all of them before
        anything was changed, and StateRefused, after which the slot must be cleared.
        """
        slot, started = self._slots[plan.slot], self._clock()
        checkpoint = self._checkpoint(plan, slot)
        if plan.base is not Base.STAY:
            self._parker.secure(slot, plan.kept)
            self._make_base(plan, slot)
        slot.restoring = True
        blocks = self._store.restore(match, plan.position, plan.kept) if plan.position > plan.kept else iter(())
        tier, nbytes = load_of(plan, match)
        return Restoration(plan, slot, checkpoint, blocks, tier, nbytes, self._clock() - started)

    def _checkpoint(self, plan: Plan, slot: Slot) -> Checkpoint | None:
        """What is put in last; a slot that stays where its prompt ended has that state already."""
        if plan.checkpoint is not None:
            return self._store.load_checkpoint(plan.checkpoint)
        if plan.ending and slot.ending is not None and plan.base is not Base.STAY:
            return slot.ending.state
        return slot.tip if plan.tip else None

    def _make_base(self, plan: Plan, slot: Slot) -> None:
        if plan.base is Base.CUT and not self._context.cut(slot.index, plan.kept):
            raise CutRefused(f"slot {slot.index} cannot be cut at {plan.kept}")
        if plan.base is Base.TRIM:
            self._context.trim(slot.index, plan.kept)
        if plan.base in (Base.CUT, Base.TRIM):
            self._slots.cut(slot, plan.kept)
        if plan.base in (Base.CLEAR, Base.FORK):
            self._context.clear(slot.index)
            self._slots.clear(slot)
        if plan.base is Base.FORK and plan.origin is not None:
            self._context.fork(plan.origin, slot.index, plan.kept)
            self._slots.share(self._slots[plan.origin], slot, plan.kept)

    def advance(self, restoration: Restoration, seconds: float) -> bool:
        """Loads blocks for about `seconds` (at least one); True when the slot stands at the plan's position, ready to decode.

        Raises EntryGone, DamagedEntry and StateRefused; then the slot must be cleared.
        """
        started = self._clock()
        for block in restoration.blocks:
            self._context.load_block(restoration.slot.index, block.start, block.end, block.payload)
            self._slots.adopt(restoration.slot, block.tokens, canonical=block.canonical)
            del block  # so that its buffer may serve the next one
            if self._clock() - started > seconds:
                restoration.seconds += self._clock() - started
                return False
        self._finish(restoration)
        restoration.seconds += self._clock() - started
        return True

    def _finish(self, restoration: Restoration) -> None:
        slot, position = restoration.slot, restoration.plan.position
        if slot.length < position:
            raise EntryGone(f"the block at {slot.length}")
        if restoration.checkpoint is not None:
            self._context.load_checkpoint(slot.index, position, restoration.checkpoint.payload)
            self._slots.cut(slot, position)
            self._slots.state_from(slot, canonical=restoration.checkpoint.canonical)
        slot.restoring = False
