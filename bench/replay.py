"""Runs plans over traces in one pass each, with learners that learned elsewhere, and the offline optimum beside them."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bench import made_up
from bench.errors import BadOption, TraceError
from bench.tally import Tally
from bench.traces import Reading, Trace, open_trace, trace_files
from kvcache.adaptive import Rollbacks
from kvcache.budgeted import Budget, Budgeted, Sizes
from kvcache.optimum import offline
from kvcache.placement import UnknownPolicy
from kvcache.simulate import Known, Policy, Simulator, Turn
from kvcache.watch import Ids

OPTIMUM_TURNS = 400
HELD_EVERY = 64
TELL_EVERY = 10.0
"""Seconds between two lines of progress where nobody watches a terminal."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """One line of the result: a policy, and where its learner learned (`online` or `held-out`)."""

    placement: str
    evict: str
    keep: int | None
    budget: int | None
    learned: str


@dataclass(slots=True)
class Runner:
    """A plan at work. Held-out plans have one learner a fold, which learned on the other fold's files."""

    plan: Plan
    interval: int
    sizes: Sizes
    tally: Tally = field(default_factory=Tally)
    learners: tuple[Rollbacks, ...] = ()
    _simulators: dict[tuple[int, int], Simulator | Budgeted] = field(default_factory=dict)

    def simulator(self, grid: int, fold: int, known: "Once") -> Simulator | Budgeted:
        """One for each grid and fold, so that what is held lives on from file to file."""
        fold = fold if self.learners else 0
        if (grid, fold) not in self._simulators:
            rollbacks = self.learners[fold] if self.learners else None
            self._simulators[grid, fold] = make_simulator(self.plan, self.interval, self.sizes, grid, rollbacks, known)
        return self._simulators[grid, fold]

    def note_bytes(self) -> None:
        """Called now and then: counting what thousands of conversations hold takes longer than a turn."""
        self.tally.peak_bytes = max(self.tally.peak_bytes, sum(self._held(s) for s in self._simulators.values()))

    def _held(self, simulator: Simulator | Budgeted) -> int:
        return simulator.held_bytes if isinstance(simulator, Budgeted) else simulator.held * self.sizes.checkpoint


