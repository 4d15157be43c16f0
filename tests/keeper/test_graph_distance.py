"""Distances from the frontier, both ways, against networkx."""

import networkx as nx
from hypothesis import given, settings

from keeper.distance import COSTS, FAILED_COST, SUPERSEDED_COST, distances, walk
from keeper.graph import Graph, build
from keeper.message import Message
from tests.keeper.spans import lookups, reading, result, said
from tests.keeper.test_graph import histories


def judge(graph: Graph) -> "nx.DiGraph[int]":
    """Both directions of every edge, the penalty on the node that is entered."""
    found: nx.DiGraph[int] = nx.DiGraph()
    found.add_nodes_from(range(len(graph.nodes)))
    for position in range(len(graph.nodes)):
        for edge in graph.edges(position):
            for start, end in ((position, edge.older), (edge.older, position)):
                penalty = SUPERSEDED_COST * (end in graph.superseded) + FAILED_COST * graph.nodes[end].failed
                found.add_edge(start, end, weight=COSTS[edge.relation] + penalty)
    return found


@settings(max_examples=120, deadline=None)
@given(histories())
def test_distances_equal_networkx_on_any_history(messages: list[Message]) -> None:
    graph = build(messages)
    expected = {} if graph.frontier is None else nx.single_source_dijkstra_path_length(judge(graph), graph.frontier)
    assert distances(graph) == expected


@settings(max_examples=60, deadline=None)
@given(histories())
def test_the_walk_goes_by_distance_and_every_parent_is_on_a_shortest_path(messages: list[Message]) -> None:
    graph = build(messages)
    reached = list(walk(graph))
    weights, found = judge(graph), distances(graph)
    assert [r.distance for r in reached] == sorted(r.distance for r in reached)
    for r in reached[1:]:
        assert found[r.parent] + weights[r.parent][r.position]["weight"] == r.distance


def test_a_glance_is_farther_than_evidence_and_a_failure_one_more() -> None:
    messages = [
        reading("a", "x.md"),
        result("a", "not found"),
        reading("b", "y.md"),
        result("b", "ZEBRA-7781"),
        said("assistant", "ZEBRA-7781"),
    ]
    found = distances(build(messages))
    assert found == {4: 0, 3: 1, 2: 1, 0: 2, 1: 4}


def test_a_superseded_result_is_four_farther_and_a_history_without_frontier_reaches_nothing() -> None:
    again = [reading("a", "x.md"), result("a", "one"), reading("b", "x.md"), result("b", "two"), said("assistant", "ok")]
    assert distances(build(again))[1] == 2 + 1 + SUPERSEDED_COST
    assert distances(build([said("user", "hello")])) == {}


def test_stopping_early_sees_the_nearest_nodes_only() -> None:
    steps = walk(build(lookups(40)))
    assert [next(steps).position for _ in range(3)] == [80, 79, 78]
