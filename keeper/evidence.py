"""Which pieces of which results go into a continuation: the most expected use per byte, under a limit.

The paper takes whole excerpts by increasing distance and cuts each at its head. Here a result is split into pieces (lines)
and a piece is worth what it shows of tokens that are not shown yet:

    worth = sum over its unseen tokens t of  use(t)            where steps used t before
                                             novelty * near    where no step has, but steps came after the result
                                             unread * near     in results that no step has seen yet
            + opening * near                                   for the piece that opens an excerpt
    use(t) = (1 + ln(times used)) * fade^(rounds since the last use) + floor,   near = decay^distance

Pieces are taken greedily by worth per unit of cost; worth only falls as tokens get covered, so the lazy greedy of budgeted
maximum coverage applies. What is left of the limit is filled with whole results, nearest first. All constants but `unread` were
set before looking at traces; docs/benchmarks.md has what other values give, and `unread` held out.
"""

import heapq
import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from keeper.distinctive import tokens
from keeper.excerpt import ELLIPSIS, Piece, joined, pieces, size
from keeper.graph import Graph

Measure = Callable[[str], int]
"""What a limit is counted in: `size` for bytes, or a tokenizer's count. Must not fall when text is added."""


@dataclass(frozen=True)
class Policy:
    """The constants of `worth`. `by_distance=False` puts recency in the place of distance (an ablation)."""

    fade: float = 0.9
    floor: float = 0.2
    novelty: float = 0.02
    unread: float = 0.2
    opening: float = 0.05
    decay: float = 0.8
    by_distance: bool = True


class Candidate(NamedTuple):
    """A node that may be shown: how near it is, the fixed start of its line, its text, and the heading it stands under.

    ends_first: its opening piece is its last one (a traceback says what went wrong at its end).
    """

    position: int
    distance: float
    label: str
    text: str
    section: str = ""
    ends_first: bool = False


class Excerpt(NamedTuple):
    """`clipped`: it is not the whole text; `text` then shows where with `…`."""

    text: str
    clipped: bool


@dataclass
class _Line:
    """A candidate cut to pieces, and those chosen so far."""

    candidate: Candidate
    pieces: list[Piece]
    words: list[frozenset[str]]
    near: float
    fresh: float  # the worth of a token that no step has used
    chosen: set[int] = field(default_factory=set)

    def excerpt(self) -> "Excerpt":
        return Excerpt(joined(self.pieces, self.chosen), len(self.chosen) < len(self.pieces))

    @property
    def opening(self) -> int:
        return len(self.pieces) - 1 if self.candidate.ends_first else 0


def choose(
    graph: Graph,
    candidates: Sequence[Candidate],
    seen: Set[str],
    limit: int,
    *,
    measure: Measure = size,
    policy: Policy | None = None,
) -> dict[int, Excerpt]:
    """Position -> excerpt, for the candidates that got one; headings, labels and excerpts together measure at most `limit`
    (exactly so in bytes; a tokenizer's counts do not add up, so there it is close).

    candidates: nearest first. seen: tokens that the view shows anyway.
    """
    chooser = _Chooser(graph, candidates, set(seen), limit, measure, policy or Policy())
    chooser.take_by_worth()
    chooser.fill()
    return {line.candidate.position: line.excerpt() for line in chooser.lines if line.chosen}


class _Chooser:
    """The state of one greedy choice."""

    def __init__(
        self,
        graph: Graph,
        candidates: Sequence[Candidate],
        seen: set[str],
        limit: int,
        measure: Measure,
        policy: Policy,
    ) -> None:
        self.policy, self.seen, self.left, self.measure = policy, seen, limit, measure
        self.opened: set[str] = set()  # sections that have a line, so their heading is paid for
        self.lines = [_line(graph, candidate, policy) for candidate in candidates]
        self.uses: dict[str, float] = {}
        self.graph = graph
        self.gap = measure(f" {ELLIPSIS} ")

    def take_by_worth(self) -> None:
        heap = [(-self._rate(i, j), i, j) for i, line in enumerate(self.lines) for j in range(len(line.pieces))]
        heapq.heapify(heap)
        while heap and heap[0][0] < 0:
            stale, i, j = heapq.heappop(heap)
            rate = self._rate(i, j)
            if rate < -stale * (1 - 1e-9):  # tokens were covered since: back into the queue at its new rate
                heapq.heappush(heap, (-rate, i, j))
            else:
                self._take(i, j)

    def fill(self) -> None:
        """Spends what is left on whole results, nearest first, each from its opening on."""
        for i, line in enumerate(self.lines):
            for j in range(len(line.pieces)):
                if j not in line.chosen:
                    self._take(i, j)

    def _take(self, i: int, j: int) -> None:
        line, cost = self.lines[i], self._cost(i, j)
        if cost > self.left:
            return
        line.chosen.add(j)
        self.opened.add(line.candidate.section)
        self.left -= cost
        self.seen |= line.words[j] | tokens(line.candidate.label)

    def _cost(self, i: int, j: int) -> int:
        """An upper bound of what piece j adds: itself, a gap mark on its right, and the line's label if it opens the line.

        The mark on its left is the one counted for the piece before it, or part of the label's count.
        """
        line = self.lines[i]
        piece = line.pieces[j]
        own = (piece.size if self.measure is size else self.measure(piece.text)) + self.gap
        return own if line.chosen else own + self._label_cost(line.candidate)

    def _label_cost(self, candidate: Candidate) -> int:
        heading = 0 if candidate.section in self.opened else self.measure(candidate.section)
        return self.measure(f"{candidate.label}\n") + self.gap + heading

    def _rate(self, i: int, j: int) -> float:
        line = self.lines[i]
        worth = sum(self._use(word) or line.fresh for word in line.words[j] if word not in self.seen)
        if j == line.opening:
            worth += self.policy.opening * line.near
        label = 0 if line.chosen else size(line.candidate.label) + 1
        return worth / (line.pieces[j].size + label + 4)

    def _use(self, word: str) -> float:
        """What the steps' use of a token promises for later steps; 0 where none has used it."""
        known = self.uses.get(word)
        if known is None:
            known = self.uses[word] = _expected_use(self.graph, word, self.policy)
        return known


def _line(graph: Graph, candidate: Candidate, policy: Policy) -> _Line:
    cut, near = pieces(candidate.text), math.pow(policy.decay, candidate.distance)
    unread = graph.frontier is not None and candidate.position > graph.frontier
    fresh = near * (policy.unread if unread else policy.novelty)
    return _Line(candidate, cut, [tokens(piece.text) for piece in cut], near, fresh)


def _expected_use(graph: Graph, word: str, policy: Policy) -> float:
    times = graph.uses.get(word, 0)
    if not times or graph.frontier is None:
        return 0.0
    rounds = (graph.frontier - graph.last_use[word]) / 2  # a round is a step and its result: two messages
    return (1 + math.log(times)) * math.pow(policy.fade, rounds) + policy.floor
