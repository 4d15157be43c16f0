"""The simulator under a byte budget shared by all conversations: what the RAM tier's tree does, a run of blocks at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvcache.adaptive import Curve, Rollbacks
from kvcache.eviction import by_name
from kvcache.placement import PlacementFacts, positions
from kvcache.runs import Path, Point, Run, Runs, anchor
from kvcache.simulate import Known, Outcome, Turn
from kvcache.thinning import LEAST_TOKENS, worths
from kvcache.watch import Ids, Watch


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a model's state: attention KV a token, and one checkpoint."""

    token: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Budget:
    """`nbytes` for blocks and checkpoints of all conversations together; `evict` is one of eviction.KEYS."""

    placement: str
    evict: str
    nbytes: int
    sizes: Sizes
    grid: int
    interval: int = 0


class Budgeted:
    """Replays turns against one byte budget. A prefix is resumed where all its blocks and a checkpoint are held."""

    def __init__(self, budget: Budget, rollbacks: Rollbacks | None = None, known: Known | None = None) -> None:
        """Raises UnknownPolicy."""
        positions(budget.placement, PlacementFacts(1, 0, budget.grid, 0))
        self.budget = budget
        self._block = budget.sizes.token * budget.grid
        self._runs = Runs(by_name(budget.evict), budget.grid, self._block, budget.sizes.checkpoint)
        self._known = known or Known()
        self._watch = Watch(budget.grid, rollbacks or Rollbacks())
        self._learns = "adaptive" in (*budget.placement.split("+"), budget.evict)

    @property
    def held_bytes(self) -> int:
        return self._runs.used

    @property
    def held(self) -> int:
        """Checkpoints held now."""
        return self._runs.points

    def turn(self, turn: Turn) -> Outcome:
        """Serves one request and parks what is new of it. `rollback` is not followed here: None."""
        grid, ids = self.budget.grid, turn.ids
        known = self._known(ids)
        path = self._runs.walk(ids)
        resumed = self._resume(path.runs, (turn.length - 1) // grid, turn.time)
        curve = self._watch.note(ids, turn.length, turn.marks) if self._learns else None
        held = [] if curve is None else [run.point for run in path.runs if run.point is not None]
        if curve is not None:
            self._judge(held, curve, turn.time)
        self._park(turn, path, self._placed(turn, path, resumed, curve, held))
        return Outcome(turn.length, known * grid, resumed * grid, None)

    def _resume(self, runs: Sequence[Run], usable: int, now: float) -> int:
        """Steps of the deepest checkpoint within `usable`; a load touches the end of a chain alone, as the tier does."""
        for run in reversed(runs):
            if run.point is not None and run.end <= usable:
                self._runs.touch(run.point, now)
                return run.end
        return 0

    def _placed(self, turn: Turn, path: Path, resumed: int, curve: Curve | None, held: Sequence[Point]) -> list[int]:
        grid, interval = self.budget.grid, self.budget.interval
        kept = tuple(point.position for point in held)
        branches = tuple(step * grid for step in path.branches)
        marks = tuple((position, kind, False) for kind, position in turn.marks)
        facts = PlacementFacts(turn.length, resumed * grid, grid, interval, marks, branches, curve, kept)
        return [position // grid for position in positions(self.budget.placement, facts)]

    def _park(self, turn: Turn, path: Path, placed: Sequence[int]) -> None:
        """As the engine does while it reads: the blocks up to each checkpoint, then the checkpoint."""
        for step in placed:
            at = self._park_blocks(turn.ids, self._at(path, step), step, turn.time)
            if at.end == step and at.point is None and self._room(self.budget.sizes.checkpoint, [at]):
                self._runs.mark(at, turn.time)
            path = self._runs.walk(turn.ids)
        self._park_blocks(turn.ids, self._at(path, len(turn.ids)), len(turn.ids), turn.time)

    def _at(self, path: Path, step: int) -> Run:
        """The run that ends at `step`, or where the path does when that is before; a longer one is cut."""
        runs = path.runs if path.partial is None or path.stored <= path.runs[-1].end else [*path.runs, path.partial]
        for run in runs:
            if run.end >= step or run is path.partial:
                inside = min(step, path.stored) - (run.end - len(run.ids))
                return run if inside == len(run.ids) else self._runs.cut(run, inside)
        return runs[-1]

    def _park_blocks(self, ids: Ids, at: Run, end: int, now: float) -> Run:
        """What is new of a chain up to `end` steps, or as much as there is room for; returns where it ends now."""
        if at.end >= end:
            return at
        wanted = min(end - at.end, self.budget.nbytes // self._block)
        self._room(wanted * self._block, [at, anchor(at)])
        fitting = min(wanted, (self.budget.nbytes - self._runs.used) // self._block)
        return self._runs.extend(at, ids[at.end : at.end + fitting], now) if fitting > 0 else at

    def _room(self, nbytes: int, spared: Sequence[Run | Point | None]) -> bool:
        if nbytes > self.budget.nbytes:
            return False
        if self._runs.used + nbytes > self.budget.nbytes:
            self._runs.make_room(nbytes, self.budget.nbytes, spared)
        return self._runs.used + nbytes <= self.budget.nbytes

    def _judge(self, held: Sequence[Point], curve: Curve, now: float) -> None:
        """As habits.Habits does: the checkpoints that were there learn what their conversation can spare."""
        found = worths(curve, [point.run.end for point in held], least=LEAST_TOKENS / self.budget.grid)
        for point, worth in zip(held, found, strict=True):
            self._runs.judge(point, worth, now)
