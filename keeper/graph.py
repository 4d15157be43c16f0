"""4tope's dependency graph: which step produced a result, which later step reused it, what is stale and what failed.

One node a message, in message order; every edge points from a newer node to an older one, so the graph is acyclic
whatever ids a client reuses, and message order is a topological order.

Relations and critical-path weights are the paper's (seeds/000, "The working record becomes a dependency graph"): result
to its issuing step 1; step to a result of the preceding round that it reuses 2, that was merely present 0; step to the
preceding step 1. One relation is ours: `RECALL`, a step that reuses a token whose newest holder is an older result. It
weighs 0, so the critical chain stays exactly the paper's (such an edge can never beat the thread of steps), and it
counts as near for distances.

Read leniently, never raised about: an orphan result (no earlier call with its id) hangs on the round in which it stands,
and behind the frontier nothing reaches it, so that it is no evidence; a reused id belongs to the newest earlier call of
that id; a result before its call is an orphan; a history without any assistant message has no frontier, no chain, and
protects nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

from keeper.distinctive import tokens
from keeper.fileop import FileOperation, operations
from keeper.message import Message, ToolCall
from keeper.outcome import failed
from keeper.supersede import Supersession

STUB_MARK = "[kvalet: result stubbed,"
"""How a result that was cut to a stub begins; such a result is no longer live."""


class Kind(StrEnum):
    USER = "user"
    STEP = "step"
    NOTE = "note"
    RESULT = "result"
    ENGINE = "engine"


class Relation(IntEnum):
    """Numbers, so that a hundred thousand edges are bytes and no objects for the garbage collector to walk."""

    CALL = 0
    REUSE = 1
    PRESENT = 2
    THREAD = 3
    RECALL = 4


WEIGHTS: Mapping[Relation, int] = {
    Relation.CALL: 1,
    Relation.REUSE: 2,
    Relation.PRESENT: 0,
    Relation.THREAD: 1,
    Relation.RECALL: 0,
}


class Edge(NamedTuple):
    """A dependency: the node that holds it rests on `older` (a position)."""

    older: int
    relation: Relation


class Node(NamedTuple):
    """One message. `calls`: what a step asked for; `call`: what a result answers (None for an orphan)."""

    position: int
    kind: Kind
    text: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    call: ToolCall | None = None
    failed: bool = False


@dataclass(frozen=True)
class Graph:
    """The graph of one history.

    older[i], relations[i]  node i's edges: the positions it rests on, and a `Relation` for each, as bytes
    superseded              stale result -> the result that replaced it
    operations              result -> what its call did to files, where that was recognised
    uses, last_use          token -> how many steps and notes used it, and the newest that did
    frontier                the newest step or note, None without one
    """

    nodes: tuple[Node, ...]
    older: tuple[tuple[int, ...], ...]
    relations: tuple[bytes, ...]
    superseded: Mapping[int, int]
    operations: Mapping[int, tuple[FileOperation, ...]]
    uses: Mapping[str, int]
    last_use: Mapping[str, int]
    frontier: int | None

    def edges(self, position: int) -> tuple[Edge, ...]:
        return tuple(map(Edge, self.older[position], map(Relation, self.relations[position])))

    def chain_scores(self) -> list[int]:
        """L(v) for every node: the greatest summed weight of a walk back from v (0 with no dependency)."""
        return _longest(self.older, self.relations)[0]

    def critical_chain(self) -> tuple[int, ...]:
        """Positions of one heaviest walk, frontier first; empty without a frontier.

        Ties prefer the newer dependency once one is selected; a walk of weight 0 never is (as in the paper's code).
        """
        if self.frontier is None:
            return ()
        _, chosen = _longest(self.older[: self.frontier + 1], self.relations)
        chain = [self.frontier]
        while (older := chosen[chain[-1]]) >= 0:
            chain.append(older)
        return tuple(chain)

    def protected(self) -> frozenset[int]:
        """Positions of the chain's live results: not superseded, not already a stub."""
        return frozenset(i for i in self.critical_chain() if self.nodes[i].kind is Kind.RESULT and self.is_live(i))

    def protected_ids(self) -> frozenset[str]:
        """The tool_call_ids of `protected`. Where a client reuses ids, `protected` is the exact answer."""
        return frozenset(call_id for i in self.protected() if (call_id := self.nodes[i].call_id))

    def is_live(self, position: int) -> bool:
        return position not in self.superseded and not self.nodes[position].text.startswith(STUB_MARK)


def _longest(older: Sequence[Sequence[int]], relations: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """(score, chosen dependency or -1) of every node, oldest first: O(nodes + edges)."""
    weights = [WEIGHTS[relation] for relation in Relation]
    scores: list[int] = []
    chosen: list[int] = []
    for below, kinds in zip(older, relations, strict=False):
        best, pick = 0, -1
        for there, kind in zip(below, kinds, strict=True):
            score = weights[kind] + scores[there]
            if score > best or (score == best and 0 <= pick < there):
                best, pick = score, there
        scores.append(best)
        chosen.append(pick)
    return scores, chosen


def build(messages: Iterable[Message], *, supersession: bool = True, failures: bool = True) -> Graph:
    """The graph of a history. The two switches exist for ablation: without them nothing is stale, nothing has failed."""
    builder = _Builder(supersession, failures)
    for message in messages:
        builder.add(message)
    return builder.graph()


class _Builder:
    """One pass over the messages; holds what later messages look back at."""

    def __init__(self, supersession: bool, failures: bool) -> None:
        self.nodes: list[Node] = []
        self.older: list[tuple[int, ...]] = []
        self.relations: list[bytes] = []
        self.failures = failures
        self.stale = Supersession() if supersession else None
        self.operations: dict[int, tuple[FileOperation, ...]] = {}
        self.issued: dict[str, tuple[int, int]] = {}  # call id -> newest step that issued it, place among its calls
        self.holder: dict[str, int] = {}  # token -> newest result that holds it
        self.uses: dict[str, int] = {}
        self.last_use: dict[str, int] = {}
        self.thread: int | None = None  # newest step or note
        self.round: list[tuple[int, frozenset[str]]] = []  # results since that step, with their tokens

    def add(self, message: Message) -> None:
        if message.role in ("tool", "function"):
            self._add_result(message)
        elif message.role == "assistant":
            self._add_step(message)
        else:
            kind = Kind.USER if message.role == "user" else Kind.ENGINE
            self._append(Node(len(self.nodes), kind, message.text), (), b"")

    def _append(self, node: Node, older: tuple[int, ...], relations: bytes) -> None:
        self.nodes.append(node)
        self.older.append(older)
        self.relations.append(relations)

    def _add_result(self, message: Message) -> None:
        position, text = len(self.nodes), message.text
        issuer, call = self._issuer(message.tool_call_id)
        bad = self.failures and failed(text, message.extra)
        node = Node(position, Kind.RESULT, text, call_id=message.tool_call_id, call=call, failed=bad)
        self._append(node, () if issuer is None else (issuer,), b"" if issuer is None else bytes((Relation.CALL,)))
        words = tokens(text)
        self.holder.update(dict.fromkeys(words, position))
        self.round.append((position, words))
        if call:
            self._note_operations(position, call, succeeded=not bad)

    def _issuer(self, call_id: str | None) -> tuple[int | None, ToolCall | None]:
        if not call_id or call_id not in self.issued:
            return None, None
        step, place = self.issued[call_id]
        return step, self.nodes[step].calls[place]

    def _note_operations(self, position: int, call: ToolCall, *, succeeded: bool) -> None:
        arguments = call.parsed()
        if done := operations(call.name, arguments):
            self.operations[position] = done
        if self.stale:
            self.stale.add(position, call, arguments, done, succeeded=succeeded)

    def _add_step(self, message: Message) -> None:
        position, text, calls = len(self.nodes), message.text, message.tool_calls
        words = tokens(" ".join((text, *(call.arguments for call in calls))))
        older, relations = [], bytearray()
        if self.thread is not None:
            older.append(self.thread)
            relations.append(Relation.THREAD)
        for result, held in self.round:
            older.append(result)
            relations.append(Relation.PRESENT if words.isdisjoint(held) else Relation.REUSE)
        recalled = self._use(position, words)
        older += recalled
        relations += bytes((Relation.RECALL,)) * len(recalled)
        self._append(Node(position, Kind.STEP if calls else Kind.NOTE, text, calls), tuple(older), bytes(relations))
        self.issued.update((call.id, (position, place)) for place, call in enumerate(calls) if call.id)
        self.thread, self.round = position, []

    def _use(self, position: int, words: frozenset[str]) -> list[int]:
        """Books the step's tokens; returns the results from before the preceding round that it reuses, oldest first."""
        recalled: set[int] = set()
        before = -1 if self.thread is None else self.thread
        for word in words:
            self.uses[word] = self.uses.get(word, 0) + 1
            self.last_use[word] = position
            if self.holder.get(word, before) < before:
                recalled.add(self.holder[word])
        return sorted(recalled)

    def graph(self) -> Graph:
        return Graph(
            nodes=tuple(self.nodes),
            older=tuple(self.older),
            relations=tuple(self.relations),
            superseded=self.stale.replaced if self.stale else {},
            operations=self.operations,
            uses=self.uses,
            last_use=self.last_use,
            frontier=self.thread,
        )
