"""The dependency graph: the paper's rules on small histories, and networkx as the judge of the longest path."""

from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keeper.graph import STUB_MARK, WEIGHTS, Kind, Relation, build
from keeper.message import Message, read
from tests.keeper.spans import lookups, reading, result, said, step


def kinds(messages: list[Message]) -> list[Kind]:
    return [node.kind for node in build(messages).nodes]


def relations(messages: list[Message], position: int) -> dict[int, Relation]:
    return {edge.older: edge.relation for edge in build(messages).edges(position)}


def test_the_papers_worked_example_gives_9_at_the_frontier() -> None:
    graph = build(lookups(3))
    assert graph.chain_scores() == [0, 1, 3, 4, 6, 7, 9]
    assert graph.critical_chain() == (6, 5, 4, 3, 2, 1, 0)
    assert graph.protected_ids() == {"c0", "c1", "c2"}


def test_a_span_of_lookups_has_two_nodes_a_round_and_three_edges() -> None:
    graph = build(lookups(50))
    assert len(graph.nodes) == 101
    assert sum(map(len, graph.older)) == 150


def test_every_role_becomes_its_kind_of_node() -> None:
    messages = [
        said("system", "s"),
        said("developer", "d"),
        said("user", "u"),
        reading("a", "x.md"),
        result("a", "t"),
        said("assistant", "n"),
    ]
    assert kinds(messages) == [Kind.ENGINE, Kind.ENGINE, Kind.USER, Kind.STEP, Kind.RESULT, Kind.NOTE]


def test_a_merely_present_result_weighs_nothing_so_its_one_for_the_call_ties_with_the_thread_and_the_newer_wins() -> None:
    messages = [reading("a", "x.md"), result("a", "ZEBRA-7781"), step("moving on", ("b", "list", "{}"))]
    assert relations(messages, 2) == {0: Relation.THREAD, 1: Relation.PRESENT}
    assert build(messages).chain_scores() == [0, 1, 1]
    assert build(messages).critical_chain() == (2, 1, 0)


def test_a_walk_of_weight_0_is_never_selected() -> None:
    assert build([result("nobody", "ZEBRA-7781"), said("assistant", "unrelated")]).critical_chain() == (1,)


def test_reuse_is_seen_in_words_and_in_both_forms_of_arguments_whatever_the_case() -> None:
    first = [reading("a", "x.md"), result("a", "the code is ZEBRA-7781")]
    as_object = {"role": "assistant", "tool_calls": [{"id": "b", "function": {"name": "f", "arguments": {"q": "zebra-7781"}}}]}
    for later in (said("assistant", "I use Zebra-7781"), step(None, ("b", "f", {"q": "ZEBRA-7781"})), read(as_object)):
        assert relations([*first, later], 2)[1] is Relation.REUSE


def test_parallel_calls_each_get_their_result_and_the_next_step_sees_the_whole_round() -> None:
    messages = [
        step(None, ("a", "read_file", {"path": "a.md"}), ("b", "read_file", {"path": "b.md"})),
        result("b", "holds BADGER-11"),
        result("a", "holds ZEBRA-7781"),
        said("assistant", "BADGER-11 it is"),
    ]
    assert relations(messages, 1) == {0: Relation.CALL}
    assert relations(messages, 3) == {0: Relation.THREAD, 1: Relation.REUSE, 2: Relation.PRESENT}
    assert build(messages).protected_ids() == {"b"}


def test_a_tie_goes_to_the_newer_dependency_once_one_is_selected() -> None:
    messages = [
        step(None, ("a", "f", {"n": 1}), ("b", "f", {"n": 2})),
        result("a", "ZEBRA-7781"),
        result("b", "ZEBRA-7781"),
        said("assistant", "ZEBRA-7781"),
    ]
    assert build(messages).critical_chain() == (3, 2, 0)


def test_reuse_of_an_older_result_is_a_recall_that_leaves_the_chain_alone() -> None:
    messages = [
        reading("a", "x.md"),
        result("a", "ZEBRA-7781"),
        reading("b", "y.md"),
        result("b", "nothing here"),
        said("assistant", "back to ZEBRA-7781"),
    ]
    graph = build(messages)
    assert relations(messages, 4) == {2: Relation.THREAD, 3: Relation.PRESENT, 1: Relation.RECALL}
    assert graph.critical_chain() == (4, 3, 2, 1, 0)
    assert graph.chain_scores()[4] == 2


def test_an_identical_later_call_supersedes_whatever_the_order_of_its_keys() -> None:
    messages = [
        step(None, ("a", "grep", '{"q": "x", "in": "src"}')),
        result("a", "one"),
        step(None, ("b", "grep", '{"in":"src","q":"x"}')),
        result("b", "two"),
        said("assistant", "ok"),
    ]
    assert build(messages).superseded == {1: 3}


def test_a_successful_edit_supersedes_the_read_and_a_failed_one_supersedes_nothing() -> None:
    for outcome, expected in (("edited", {1: 3}), ("error: string not found in file", {})):
        messages = [
            reading("a", "x.md"),
            result("a", "old text"),
            step(None, ("b", "edit_file", {"path": "x.md", "old": "old", "new": "new"})),
            result("b", outcome),
            said("assistant", "ok"),
        ]
        assert build(messages).superseded == expected


def test_a_success_supersedes_the_failure_of_the_same_call_before_it() -> None:
    messages = [
        reading("a", "x.md"),
        result("a", "not found"),
        reading("b", "x.md"),
        result("b", "text"),
        said("assistant", "ok"),
    ]
    graph = build(messages)
    assert graph.nodes[1].failed
    assert graph.superseded == {1: 3}


