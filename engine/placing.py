"""Finding a turn its slot: what is known of its prompt, where it is cheapest to go on, and whether waiting is cheaper still."""

import logging
from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile

from engine.config import EngineConfig
from engine.context import Context, StateKind
from engine.costs import CostMeter
from engine.errors import StateRefused
from engine.request import Exact, Resume
from engine.restoring import CutRefused, Restorer
from engine.resume import Ask, Live, Plan, Situation, choose, describe, goes_on, live_of, load_of, source_of, worth_waiting
from engine.slots import Slot, SlotTable, common_prefix, victim
from engine.turn import Phase, Turn
from kvcache import placement
from kvcache.entry import Match
from kvcache.errors import CacheError
from kvcache.habits import Habits
from kvcache.placement import PlacementFacts, tip_position
from kvcache.store import Store

_log = logging.getLogger(__name__)
_NOTHING = Match((), (), ())
_ATTEMPTS = 16  # plans that may fail (entries dropped meanwhile, damaged, refused) before the prompt is read cold
CUT_SHARE = 0.03
_PARK_EVERY = 2048  # tokens between parkings of a long prompt on a model that needs no checkpoints, rounded up to the grid


class Placer:
    """Puts waiting turns on slots. `interval` is the distance of regular checkpoints in tokens, 0 where none are needed."""

    def __init__(
        self, context: Context, store: Store, slots: SlotTable, restorer: Restorer, config: EngineConfig, meter: CostMeter
    ) -> None:
        self._context, self._store, self._slots = context, store, slots
        self._restorer, self._config, self._meter = restorer, config, meter
        self._habits = Habits(store)
        self.interval = self._find_interval()
        self.failures = 0

    def place(self, turn: Turn, running: Sequence[Turn]) -> bool:
        """Gives the turn a slot and begins to restore what it can there; True once that is done.

        False, changing nothing, while one of `running` is about to read most of the same prompt: then sharing its state is
        cheaper than reading it a second time beside it. At least one slot must be idle, or the turn have one already.
        """
        if turn.still_waits():
            return False
        refused: set[int] = set()
        for attempt in range(_ATTEMPTS):
            last = attempt == _ATTEMPTS - 1
            match = _NOTHING if last else self._match(turn)
            lives = self._lives(turn, refused, blind=last or not self._reuses(turn))
            plan = choose(self._ask(turn), lives, self._victim(turn), match, self._meter.costs)
            if self._is_coming(turn, plan, running):
                return False
            if self._begin(turn, plan, match, lives, refused):
                return True
        raise StateRefused("no slot could be made ready")

    def _begin(self, turn: Turn, plan: Plan, match: Match, lives: Sequence[Live], refused: set[int]) -> bool:
        situation = self._situation(turn, plan, match, lives)  # before anything is dropped
        try:
            turn.restoration = self._restorer.begin(plan, match)
        except CutRefused:
            refused.add(plan.slot)
            return False
        except (CacheError, StateRefused) as error:
            self.failures += 1
            _log.warning("a resume point could not be used, looking for another: %s", error)
            if isinstance(error, StateRefused):
                self._context.clear(plan.slot)
                self._slots.clear(self._slots[plan.slot])
            return False
        self._occupy(turn, plan, situation, match)
        return True

    def _occupy(self, turn: Turn, plan: Plan, situation: Situation, match: Match) -> None:
        slot = self._slots[plan.slot]
        if turn.slot is not None and turn.slot is not slot:
            turn.slot.busy = False
        slot.busy, slot.session, slot.prompt = True, turn.request.session, turn.prompt
        self._slots.touch(slot)
        turn.slot, turn.phase = slot, Phase.RESTORING
        turn.resume = turn.resume or self._resume(plan, situation)
        self._mark(turn, plan.position, match)

    def _resume(self, plan: Plan, situation: Situation) -> Resume:
        restored = max(0, plan.position - plan.kept)
        reread = max(0, situation.common - plan.position)
        source = source_of(plan, situation.tier)
        reason = describe(plan, source, situation)
        told = (restored, reread, situation.common, situation.diverged, reason)
        return Resume(source, plan.position, *told, fill=self._fill())

    def _situation(self, turn: Turn, plan: Plan, match: Match, lives: Sequence[Live]) -> Situation:
        """What of the prompt was decoded before, by whom ever, and whether that went on differently."""
        best = max(lives, key=lambda live: (live.common, live.length))
        common, longer = best.common, best.length > best.common
        stored, stored_longer = self._stored(turn.sequence, match)
        if stored >= common:
            longer = stored_longer or (stored == common and longer)
            common = stored
        diverged = longer and common < len(turn.sequence)
        return Situation(self._config.reuse, common, diverged, load_of(plan, match)[0])

    def _stored(self, prompt: list[int], match: Match) -> tuple[int, bool]:
        """Leading tokens of the prompt that lie in stored blocks, whole or in part, and whether those go on otherwise."""
        whole = len(match.blocks)
        whole += sum(
            1 for _ in takewhile(self._store.has_block, match.ids[whole:])
        )  # more where only canonical ones were asked for
        at = whole * self._slots.grid
        if at == 0:
            return 0, False
        rest = prompt[at : at + self._slots.grid]
        following = [common_prefix(list(tokens), rest) for _, tokens in self._store.children(match.ids[whole - 1])]
        return at + max(following, default=0), bool(following)

    def _reuses(self, turn: Turn) -> bool:
        return self._config.reuse and not turn.request.cold

    def _match(self, turn: Turn) -> Match:
        if not self._reuses(turn) or not self._store.enabled:
            return _NOTHING
        request = turn.request
        return self._store.match(turn.sequence, canonical_only=request.exact is Exact.STRICT, counted=not request.background)

    def _ask(self, turn: Turn) -> Ask:
        strict = turn.request.exact is Exact.STRICT
        return Ask(len(turn.sequence), self._context.kind, self._slots.grid, strict, self._store.enabled)

    def _lives(self, turn: Turn, refused: Collection[int], *, blind: bool) -> tuple[Live, ...]:
        return tuple(
            self._live(slot, turn, 0 if blind else common_prefix(slot.tokens, turn.sequence), refused) for slot in self._slots
        )

    def _live(self, slot: Slot, turn: Turn, common: int, refused: Collection[int]) -> Live:
        mine = slot is turn.slot
        return live_of(
            slot,
            common,
            idle=not slot.busy or mine,
            usable=not mine,
            own=goes_on(slot, common, turn.request.session, self._slots.grid),
            cuts=slot.index not in refused,
        )

    def _victim(self, turn: Turn) -> int:
        chosen = turn.slot.index if turn.slot is not None else victim(list(self._slots))
        if chosen is None:
            raise StateRefused("every slot is busy")
        return chosen

    def _is_coming(self, turn: Turn, plan: Plan, running: Sequence[Turn]) -> bool:
        """Whether to wait, and for whom: a turn that waits is not looked at again before that one is there."""
        best = max(self._coming(turn, running), key=lambda found: found[1], default=None)
        turn.awaits = best if best and self._config.reuse and worth_waiting(plan.position, best[1], self._slots.grid) else None
        return turn.awaits is not None

    def _coming(self, turn: Turn, running: Sequence[Turn]) -> Iterator[tuple[Turn, int]]:
        """Running turns that are going to stand, with state that could be shared, at these positions of this prompt."""
        strict = turn.request.exact is Exact.STRICT
        for other in running:
            if other.is_reading() and (not strict or _reads_canonically(other)):
                shared = common_prefix(other.sequence, turn.sequence)
                shared = min(shared, len(turn.sequence) - 1) // self._slots.grid * self._slots.grid
                yield from ((other, at) for at in self._shareable(other, shared) if other.position < at <= shared)

    def _shareable(self, other: Turn, shared: int) -> tuple[int, ...]:
        if self._context.kind is StateKind.ATTENTION:
            return (shared,)
        last_cut = other.end // self._slots.grid * self._slots.grid  # there it stands between two batches, checkpoint or not
        return (*other.stops, last_cut) if self._store.enabled else (last_cut,)

    def _mark(self, turn: Turn, start: int, match: Match) -> None:
        """Where the rest of the prompt, and what will be generated, is worth a checkpoint; learns from where it left the last."""
        grid, length = self._slots.grid, len(turn.sequence)
        if self.interval == 0:
            if self._store.enabled and self._config.reuse:  # no checkpoints, but blocks go out every so often
                step = -(-_PARK_EVERY // grid) * grid
                turn.stops = tuple(range((start // step + 1) * step, length + turn.limit, step))
            return
        anchors = tuple((a.position, a.kind.value, a.pinned) for a in turn.request.anchors)
        curve = None  # a prompt of our own making says nothing of how clients go on
        if not turn.request.background:
            curve = self._habits.expect(match, length, [(kind, position) for position, kind, _ in anchors])
        kept = tuple(ref.position for ref in match.checkpoints)
        fill = turn.resume.fill if turn.resume else 0
        turn.tip = self._tip(turn, start)
        prompt = PlacementFacts(length, start, grid, self.interval, anchors, curve=curve, kept=kept, fill=fill, tip=turn.tip)
        answer = PlacementFacts(length + turn.limit + 1, length, grid, self.interval)
        wanted = {p for facts in (prompt, answer) for p in placement.positions(self._config.placement, facts)}
        if length % grid == 0:
            wanted.add(length)  # where a strict follow-up will want to go on
        turn.stops = tuple(sorted({*wanted, turn.tip} - {0}))
        for position, kind, pinned in anchors:
            at = position // grid * grid
            if at not in turn.marks or (pinned and not turn.marks[at][1]):
                turn.marks[at] = (kind, pinned)

    def _tip(self, turn: Turn, start: int) -> int:
        """Where the answer of a chat starts: behind the last anchor and HEADER_TOKENS, if that is behind the last grid multiple
        and in append mode. A cut there leaves every stored state canonical, though not the last logits, which append mode does
        not promise. 0: no tip."""
        length, grid = len(turn.sequence), self._slots.grid
        at = tip_position([a.position for a in turn.request.anchors], length)
        return at if turn.request.exact is Exact.APPEND and at > max(start, length // grid * grid) else 0

    def _fill(self) -> int:
        """At most CUT_SHARE of the reading may go into batches that checkpoints cut off, as far as no return has to read more
        again than the finest interval leaves to it anyway."""
        return min(placement.FINEST_INTERVAL, self._context.n_batch, int(self._meter.costs.batch / CUT_SHARE))

    def _find_interval(self) -> int:
        if self._context.kind is StateKind.ATTENTION or not (self._store.enabled and self._config.reuse):
            return 0
        budget = self._store.config.ram_bytes or self._store.config.disk_bytes
        return self._config.checkpoint_interval or placement.derive_interval(
            budget, self._context.checkpoint_bytes, self._context.n_ctx, self._slots.grid
        )


def _reads_canonically(turn: Turn) -> bool:
    """Whether a strict request may share what this turn is going to read."""
    if turn.phase is Phase.RESTORING:
        return turn.position == 0 or turn.request.exact is Exact.STRICT
    return turn.slot is not None and turn.slot.canonical == turn.slot.length
