"""The continuation: the paper's example, its four boundary cases (two with the better outcome), limits, clipping, fallbacks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keeper.evidence import Policy
from keeper.excerpt import ELLIPSIS, size
from keeper.graph import build
from keeper.message import Message
from keeper.unfold import HEADINGS, allowance, unfold
from tests.keeper.spans import lookups, reading, result, said, step
from tests.keeper.test_graph import histories

PAPERS_EXAMPLE = """\
NEXT (the frontier, in its own last words): Reading the spec file missing-spec.md next.
ON DISK: notes.md (22 B)
RULED OUT (calls that failed; do not repeat them as they were):
- r3 read_file {"path": "missing-spec.md"} -> not found
ESTABLISHED (what the frontier rests on, nearest first, each derivation contiguous):
- r2 read_file {"path": "notes.md"}: 1:xuv:gij→alpha ZEBRA-7781 line"""


def papers_turn() -> list[Message]:
    """A turn that wrote a file, read it back, and tried to read a missing specification."""
    return [
        said("user", "Keep notes and follow the spec."),
        step(None, ("a", "write_file", {"path": "notes.md", "content": "alpha ZEBRA-7781 line"})),
        result("a", "wrote 22 bytes"),
        reading("b", "notes.md"),
        result("b", "1:xuv:gij→alpha ZEBRA-7781 line"),
        reading("c", "missing-spec.md", "Reading the spec file missing-spec.md next."),
        result("c", "not found"),
    ]


def lines(text: str, start: str = "- r") -> list[str]:
    return [line for line in text.splitlines() if line.startswith(start)]


def test_the_papers_example_continuation_comes_out_to_the_letter() -> None:
    assert unfold(build(papers_turn()), 1400).text == PAPERS_EXAMPLE


def test_boundary_1_protection_does_not_mean_that_every_protected_fact_fits() -> None:
    graph = build(lookups(100))
    carried = unfold(graph, 320)
    assert len(graph.protected_ids()) == 100
    assert size(carried.text) <= 320
    assert "ident-0001" not in carried.text
    assert "ident-0100" in carried.text


def test_boundary_2_a_late_fact_that_a_later_step_reuses_is_in_the_excerpt() -> None:
    filler = "".join(f"ordinary line {i} of a long report\n" for i in range(200))
    messages = [
        reading("a", "report.txt"),
        result("a", f"{filler}the marker is LATE-MARKER-9\n{filler}"),
        said("assistant", "I note LATE-MARKER-9."),
        *lookups(6),
    ]
    carried = unfold(build(messages), 1400)
    line = next(line for line in lines(carried.text) if "report.txt" in line)
    assert "LATE-MARKER-9" in line
    assert ELLIPSIS in line


def test_boundary_2_a_late_fact_that_nobody_reused_in_the_same_words_is_lost_and_the_cut_shows() -> None:
    filler = "".join(f"name-{i:05d} label-{i:05d}\n" for i in range(200))
    messages = [
        reading("a", "report.txt"),
        result("a", f"{filler}the marker is LATE-MARKER-9\n{filler}"),
        said("assistant", "I note what the report says near its middle."),
    ]
    carried = unfold(build(messages), 600)
    assert "LATE-MARKER-9" not in carried.text
    assert carried.text.endswith(ELLIPSIS)
    assert carried.clipped == {1}


def test_boundary_3_a_failed_edit_leaves_the_read_before_it_established() -> None:
    messages = [
        reading("a", "config.py"),
        result("a", "TIMEOUT_SECONDS = 30"),
        step(None, ("b", "edit_file", {"path": "config.py", "old": "x", "new": "y"})),
        result("b", "error: old text not found"),
        said("assistant", "The edit failed."),
    ]
    text = unfold(build(messages), 1400).text
    assert '- r1 read_file {"path": "config.py"}: TIMEOUT_SECONDS = 30' in text.split(HEADINGS.established)[1]
    assert "- r2 edit_file" in text.split(HEADINGS.ruled_out)[1].split(HEADINGS.established)[0]


@pytest.mark.parametrize("siblings", [65, 300])
def test_boundary_4_any_number_of_siblings_is_rendered(siblings: int) -> None:
    calls = [(f"c{i}", "lookup", {"key": i}) for i in range(siblings)]
    messages = [
        step(None, *calls),
        *(result(f"c{i}", f"value ident-{i:04d}") for i in range(siblings)),
        said("assistant", "done"),
    ]
    assert len(lines(unfold(build(messages), 100_000).text)) == siblings


def test_derivations_stand_together_nearest_first() -> None:
    messages = [
        step(None, ("a", "list", {"of": "left"})),
        result("a", "LEFT-0001"),
        step("LEFT-0001", ("b", "open_it", {"id": "LEFT-0001"})),
        result("b", "LEFT-0002"),
        step("LEFT-0002", ("c", "list", {"of": "right"}), ("d", "open_it", {"id": "LEFT-0002"})),
        result("c", "RIGHT-0001"),
        result("d", "LEFT-0003"),
        said("assistant", "Now LEFT-0003, and RIGHT-0001."),
    ]
    shown = [line.split()[1] for line in lines(unfold(build(messages), 1400).text)]
    assert shown == ["r4", "r3", "r2", "r1"]


def test_a_frontier_without_words_is_described_by_its_calls() -> None:
    text = unfold(build([said("user", "go"), reading("a", "x.md")]), 1_800).text
    assert text == 'NEXT (the frontier said nothing; its last calls): read_file {"path": "x.md"}'


def test_what_the_view_shows_anyway_is_not_repeated() -> None:
    messages = papers_turn()
    text = unfold(build(messages), 1400, in_view={0, 5, 6}).text
    assert "NEXT" not in text
    assert "missing-spec.md" not in text
    assert "r2 read_file" in text


def test_user_and_engine_messages_narration_and_superseded_results_are_not_evidence() -> None:
    messages = [
        said("system", "BE-CAREFUL-1"),
        said("user", "TASK-WORDS-1"),
        said("assistant", "NARRATION-01 while I look"),
        said("user", "TASK-WORDS-2"),
        reading("a", "x.md"),
        result("a", "STALE-0001"),
        reading("b", "x.md"),
        result("b", "FRESH-0001"),
        said("assistant", "read"),
    ]
    text = unfold(build(messages), 4000).text
    assert "FRESH-0001" in text
    assert not any(word in text for word in ("BE-CAREFUL-1", "TASK-WORDS", "NARRATION-01", "STALE-0001"))


def test_a_note_that_is_a_distillation_is_evidence() -> None:
    messages = [
        said("assistant", "Findings:\n- the port is PORT-8091\n- the host is HOST-0001"),
        said("user", "go on"),
        said("assistant", "going on"),
    ]
    assert "- note 0: Findings:" in unfold(build(messages), 1000).text


def test_an_orphan_is_evidence_where_a_step_followed_it_and_not_behind_the_frontier() -> None:
    messages = [result("lost", "ORPHAN-0001"), said("assistant", "ORPHAN-0001 it is"), result("late", "ORPHAN-0002")]
    text = unfold(build(messages), 1_000).text
    assert "- r1 (its call is not in the history): ORPHAN-0001" in text
    assert "ORPHAN-0002" not in text


def test_the_same_call_that_failed_twice_is_ruled_out_once() -> None:
    messages = [
        reading("a", "x.md"),
        result("a", "not found"),
        reading("b", "x.md"),
        result("b", "not found"),
        said("assistant", "hm"),
    ]
    graph = build(messages)
    assert graph.superseded == {}
    assert len(lines(unfold(graph, 1000).text)) == 1


def test_a_traceback_is_shown_by_its_end() -> None:
    trace = (
        "Traceback (most recent call last):\n"
        + "".join(f'  File "mod_{i}.py", line {i}\n' for i in range(90))
        + "ValueError: bad LIMIT-4411"
    )
    messages = [step(None, ("a", "run", {"command": "python x"})), result("a", trace), said("assistant", "It raised.")]
    assert "ValueError: bad LIMIT-4411" in unfold(build(messages), 700).text


def test_more_files_than_the_ledger_has_room_for_are_counted() -> None:
    messages: list[Message] = []
    for i in range(60):
        messages += [
            step(None, (f"c{i}", "write_file", {"path": f"src/module_{i:02d}.py", "content": "x"})),
            result(f"c{i}", "ok"),
        ]
    text = unfold(build([*messages, said("assistant", "written")]), 1000).text
    ledger = next(line for line in text.splitlines() if line.startswith("ON DISK"))
    assert "src/module_59.py (written)" in ledger
    assert f"{ELLIPSIS} and " in ledger


def test_without_a_frontier_or_without_room_the_text_is_empty() -> None:
    assert unfold(build([said("user", "hello")]), 1400).text == ""
    assert unfold(build(papers_turn()), 0).text == ""
    assert unfold(build(papers_turn()), 20).text == ""


def test_a_token_allowance_is_counted_by_the_function_that_was_handed_over() -> None:
    def words(text: str) -> int:
        return len(text.split())

    carried = unfold(build(lookups(80)), 120, measure=words)
    assert 60 < words(carried.text) <= 120


def test_the_allowance_follows_the_window_between_its_bounds() -> None:
    assert [allowance(window) for window in (0, 900, 16_000, 131_072, 10_000_000)] == [0, 225, 750, 7792, 23_600]


def test_recency_in_the_place_of_distance_orders_by_age() -> None:
    old_but_used = [
        reading("a", "old.md"),
        result("a", "USED-00001 " + "x" * 300),
        reading("b", "new.md"),
        result("b", "y" * 300),
    ]
    graph = build([*old_but_used, said("assistant", "USED-00001")])
    by_age = unfold(graph, 640, policy=Policy(by_distance=False, floor=0, fade=0.0001)).shown
    assert 3 in by_age


@settings(max_examples=150, deadline=None)
@given(histories(), st.integers(0, 900))
def test_the_limit_holds_and_nothing_raises_on_any_history(messages: list[Message], limit: int) -> None:
    carried = unfold(build(messages), limit)
    assert size(carried.text) <= limit
    assert carried.clipped <= carried.shown


@settings(max_examples=60, deadline=None)
@given(histories(), st.integers(0, 200))
def test_the_limit_holds_for_counts_that_do_not_add_up(messages: list[Message], limit: int) -> None:
    def count(text: str) -> int:
        return (len(text) + 2) // 3 + text.count("\n")

    assert count(unfold(build(messages), limit, measure=count).text) <= limit
