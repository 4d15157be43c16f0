"""Choosing an edit of a history that outgrows its window: what goes, what stays, and what must be read again for it.

An edit in the middle costs what stands behind it: the state is restored at the deepest checkpoint before the first changed
token, and everything after that is read again. So a plan weighs what it removes against where it removes it. Three levels, the
first that reaches the target wins; within levels 1 and 2, the plan with the least expected time:

1 stub what nothing near rests on: superseded results, failures and merely present results that are not near the frontier;
2 stub results of the critical chain as well, farthest first, none of the near ones;
3 archive the oldest exchanges, with the continuation in their place, and keep as much of the newest as fits.

Leading system messages, the first user message and the newest exchange always stay.

    after  = sum of what is kept + stubs + continuation       reread = after - resume
    ms     = restore(resume) + reread * ms a token            (the estimated time to the next token)
    expected time = ms + sum over stubs of  0.8^distance * its tokens * ms a token
                    (a near result is likelier to be fetched and read again; 0 for a superseded one)

In a plain chain of one result a round the paper's tie rule puts nearly every result on the critical chain, so level 1 is for
histories with stale, failed or parallel results and level 2 does most of the work; by then "farthest first" is what decides.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from keeper.distance import distances
from keeper.edit import Budget, Costs, Decision, EditPlan, Fate
from keeper.excerpt import size
from keeper.graph import Graph, Kind
from keeper.message import Message
from keeper.stub import saves, stub

MOST_RESUME_POINTS = 64
DECAY = 0.8
_WRAPPING_TOKENS = 8
_LEVELS = {
    1: "stubs of results that nothing near the frontier rests on",
    2: "stubs that reach into the critical chain, farthest first",
    3: "the oldest exchanges go to the archive, with the continuation in their place",
}


def plan_edit(history: Sequence[Message], graph: Graph, costs: Costs, budget: Budget) -> EditPlan:
    """The edit for `history`, whose graph and costs these are (one node and one token count for each message).

    A pure function: costs are what the engine measured, or what a proxy assumes. Never raises on an accepted history; where
    even level 3 does not fit, `fits` is False and the view is the smallest there is. ValueError: the three do not match.
    """
    if not len(history) == len(graph.nodes) == len(costs.tokens):
        raise ValueError(f"{len(history)} messages, {len(graph.nodes)} nodes and {len(costs.tokens)} token counts do not match")
    planner = _Planner(graph, costs, budget)
    if planner.total <= budget.limit:
        return planner.unchanged()
    return planner.stubbed(1) or planner.stubbed(2) or planner.archived()


@dataclass(frozen=True)
class _Stub:
    """A result that could be stubbed: from which level on, how far it is (inf: nothing needs it), and what it would save."""

    position: int
    level: int
    distance: float
    saved: int
    text: str
    reason: str


class _Planner:
    """One history's numbers, worked out once; the methods only read them."""

    def __init__(self, graph: Graph, costs: Costs, budget: Budget) -> None:
        self.graph, self.costs, self.budget = graph, costs, budget
        self.starts = costs.starts()
        self.total = self.starts[-1]
        self.distance = distances(graph)
        self.head = _head(graph)
        self.newest = _newest(graph)
        self.stubs = sorted(self._stubs(), key=lambda s: (s.level, -s.distance, s.position))

    def _stubs(self) -> Iterator[_Stub]:
        protected = self.graph.protected()
        for node in self.graph.nodes[: self.newest]:
            if node.kind is not Kind.RESULT or not (ranked := self._rank(node.position, node.position in protected)):
                continue
            tokens = self.costs.tokens[node.position]
            text = stub(self.graph, node.position, tokens)
            left = math.ceil(tokens * size(text) / max(1, size(node.text))) + _WRAPPING_TOKENS
            if saves(node.text, text) and left < tokens:
                yield _Stub(node.position, ranked[0], ranked[1], tokens - left, text, ranked[2])

    def _rank(self, position: int, protected: bool) -> tuple[int, float, str] | None:
        """(level, distance, why) of stubbing a result; None where it must stay."""
        distance = self.distance.get(position, math.inf)
        if (by := self.graph.superseded.get(position)) is not None:
            return 1, math.inf, f"superseded by message {by}"
        if distance <= self.budget.near or not self.graph.is_live(position):
            return None
        if protected:
            return 2, distance, f"on the critical chain, {_far(distance)}"
        what = "failed" if self.graph.nodes[position].failed else "merely present"
        return 1, distance, f"{what}, {_far(distance)}"

    def stubbed(self, level: int) -> EditPlan | None:
        """The plan of stubs up to `level` that reaches the target in the least expected time; None where none reaches it."""
        allowed = [s for s in self.stubs if s.level <= level]
        tried = (self._from(resume, allowed) for resume in self._resume_points(allowed))
        best = min(filter(None, tried), key=self._expected_ms, default=None)
        return self._plan(level, {s.position: s for s in best}) if best else None

    def _resume_points(self, stubs: Iterable[_Stub]) -> list[int]:
        """Where an edit could resume; a sample of them, since each is tried with every stub."""
        points = sorted({self.costs.resume(self.starts[s.position]) for s in stubs})
        return points[:: max(1, math.ceil(len(points) / MOST_RESUME_POINTS))]

    def _from(self, resume: int, stubs: Sequence[_Stub]) -> list[_Stub]:
        """The least needed stubs behind `resume` that bring the view to the target; [] where all of them do not."""
        needed = self.total - self.budget.target
        chosen: list[_Stub] = []
        for candidate in stubs:
            if needed <= 0:
                break
            if self.starts[candidate.position] >= resume:
                chosen.append(candidate)
                needed -= candidate.saved
        return chosen if needed <= 0 else []

    def _expected_ms(self, stubs: Sequence[_Stub]) -> float:
        saved = sum(s.saved for s in stubs)
        resume = self.costs.resume(self.starts[min(s.position for s in stubs)])
        fetched_again = sum(math.pow(DECAY, s.distance) * s.saved for s in stubs) * self.costs.reread_ms_a_token
        return self.costs.ms(resume, self.total - saved - resume) + fetched_again

    def archived(self) -> EditPlan:
        """Archives up to the earliest border from which the rest fits the target, else the limit, else all but the newest
        exchange. Stale results behind the border are stubbed as well, since all of that is read again anyway."""
        borders = self._borders()
        sizes = self._sizes_from(borders)
        fitting = (b for most in (self.budget.target, self.budget.limit) for b in borders if sizes[b] <= most)
        border = next(fitting, borders[-1])
        stale = {s.position: s for s in self.stubs if s.position >= border and s.position in self.graph.superseded}
        return self._plan(3, stale, border)

    def _borders(self) -> list[int]:
        """Where a tail may begin: never between a call and its results."""
        first = self._behind_head()
        found = [p for p in range(first, self.newest) if self.graph.nodes[p].kind is not Kind.RESULT]
        return [*found, max(self.newest, first)]

    def _behind_head(self) -> int:
        return max(self.head, default=-1) + 1

    def _sizes_from(self, borders: Sequence[int]) -> dict[int, int]:
        """Tokens of the view for each border."""
        saved = {s.position: s.saved for s in self.stubs if s.position in self.graph.superseded}
        fixed = self.costs.overhead + sum(self.costs.tokens[p] for p in self.head) + self.budget.continuation
        sizes: dict[int, int] = {}
        stale, upper = 0, len(self.costs.tokens)
        for border in reversed(borders):
            stale += sum(saved.get(p, 0) for p in range(border, upper))
            upper = border
            sizes[border] = fixed + self.total - self.starts[border] - stale
        return sizes

    def unchanged(self) -> EditPlan:
        decisions = tuple(self._kept(position, "the view fits") for position in range(len(self.costs.tokens)))
        reason = f"{self.total:,} tokens fit the limit of {self.budget.limit:,}"
        return EditPlan(decisions, 0, None, 0, self.total, 0, self.total, self.total, 0.0, True, reason)

    def _plan(self, level: int, stubs: dict[int, _Stub], border: int = 0) -> EditPlan:
        decisions = tuple(self._decide(position, stubs, border) for position in range(len(self.costs.tokens)))
        changed = (d.position for d in decisions if d.fate is not Fate.KEEP)
        first = min(next(changed, len(decisions)), self._behind_head() if border else len(decisions))
        resume = self.costs.resume(self.starts[first])
        after = self.costs.overhead + sum(d.tokens for d in decisions) + (self.budget.continuation if border else 0)
        ms, fits = self.costs.ms(resume, after - resume), after <= self.budget.limit
        return EditPlan(decisions, level, first, border, resume, after - resume, self.total, after, ms, fits, _LEVELS[level])

    def _decide(self, position: int, stubs: dict[int, _Stub], border: int) -> Decision:
        before = self.costs.tokens[position]
        if position in self.head:
            return self._kept(position, "head")
        if position < border:
            return Decision(position, Fate.ARCHIVE, before, 0, "among the oldest exchanges")
        if found := stubs.get(position):
            return Decision(position, Fate.STUB, before, before - found.saved, found.reason, found.text)
        return self._kept(position, self._why_kept(position))

    def _kept(self, position: int, reason: str) -> Decision:
        return Decision(position, Fate.KEEP, self.costs.tokens[position], self.costs.tokens[position], reason)

    def _why_kept(self, position: int) -> str:
        if position >= self.newest:
            return "newest exchange"
        if position in self.graph.superseded:
            return "stale, but an edit there would cost more than it saves"
        if self.graph.nodes[position].kind is not Kind.RESULT:
            return "thread"
        return _far(self.distance.get(position, math.inf))


def _head(graph: Graph) -> frozenset[int]:
    """The leading system messages and the first user message: no edit is planned before their end."""
    leading: list[int] = []
    while len(leading) < len(graph.nodes) and graph.nodes[len(leading)].kind is Kind.ENGINE:
        leading.append(len(leading))
    task = next((node.position for node in graph.nodes if node.kind is Kind.USER), None)
    return frozenset(leading if task is None else [*leading, task])


def _newest(graph: Graph) -> int:
    """Where the newest exchange begins: with the call whose results came last, or with the last message that is no result."""
    position = len(graph.nodes) - 1
    while position > 0 and graph.nodes[position].kind is Kind.RESULT:
        position -= 1
    return max(position, 0)


def _far(distance: float) -> str:
    return "not reached from the frontier" if distance == math.inf else f"{distance:g} from the frontier"