class Once(Known):
    """One Known for all simulators of a pass: the ids of a turn are looked up once, however many ask."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: Ids | None = None
        self._found = 0

    def __call__(self, ids: Ids) -> int:
        if ids is not self._ids:
            self._ids, self._found = ids, super().__call__(ids)
        return self._found


def make_simulator(
    plan: Plan, interval: int, sizes: Sizes, grid: int, rollbacks: Rollbacks | None, known: Once | None = None
) -> Simulator | Budgeted:
    """Raises BadOption for a policy that does not exist."""
    try:
        if plan.budget is not None:
            return Budgeted(Budget(plan.placement, plan.evict, plan.budget, sizes, grid, interval), rollbacks, known)
        return Simulator(Policy(plan.placement, plan.evict, plan.keep or 0, grid, interval), rollbacks, known)
    except UnknownPolicy as error:
        raise BadOption("--placement/--evict", str(error)) from None


@dataclass(frozen=True, slots=True)
class Opened:
    """The traces of a run; they are read anew for every pass, and never held."""

    paths: list[Path]
    quick: bool
    seed: int
    limit: int
    reading: Reading

    def nbytes(self) -> int:
        return sum(path.stat().st_size for path in trace_files(self.paths)) if self.paths else 0

    def files(self) -> Iterator[tuple[int, Trace]]:
        """(number, trace) of every file. Raises TraceError; BadOption when there is none."""
        self.reading.again()
        if not self.paths:
            if not self.quick:
                raise BadOption("TRACES", "name at least one trace file or folder (or --quick for a made-up one)")
            for fold in (0, 1):
                yield fold, Trace(Path(f"made-up-{fold}"), "made-up", made_up.GRID, made_up.sessions(6, 40, self.seed + fold))
            return
        for number, path in enumerate(trace_files(self.paths)):
            yield number, open_trace(path, number, self.reading)

    def turns(self, fold: int | None = None) -> Iterator[tuple[int, int, Turn]]:
        """(grid, fold, turn) of everything, or of one fold: files by turns even and odd, each starting when the last ends."""
        left, base, last = self.limit or -1, 0.0, 0.0
        for number, trace in self.files():
            if fold is not None and number % 2 != fold:
                continue
            base = last
            for turn in trace.turns:
                if left == 0:
                    return
                left -= 1
                last = max(last, base + turn.time)
                yield trace.grid, number % 2, replace(turn, time=base + turn.time)


def replay(opened: Opened, runners: Sequence[Runner]) -> None:
    """Trains the held-out learners, then runs every plan in one pass over the traces. Raises TraceError when they are empty."""
    held_out = [runner for runner in runners if runner.plan.learned == "held-out"]
    if held_out:
        learned = tuple(learn_on(opened, 1 - fold) for fold in (0, 1))
        for runner in held_out:
            runner.learners = learned
    known = Once()
    for grid, fold, turn in shown(opened.turns(), opened, "replaying"):
        for runner in runners:
            simulator = runner.simulator(grid, fold, known)
            started = time.thread_time()
            outcome = simulator.turn(turn)
            runner.tally.seconds += time.thread_time() - started
            runner.tally.add(turn.conversation, outcome, len(turn.ids))
            if runner.tally.all.requests % HELD_EVERY == 0:
                runner.note_bytes()
    for runner in runners:
        runner.note_bytes()
        runner.tally.finish()
    if not runners[0].tally.all.requests:
        raise TraceError(opened.paths[0] if opened.paths else Path("-"), 0, "no request could be read: the trace is empty")


def learn_on(opened: Opened, fold: int) -> Rollbacks:
    """A learner that has seen one fold and learns no more."""
    rollbacks, known = Rollbacks(), Once()
    simulators: dict[int, Simulator | Budgeted] = {}
    plan = Plan("none", "adaptive", 1, None, "online")
    for grid, _, turn in shown(opened.turns(fold), opened, f"learning on half {fold + 1} of 2"):
        if grid not in simulators:
            simulators[grid] = make_simulator(plan, 0, Sizes(1, 1), grid, rollbacks, known)
        simulators[grid].turn(turn)
    rollbacks.learning = False
    return rollbacks


def optima(opened: Opened, keeps: Iterable[int]) -> dict[int, tuple[int, int, bool]]:
    """By checkpoints: (fewest tokens re-read, unavoidable tokens, whether exact) over conversations of at most OPTIMUM_TURNS
    turns; longer ones are left out, and `exact` is False then."""
    wanted = sorted(set(keeps))
    found = dict.fromkeys(wanted, (0, 0, True))
    for grid, chains, usable, lengths in shown(_conversations(opened), opened, "offline optimum"):
        for keep in wanted:
            reread, unavoidable, exact = found[keep]
            if len(chains) > OPTIMUM_TURNS:
                found[keep] = (reread, unavoidable, False)
                continue
            best = offline(chains, usable, keep)
            known = Known()
            fresh = sum(length - grid * known(ids) for ids, length in zip(chains, lengths, strict=True))
            found[keep] = (reread + best.reread * grid, unavoidable + fresh, exact and best.exact)
    return found


def _conversations(opened: Opened) -> Iterator[tuple[int, list[Ids], list[int], list[int]]]:
    """(grid, chains, usable steps, lengths) of each conversation, one file in memory at a time."""
    for _, trace in opened.files():
        by_name: dict[str, list[Turn]] = {}
        for turn in trace.turns:
            turns = by_name.setdefault(turn.conversation, [])
            if len(turns) <= OPTIMUM_TURNS:
                turns.append(turn)
        for turns in by_name.values():
            usable = [min(len(turn.ids), (turn.length - 1) // trace.grid) for turn in turns]
            yield trace.grid, [turn.ids for turn in turns], usable, [turn.length for turn in turns]


def shown(items: Iterable[T], opened: Opened, what: str) -> Iterator[T]:
    """The items, with how far the files are read on stderr: with the time left on a terminal, else a line now and then."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from _told(items, opened, what, console)
        return
    with Progress(*columns, transient=True, console=console) as progress:
        task = progress.add_task(what, total=opened.nbytes() or None)
        for item in items:
            progress.update(task, completed=opened.reading.nbytes)
            yield item


def _told(items: Iterable[T], opened: Opened, what: str, console: Console) -> Iterator[T]:
    whole, due = opened.nbytes(), time.monotonic() + TELL_EVERY
    for item in items:
        if time.monotonic() >= due:
            due = time.monotonic() + TELL_EVERY
            console.print(f"{what}: {opened.reading.nbytes / whole:.0%} of the traces read" if whole else what, markup=False)
        yield item
