"""Where a prompt is continued from: every way that gives an exact prefix, and the cheapest of them. Pure functions.

Ways (contract 4): stay on a live slot, cut it (where the state can be cut), roll it back to a checkpoint, share another
slot's cells, load blocks from the store behind any of these, or start cold. What makes a way exact is in `_usable`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from engine.context import StateKind
from engine.costs import Costs
from engine.request import Source
from engine.slots import Slot
from kvcache.entry import CheckpointRef, Match, Tier

PARKED_LOSS = 0.02  # what dropping a live token costs against reading it, when the tiers hold it (restores are > 50x faster)
LOST_LOSS = 0.5  # the same when nothing holds it: it would be read again if its conversation comes back


class Base(StrEnum):
    """What happens to the slot first."""

    CLEAR = "clear"
    STAY = "stay"
    CUT = "cut"
    ROLLBACK = "rollback"
    TRIM = "trim"
    FORK = "fork"


@dataclass(frozen=True, slots=True)
class Live:
    """A slot as the choice sees it: `common` leading tokens equal the prompt's, `canonical` came from a canonical read.

    `own`: its last turn was of this conversation, so nothing is lost when what follows `common` is dropped. `usable`:
    it is not being restored just now. `cuts`: False once the context refused a cut of it for this prompt. `tip`: where it
    has a state of its own off the grid (slots.Slot), of `tip_bytes`; 0: nowhere. `ending`: the prompt, by its length, that it can
    answer with nothing read (slots.Ending), by loading `ending_bytes`; 0: none.
    """

    slot: int
    length: int
    common: int
    canonical: int
    idle: bool
    own: bool = False
    usable: bool = True
    cuts: bool = True
    tip: int = 0
    tip_bytes: int = 0
    ending: int = 0
    ending_bytes: int = 0
    ending_canonical: bool = False


def live_of(slot: Slot, common: int, *, idle: bool = True, usable: bool = True, own: bool = False, cuts: bool = True) -> Live:
    """A slot as it is now, `common` of whose tokens lead the prompt; what only its engine knows of it is said besides."""
    tip, ending = slot.tip, slot.ending
    return Live(
        slot.index,
        slot.length,
        common,
        min(slot.canonical, slot.length),
        idle=idle,
        own=own,
        usable=usable and not slot.restoring,
        cuts=cuts,
        tip=tip.position if tip else 0,
        tip_bytes=tip.nbytes if tip else 0,
        ending=ending.position if ending else 0,
        ending_bytes=ending.nbytes if ending else 0,
        ending_canonical=ending is not None and ending.canonical,
    )


def goes_on(slot: Slot, common: int, session: str | None, grid: int) -> bool:
    """Whether a prompt of which the slot has `common` tokens goes on with the conversation of the slot's last turn: by name, or
    because the whole prompt of that turn but for a grid step is in it."""
    same = slot.session is not None and slot.session == session
    return same or (slot.prompt > 0 and common >= min(slot.prompt, slot.length) - grid)


@dataclass(frozen=True, slots=True)
class Ask:
    """The prompt: its length in tokens, the model's kind of state, the grid, the mode; `parks`: a tier holds what is dropped."""

    length: int
    kind: StateKind
    grid: int
    strict: bool
    parks: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """How slot `slot` gets to hold the first `position` tokens.

    `base` leaves `kept` of them (a FORK shares those of slot `origin`), blocks [kept, position) come from the store, then
    `checkpoint`, where there is one, is put in, or the slot's own `tip` or `ending`. `ms` is the estimate of all this and of
    reading the rest.
    """

    slot: int
    base: Base
    kept: int
    position: int
    ms: float
    origin: int | None = None
    checkpoint: CheckpointRef | None = None
    tip: bool = False
    ending: bool = False


def choose(ask: Ask, lives: Sequence[Live], victim: int, match: Match, costs: Costs) -> Plan:
    """The cheapest plan; at equal cost the first of: stay, cut, rollback, fork, restore, cold.

    `victim` is the idle slot to take when no slot's own content is continued. At least the last token stays to be read, but
    where a slot has kept the logits that the last token gave.
    """
    return min(plans(ask, lives, victim, match, costs), key=lambda plan: plan.ms)


def plans(ask: Ask, lives: Sequence[Live], victim: int, match: Match, costs: Costs) -> Iterator[Plan]:
    """Every way that is exact under `ask`."""
    chosen = _Choice(
        ask, match, costs, tuple(accumulate((costs.load(ref.tier, ref.nbytes) for ref in match.blocks), initial=0.0))
    )
    taken = next(live for live in lives if live.slot == victim)
    for live in lives:
        if live.idle:
            yield from chosen.again(live)
            yield from chosen.stay(live)
            yield from chosen.cut(live)
            yield from chosen.rollback(live)
    for live in lives:
        if live.slot != victim and live.usable:
            yield from chosen.fork(live, taken)
    yield from chosen.restore(taken)


