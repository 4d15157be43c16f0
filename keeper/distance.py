"""Shortest distances from the frontier over the dependency graph, walked both ways (Dijkstra 1959; heap and adjacency).

Costs are the paper's ("Traversal / Base cost"): a reused result, an issuing relation and the step thread 1, a merely present
result 3; entering a superseded node 4 more, entering a failed result 1 more. The penalty belongs to the node that is
entered, so costs are not symmetric. A recalled result (ours, see graph.py) is reuse: 1.
"""

import heapq
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from keeper.graph import Graph, Relation

COSTS: Mapping[Relation, int] = {
    Relation.CALL: 1,
    Relation.REUSE: 1,
    Relation.PRESENT: 3,
    Relation.THREAD: 1,
    Relation.RECALL: 1,
}
SUPERSEDED_COST = 4
FAILED_COST = 1


class Reached(NamedTuple):
    """A node with its distance from the frontier and its parent in the shortest-path tree (-1 for the frontier)."""

    position: int
    distance: int
    parent: int


def walk(graph: Graph) -> Iterator[Reached]:
    """Every node that can be reached, nearest first, newer first where equally near; nothing without a frontier.

    Lazy: stopping after k nodes costs O(edges) once, to find who rests on whom, and O(k log k) for the walk.
    """
    if graph.frontier is None:
        return
    incoming = _incoming(graph)
    nearest = {graph.frontier: 0}
    parents = {graph.frontier: -1}
    heap = [(0, -graph.frontier)]
    done: set[int] = set()
    while heap:
        distance, negated = heapq.heappop(heap)
        here = -negated
        if here in done:
            continue
        done.add(here)
        yield Reached(here, distance, parents[here])
        for there, cost in _around(graph, incoming, here):
            further = distance + cost
            if further < nearest.get(there, further + 1):
                nearest[there], parents[there] = further, here
                heapq.heappush(heap, (further, -there))


def distances(graph: Graph) -> dict[int, int]:
    """Position -> distance, for every node that can be reached: O((nodes + edges) log nodes)."""
    return {reached.position: reached.distance for reached in walk(graph)}


class _Incoming(NamedTuple):
    """For each node a linked list of the edges that point at it, in plain numbers: first[older] -> edge, following[edge]."""

    first: list[int]
    following: list[int]
    newer: list[int]
    relation: bytearray


def _incoming(graph: Graph) -> _Incoming:
    found = _Incoming([-1] * len(graph.nodes), [], [], bytearray())
    first, following, newer, relation = found
    for position, below in enumerate(graph.older):
        for older in below:
            following.append(first[older])
            first[older] = len(newer)
            newer.append(position)
        relation += graph.relations[position]
    return found


def _around(graph: Graph, incoming: _Incoming, here: int) -> Iterator[tuple[int, int]]:
    """(neighbour, cost of entering it) over both directions."""
    for older, kind in zip(graph.older[here], graph.relations[here], strict=True):
        yield older, COSTS[Relation(kind)] + _entry(graph, older)
    edge = incoming.first[here]
    while edge >= 0:
        newer = incoming.newer[edge]
        yield newer, COSTS[Relation(incoming.relation[edge])] + _entry(graph, newer)
        edge = incoming.following[edge]


def _entry(graph: Graph, position: int) -> int:
    return (SUPERSEDED_COST if position in graph.superseded else 0) + (FAILED_COST if graph.nodes[position].failed else 0)
