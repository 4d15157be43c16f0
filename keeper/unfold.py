"""The bounded continuation: what the next segment needs, unfolded from the frontier, made of existing text alone.

    NEXT (the frontier, in its own last words): …
    ON DISK: notes.md (22 B)
    RULED OUT (calls that failed; do not repeat them as they were):
    - r3 read_file {"path": "missing-spec.md"} -> not found
    ESTABLISHED (what the frontier rests on, nearest first, each derivation contiguous):
    - r2 read_file {"path": "notes.md"}: 1:xuv:gij→alpha ZEBRA-7781 line

`r2` is the second tool result of the history. Space for NEXT and for the file ledger is set aside first; evidence.py
shares out the rest. ESTABLISHED follows a depth-first walk of the shortest-path tree, so that what rests on one another
stands together.

What is out of reach: a fact that a later step repeats in other words cannot be told from one that nobody used
(distinctive.py), and a fixed limit cannot hold every history. What is not shown is in the archive.
"""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from keeper.distance import Reached, walk
from keeper.distinctive import tokens
from keeper.evidence import Candidate, Excerpt, Measure, Policy, choose
from keeper.excerpt import ELLIPSIS, clip, folded, size
from keeper.fileledger import file_ledger
from keeper.graph import Graph, Kind, Node
from keeper.message import ToolCall


class Headings(NamedTuple):
    said: str
    called: str
    on_disk: str
    ruled_out: str
    established: str


HEADINGS = Headings(
    "NEXT (the frontier, in its own last words): ",
    "NEXT (the frontier said nothing; its last calls): ",
    "ON DISK: ",
    "RULED OUT (calls that failed; do not repeat them as they were):\n",
    "ESTABLISHED (what the frontier rests on, nearest first, each derivation contiguous):\n",
)
SHORT = Headings("NEXT: ", "NEXT (calls): ", "ON DISK: ", "RULED OUT:\n", "ESTABLISHED:\n")
EXPLAINED_SHARE = 0.2
"""The long headings are used where they take no more than this share of the limit; below, the words are better spent."""

FRONTIER_BYTES = 700
ARGUMENT_BYTES = 160
FRONTIER_SHARE = 0.25
LEDGER_SHARE = 0.2
BYTES_A_LINE = 24
LEAST_CANDIDATES = 64
LEAST_LABEL, LABELS_A_LIMIT = 24, 10

HANDOFF_SHARE = 1 / 16
LEAST_HANDOFF, MOST_HANDOFF = 600, 24_000
CARRY_SHARE, MOST_CARRY = 4, 400