@dataclass(frozen=True, slots=True)
class _Choice:
    ask: Ask
    match: Match
    costs: Costs
    sums: tuple[float, ...]  # ms to load the first k blocks

    def again(self, live: Live) -> Iterator[Plan]:
        """The very prompt that was read here last. In strict mode only if a cold read would have made the same logits."""
        at = self.ask.length
        if not 0 < at == live.ending == live.common or (self.ask.strict and not live.ending_canonical):
            return
        if live.length == at:
            yield Plan(live.slot, Base.STAY, at, at, 0.0, ending=True)
        else:
            base = Base.CUT if self.ask.kind is StateKind.ATTENTION else Base.ROLLBACK
            ms = self.costs.load(Tier.RAM, live.ending_bytes) + self._loss(live, at)
            yield Plan(live.slot, base, at, at, ms, ending=True)

    def stay(self, live: Live) -> Iterator[Plan]:
        at = live.length
        if 0 < at == live.common < self.ask.length and (not self.ask.strict or at == self._usable(live)):
            yield Plan(live.slot, Base.STAY, at, at, self._reading(at))

    def cut(self, live: Live) -> Iterator[Plan]:
        """Cuts are tried on window models too: only the context knows whether the window before the cut is still held."""
        if self.ask.kind not in (StateKind.ATTENTION, StateKind.WINDOW) or not live.cuts:
            return
        at = self._usable(live)
        if 0 < at < live.length:
            yield Plan(live.slot, Base.CUT, at, at, self._reading(at) + self._loss(live, at))
        if self.ask.kind is StateKind.ATTENTION and 0 < (kept := self._floor(at)) < live.length:
            for position, ms in self._loads(kept):
                yield Plan(live.slot, Base.CUT, kept, position, ms + self._loss(live, kept))

    def rollback(self, live: Live) -> Iterator[Plan]:
        """To any checkpoint inside the live tokens; where the store goes deeper, keep their cells and load what is missing."""
        usable = self._usable(live)
        if 0 < live.tip <= usable and not self.ask.strict:
            ms = self.costs.load(Tier.RAM, live.tip_bytes) + self._reading(live.tip) + self._loss(live, live.tip)
            yield Plan(live.slot, Base.ROLLBACK, live.tip, live.tip, ms, tip=True)
        for ref in self._checkpoints(usable):
            ms = self._load_ms(ref) + self._reading(ref.position) + self._loss(live, ref.position)
            yield Plan(live.slot, Base.ROLLBACK, ref.position, ref.position, ms, checkpoint=ref)
        if (kept := self._floor(usable)) > 0:
            for ref, ms in self._restores(kept):
                yield Plan(live.slot, Base.TRIM, kept, ref.position, ms + self._loss(live, kept), checkpoint=ref)

    def fork(self, source: Live, taken: Live) -> Iterator[Plan]:
        usable, loss = self._usable(source), self._loss(taken, 0)
        if usable > 0 and (self.ask.kind is StateKind.ATTENTION or usable == source.length):
            yield Plan(taken.slot, Base.FORK, usable, usable, self._reading(usable) + loss, source.slot)
        for ref in self._checkpoints(usable):
            ms = self._load_ms(ref) + self._reading(ref.position) + loss
            yield Plan(taken.slot, Base.FORK, ref.position, ref.position, ms, source.slot, checkpoint=ref)
        if (kept := self._floor(usable)) > 0:
            for ref, ms in self._restores(kept):
                yield Plan(taken.slot, Base.FORK, kept, ref.position, ms + loss, source.slot, checkpoint=ref)

    def restore(self, taken: Live) -> Iterator[Plan]:
        loss = self._loss(taken, 0)
        if self.ask.kind is StateKind.ATTENTION:
            for position, ms in self._loads(0):
                yield Plan(taken.slot, Base.CLEAR, 0, position, ms + loss)
        else:
            for ref, ms in self._restores(0):
                yield Plan(taken.slot, Base.CLEAR, 0, ref.position, ms + loss, checkpoint=ref)
        yield Plan(taken.slot, Base.CLEAR, 0, 0, self._reading(0) + loss)

    def _usable(self, live: Live) -> int:
        """Leading live tokens that may be kept: at most all but the last; in strict mode whole grid steps of a canonical read."""
        at = min(live.common, self.ask.length - 1)
        return self._floor(min(at, live.canonical)) if self.ask.strict else at

    def _checkpoints(self, limit: int) -> Iterator[CheckpointRef]:
        if self.ask.kind is not StateKind.ATTENTION:
            tip = (self.match.tip.checkpoint,) if self.match.tip else ()
            yield from (ref for ref in (*self.match.checkpoints, *tip) if 0 < ref.position <= limit)

    def _restores(self, kept: int) -> Iterator[tuple[CheckpointRef, float]]:
        """Checkpoints beyond `kept` that stored blocks lead to, with the cost of blocks, checkpoint and reading the rest."""
        stored = max(self.match.stored, self.match.tip.position if self.match.tip else 0)
        for ref in self._checkpoints(min(stored, self.ask.length - 1)):
            if ref.position > kept:
                yield ref, self._blocks(kept, ref.position) + self._load_ms(ref) + self._reading(ref.position)

    def _loads(self, kept: int) -> Iterator[tuple[int, float]]:
        """The same for attention models, where every block's end will do; deeper is always at least as good as shallower."""
        position = self._floor(min(self.match.stored, self.ask.length - 1))
        if position > kept:
            yield position, self._blocks(kept, position) + self._reading(position)

    def _blocks(self, start: int, end: int) -> float:
        tip = self.costs.load(Tier.RAM, self.match.tip.block.nbytes) if self.match.tip and end % self.ask.grid else 0.0
        return self.sums[end // self.ask.grid] - self.sums[start // self.ask.grid] + tip

    def _load_ms(self, ref: CheckpointRef) -> float:
        return self.costs.load(ref.tier, ref.nbytes)

    def _reading(self, position: int) -> float:
        return (self.ask.length - position) * self.costs.prefill

    def _loss(self, live: Live, kept: int) -> float:
        """What dropping the slot's tokens after `kept` costs whoever comes back to them."""
        if live.own and kept > 0:
            return 0.0
        return max(0, live.length - kept) * self.costs.prefill * (PARKED_LOSS if self.ask.parks else LOST_LOSS)

    def _floor(self, position: int) -> int:
        return position // self.ask.grid * self.ask.grid


@dataclass(frozen=True, slots=True)
class Situation:
    """What was known of a prompt when it was placed: `common` leading tokens had been decoded before, `diverged`: by a
    sequence that went on differently. `tier`: the slowest one that blocks come from."""

    reuse: bool
    common: int
    diverged: bool
    tier: Tier | None


def load_of(plan: Plan, match: Match) -> tuple[Tier | None, int]:
    """The slowest tier that the plan takes blocks from, None for no blocks, and all bytes it loads, the checkpoint's too."""
    tip = (match.tip.block,) if match.tip and match.tip.position == plan.position > plan.kept else ()
    refs = [ref for ref in (*match.blocks, *tip) if plan.kept <= ref.start and ref.end <= plan.position]
    nbytes = sum(ref.nbytes for ref in refs) + (plan.checkpoint.nbytes if plan.checkpoint else 0)
    if not refs:
        return None, nbytes
    return Tier.DISK if any(ref.tier is Tier.DISK for ref in refs) else Tier.RAM, nbytes


def source_of(plan: Plan, tier: Tier | None) -> Source:
    """Where the first token to be read continues from; live cells with a checkpoint put back count as live."""
    if plan.position == 0:
        return Source.NONE
    if plan.position == plan.kept:
        return Source.LIVE
    return Source.DISK if tier is Tier.DISK else Source.RAM


def describe(plan: Plan, source: Source, situation: Situation) -> str:
    """One sentence for people: what was reused, and why not more."""
    if not situation.reuse:
        return "reuse is off: the self-check of this model failed"
    known = f"; {situation.common} tokens are known"
    differs = f"; differs from an earlier prompt after token {situation.common}" if situation.diverged else ""
    if source is Source.NONE:
        return "nothing of it is held" if situation.common == 0 else f"no usable state is held{differs or known}"
    ways = {
        Base.STAY: f"went on from the live slot at {plan.position}",
        Base.CUT: f"cut the live slot at {plan.position}",
        Base.ROLLBACK: f"rolled the live slot back to its checkpoint at {plan.position}",
        Base.FORK: f"shared a live slot's state up to {plan.position}",
    }
    restored = f"restored tokens {plan.kept} to {plan.position} from {source.value}"
    return (restored if plan.position > plan.kept else ways[plan.base]) + differs


def worth_waiting(position: int, coming: int, grid: int) -> bool:
    """Whether state that another turn is about to have at `coming` saves at least two grid steps over going on from `position`
    now. It cannot wait for ever: a turn that reads gets on with every batch, or ends.
    """
    return coming - position >= 2 * grid