def test_reading_another_part_of_a_file_supersedes_nothing_and_reading_it_whole_does() -> None:
    def part(call_id: str, **limits: int) -> list[Message]:
        return [step(None, (call_id, "read_file", {"path": "x.md", **limits})), result(call_id, f"text {call_id}")]

    graph = build([*part("a", offset=0), *part("b", offset=100), *part("c", offset=0), *part("d")])
    assert graph.superseded == {1: 5, 3: 7, 5: 7}


def test_a_stub_and_a_superseded_result_are_not_protected() -> None:
    messages = [
        reading("a", "x.md"),
        result("a", f"{STUB_MARK} 9 tokens] ZEBRA-7781"),
        said("assistant", "ZEBRA-7781"),
    ]
    assert build(messages).critical_chain() == (2, 1, 0)
    assert build(messages).protected() == frozenset()


def test_an_orphan_result_has_no_issuing_edge_and_still_counts_in_its_round() -> None:
    messages = [said("user", "go"), result("nobody", "ZEBRA-7781"), said("assistant", "ZEBRA-7781 then")]
    graph = build(messages)
    assert graph.edges(1) == ()
    assert graph.critical_chain() == (2, 1)
    assert graph.protected_ids() == {"nobody"}


def test_a_result_before_its_call_is_an_orphan() -> None:
    assert build([result("a", "early"), reading("a", "x.md")]).edges(0) == ()


def test_a_reused_id_belongs_to_the_newest_call_so_no_cycle_can_form() -> None:
    messages = [reading("a", "x.md"), result("a", "one"), reading("a", "y.md"), result("a", "two"), result("a", "two again")]
    graph = build(messages)
    assert [graph.edges(i)[0].older for i in (1, 3, 4)] == [0, 2, 2]
    assert all(older < i for i, below in enumerate(graph.older) for older in below)


def test_a_history_without_an_assistant_has_no_frontier_and_protects_nothing() -> None:
    for messages in ([], [said("user", "hello")], [said("system", "s"), result("a", "orphan")]):
        graph = build(messages)
        assert graph.frontier is None
        assert graph.critical_chain() == ()
        assert graph.protected_ids() == frozenset()


def test_binary_and_huge_results_are_read_in_bounded_time_and_their_ends_still_count() -> None:
    huge = "x " * 2_000_000 + " the marker is ZEBRA-7781"
    messages = [
        step(None, ("a", "read_file", {"path": "x.bin"}), ("b", "read_file", {"path": "y.log"})),
        result("a", "\x00\x01\ufffd" * 50_000),
        result("b", huge),
        said("assistant", "ZEBRA-7781"),
    ]
    assert build(messages).protected_ids() == {"b"}


def test_the_switches_of_the_ablation_turn_marks_off() -> None:
    messages = [
        reading("a", "x.md"),
        result("a", "not found"),
        reading("b", "x.md"),
        result("b", "text"),
        said("assistant", "ok"),
    ]
    assert build(messages, supersession=False).superseded == {}
    assert not build(messages, failures=False).nodes[1].failed


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Any mess of roles, ids and reuse that a server may accept."""
    words = st.sampled_from(["ident-1111", "ident-2222", "ident-3333", "src/a.py", "plain", "error: not found", "", "é" * 9])
    ids = st.sampled_from(["a", "b", "c"])
    found: list[Message] = []
    for _ in range(draw(st.integers(0, 24))):
        role = draw(st.sampled_from(["user", "system", "tool", "assistant", "step"]))
        text = " ".join(draw(st.lists(words, max_size=3)))
        if role == "tool":
            found.append(result(draw(ids), text))
        elif role == "step":
            calls = draw(st.lists(st.tuples(ids, st.sampled_from(["read_file", "edit_file"])), min_size=1, max_size=3))
            found.append(step(text, *((call_id, name, {"path": draw(words)}) for call_id, name in calls)))
        else:
            found.append(said(role, text))
    return found


@settings(max_examples=120, deadline=None)
@given(histories())
def test_the_longest_path_equals_networkx_on_any_history(messages: list[Message]) -> None:
    graph = build(messages)
    judge = nx.DiGraph()
    judge.add_nodes_from(range(len(messages)))
    judge.add_weighted_edges_from((i, e.older, WEIGHTS[e.relation]) for i in range(len(messages)) for e in graph.edges(i))
    scores = graph.chain_scores()
    for position in range(len(messages)):
        reachable = judge.subgraph({position, *nx.descendants(judge, position)})
        assert scores[position] == nx.dag_longest_path_length(reachable)
    if graph.frontier is not None:
        chain = graph.critical_chain()
        weights = [judge[newer][older]["weight"] for newer, older in pairwise(chain)]
        assert sum(weights) == scores[graph.frontier]


@pytest.mark.parametrize("relation", list(Relation))
def test_every_relation_has_a_weight(relation: Relation) -> None:
    assert WEIGHTS[relation] >= 0


def test_arguments_that_nest_thousands_deep_are_read_as_text() -> None:
    nested = "[" * 100_000 + "]" * 100_000
    graph = build(
        [
            step(None, ("a", "f", nested)),
            result("a", "ok"),
            step(None, ("b", "f", nested)),
            result("b", "ok"),
            said("assistant", "x"),
        ]
    )
    assert graph.superseded == {1: 3}