def allowance(window: int) -> int:
    """Bytes for the continuation in a window of `window` bytes: H - min(H // 4, 400), where H is a sixteenth of the window.

    The second part is the paper's; its formula for H did not survive in the text we have, so the sixteenth and its bounds
    (600 and 24,000 bytes, and never more than a third of the window) are ours.
    """
    handoff = min(max(int(window * HANDOFF_SHARE), LEAST_HANDOFF), MOST_HANDOFF, window // 3)
    return handoff - min(handoff // CARRY_SHARE, MOST_CARRY)


_DISTILLED = re.compile(
    r"\s*(?:#+\s*)?(?:notes?|summary|findings|conclusions?|established|state|progress|decisions?)\b[^\n]{0,40}[:\n]"
    r"|(?:.*\n)?(?:\s*(?:[-*•]|\d+[.)])\s+\S.*(?:\n|$)){2}",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Continuation:
    """`text` measures at most the limit it was made for; `shown` are the nodes with an excerpt; `clipped` those shown in part."""

    text: str
    shown: frozenset[int] = frozenset()
    clipped: frozenset[int] = frozenset()


def unfold(
    graph: Graph,
    limit: int,
    *,
    measure: Measure = size,
    policy: Policy | None = None,
    in_view: Collection[int] | None = None,
) -> Continuation:
    """The continuation of `graph` under `limit`, counted by `measure` (UTF-8 bytes unless a tokenizer's count is given).

    in_view: nodes that the view shows whole beside it, so they are not repeated; system messages and the first user message
    unless given. Empty text: there is no frontier, or the limit leaves room for nothing; the caller falls back.
    """
    if graph.frontier is None or limit <= 0:
        return Continuation("")
    policy = policy or Policy()
    beside = _always_in_view(graph) if in_view is None else frozenset(in_view)
    tree = _Tree()
    headings = HEADINGS if measure("".join(HEADINGS)) <= limit * EXPLAINED_SHARE else SHORT
    head = _head(graph, beside, limit, measure, headings)
    candidates = _candidates(graph, tree, beside, policy, limit, headings)
    seen = tokens(head).union(*(tokens(graph.nodes[i].text) for i in beside))
    excerpts = choose(graph, candidates, seen, limit - measure(head), measure=measure, policy=policy)
    by_position = {candidate.position: candidate for candidate in candidates}
    while measure(text := head + _body(by_position, excerpts, tree, headings)) > limit and excerpts:
        del excerpts[next(reversed(excerpts))]  # token counts do not add up exactly: the farthest line goes
    clipped = frozenset(position for position, excerpt in excerpts.items() if excerpt.clipped)
    return Continuation(text.rstrip("\n"), frozenset(excerpts), clipped)


def _always_in_view(graph: Graph) -> frozenset[int]:
    engine = [node.position for node in graph.nodes if node.kind is Kind.ENGINE]
    task = next((node.position for node in graph.nodes if node.kind is Kind.USER), None)
    return frozenset(engine if task is None else (*engine, task))


def _head(graph: Graph, beside: Collection[int], limit: int, measure: Measure, headings: Headings) -> str:
    """NEXT and ON DISK, each line with its end; NEXT is left out where the view shows the frontier itself."""
    frontier = graph.nodes[graph.frontier or 0]
    room = limit
    lines = []
    if frontier.position not in beside and (line := _next_line(frontier, int(limit * FRONTIER_SHARE), measure, headings)):
        lines.append(line)
        room -= measure(line)
    lines.append(_ledger_line(graph, min(int(limit * LEDGER_SHARE), room), measure, headings))
    return "".join(lines)


def _next_line(frontier: Node, room: int, measure: Measure, headings: Headings) -> str:
    said = folded(frontier.text)
    start = headings.said if said else headings.called
    words = said or "; ".join(_asked(call, ARGUMENT_BYTES) for call in frontier.calls)
    most = min(FRONTIER_BYTES, size(words)) if words else 0
    while most > 0 and measure(line := f"{start}{clip(words, most)}\n") > max(room, 0):
        most = min(most - 1, most * 3 // 4)
    return line if most > 0 else ""


def _ledger_line(graph: Graph, room: int, measure: Measure, headings: Headings) -> str:
    """As many paths as fit, and how many more there are; '' where not even one does."""
    entries = [entry.line() for entry in file_ledger(graph)]
    shown = len(entries)
    while shown:
        more = f", {ELLIPSIS} and {len(entries) - shown} more" if shown < len(entries) else ""
        line = f"{headings.on_disk}{', '.join(entries[:shown])}{more}\n"
        if measure(line) <= room:
            return line
        shown = shown - 1 if shown < 16 else shown * 3 // 4
    return ""


class _Tree:
    """The part of the shortest-path tree that a walk has reached."""

    def __init__(self) -> None:
        self.reached: dict[int, Reached] = {}

    def grown(self, steps: Iterable[Reached]) -> Iterator[tuple[int, float]]:
        for reached in steps:
            self.reached[reached.position] = reached
            yield reached.position, reached.distance

    def walk_key(self, position: int) -> tuple[tuple[int, int], ...]:
        """Sorting by this is the preorder of the walk: the path from the frontier, nearer children first, then newer ones."""
        path = []
        while position in self.reached:
            here = self.reached[position]
            path.append((here.distance, -position))
            position = here.parent
        return tuple(reversed(path))


def _candidates(
    graph: Graph, tree: _Tree, beside: Collection[int], policy: Policy, limit: int, headings: Headings
) -> list[Candidate]:
    """The nearest nodes that may be shown, nearest first, newer first where equally near; more than could have a line each."""
    most = max(LEAST_CANDIDATES, limit // BYTES_A_LINE)
    label = min(ARGUMENT_BYTES, max(LEAST_LABEL, limit // LABELS_A_LIMIT))
    results = [node.position for node in graph.nodes if node.kind is Kind.RESULT]
    asked: set[tuple[str, str]] = set()
    found: list[Candidate] = []
    for position, distance in tree.grown(walk(graph)) if policy.by_distance else _by_age(graph):
        node = graph.nodes[position]
        if position in beside or not _may_be_shown(graph, node):
            continue
        if node.failed and node.call:
            if (key := (node.call.name, node.call.arguments)) in asked:
                continue  # the same call failed again, nearer: once is enough to rule it out
            asked.add(key)
        found.append(_candidate(node, distance, bisect_left(results, position) + 1, label, headings))
        if len(found) == most:
            break
    return found


def _candidate(node: Node, distance: float, ordinal: int, label: int, headings: Headings) -> Candidate:
    if node.kind is Kind.NOTE:
        return Candidate(node.position, distance, f"- note {node.position}: ", node.text, headings.established)
    asked = _asked(node.call, label) if node.call else "(its call is not in the history)"
    if node.failed:
        return Candidate(node.position, distance, f"- r{ordinal} {asked} -> ", node.text, headings.ruled_out, ends_first=True)
    return Candidate(node.position, distance, f"- r{ordinal} {asked}: ", node.text, headings.established)


def _may_be_shown(graph: Graph, node: Node) -> bool:
    """Live results, and notes that look like a distillation; not users, engine messages or ordinary narration."""
    if node.kind is Kind.RESULT:
        return graph.is_live(node.position)
    return node.kind is Kind.NOTE and node.position != graph.frontier and _DISTILLED.match(node.text) is not None


def _by_age(graph: Graph) -> Iterator[tuple[int, float]]:
    """Newest first, with rounds of two messages in the place of distance (an ablation)."""
    newest = len(graph.nodes) - 1
    return ((position, (newest - position) / 2) for position in range(newest, -1, -1))


def _asked(call: ToolCall, most: int) -> str:
    """A call in one line: its name and its arguments as they were sent."""
    return f"{call.name} {clip(folded(call.arguments), most)}".strip()


def _body(candidates: Mapping[int, Candidate], excerpts: Mapping[int, Excerpt], tree: _Tree, headings: Headings) -> str:
    """RULED OUT by distance, then ESTABLISHED in the order of a depth-first walk of the tree."""
    lines = {position: f"{candidates[position].label}{excerpt.text}\n" for position, excerpt in excerpts.items()}
    ruled_out = [position for position in lines if candidates[position].section == headings.ruled_out]
    established = sorted((position for position in lines if position not in ruled_out), key=tree.walk_key)
    parts = [headings.ruled_out, *(lines[i] for i in ruled_out)] if ruled_out else []
    parts += [headings.established, *(lines[i] for i in established)] if established else []
    return "".join(parts)
