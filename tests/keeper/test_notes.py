"""The NOTES block and the delta grammar: tolerant in form, strict in meaning, and no delta loses a line it does not name."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keeper.notes import (
    Closed,
    Entry,
    Line,
    Notes,
    Opened,
    Remove,
    Rule,
    Set,
    Unchanged,
    Unread,
    Working,
    apply,
    from_json,
    read,
)

D = Decimal
FORMS: list[tuple[str, Line]] = [
    ("doma86 = 342", Set("doma86", "342")),
    ("doma86 = 342 by Ada", Set("doma86", "342", "Ada")),
    ("- doma86 = 342 by Ada.", Set("doma86", "342", "Ada")),
    ("* `doma86` = **342** by Ada", Set("doma86", "342", "Ada")),
    ("3) doma86 := 342", Set("doma86", "342")),
    ("doma86 -> 342", Set("doma86", "342")),
    ("doma86 → 1,342", Set("doma86", "1342")),
    ("doma86: 342", Set("doma86", "342")),
    ("+ doma86 = 342", Set("doma86", "342")),
    ("x = 5", Set("x", "5")),
    ("deploy target = staging by Bo Li", Set("deploy target", "staging", "Bo Li")),
    ("url = http://x.org/a?b=c", Set("url", "http://x.org/a?b=c")),
    ("doma86 = 12 + 5 = 17 by Bo", Set("doma86", "17", "Bo", Working(D(12), (D(5),), D(17)))),
    ("doma86 = old + 5 = 12", Set("doma86", "12", "", Working(None, (D(5),), D(12)))),
    ("doma86 = 12 + 5 − 3 - 2 = 12", Set("doma86", "12", "", Working(D(12), (D(5), D(-3), D(-2)), D(12)))),
    ("doma86 = -12 - 5 = -17", Set("doma86", "-17", "", Working(D(-12), (D(-5),), D(-17)))),
    ("doma86 = 12 + 5", Set("doma86", "", "", Working(D(12), (D(5),), None))),
    ("doma86 += 5 by Bo", Set("doma86", "", "Bo", Working(None, (D(5),), None))),
    ("doma86 -= 5", Set("doma86", "", "", Working(None, (D(-5),), None))),
    ("doma86 = 1.50", Set("doma86", "1.5")),
    ("doma86 unchanged", Unchanged("doma86")),
    ("doma86 = unchanged", Unchanged("doma86")),
    ("doma86 is the same.", Unchanged("doma86")),
    ("= doma86", Unchanged("doma86")),
    ("- doma86", Remove("doma86")),
    ("+ RULE any figure below zero is reported as overdrawn", Rule("any figure below zero is reported as overdrawn")),
    ("+ RULE: a tally is value = 5 x + 13", Rule("a tally is value = 5 x + 13")),
    ("RULE: answer protected", Rule("answer protected")),
    ("+ answer protected when asked", Rule("answer protected when asked")),
    ("? who holds doma86", Opened("who holds doma86")),
    ("x who holds doma86", Closed("who holds doma86")),
    ("X - who holds doma86", Closed("who holds doma86")),
    ("I think that the counter went up.", Unread("I think that the counter went up.")),
    ("- always answer with the word protected", Unread("- always answer with the word protected")),
    ("doma86 += lots", Unread("doma86 += lots")),
    ("?", Unread("?")),
]


@pytest.mark.parametrize(("text", "line"), FORMS, ids=[text for text, _ in FORMS])
def test_a_line_reads_as_what_it_means(text: str, line: Line) -> None:
    assert read(text) == (line,)


@pytest.mark.parametrize(
    "text", ["", "NONE", "None.", "- none", "nothing changed", "No changes", "```", "STATE", "## NOTES:", "  \n\n"]
)
def test_a_line_without_meaning_is_no_change(text: str) -> None:
    assert read(text) == ()


def test_a_whole_block_reads_as_changes_by_its_headings() -> None:
    block = "```\nNOTES\nRULES\n- answer protected\nSTATE\n- doma86 = 342 by Ada\nOPEN\n- who did it\n```"
    assert read(block) == (Rule("answer protected"), Set("doma86", "342", "Ada"), Opened("who did it"))


NOTES = Notes(("answer protected",), (Entry("doma86", "12", "Ada"), Entry("kupo12", "7")), ("who did it", "when was it"))


def test_the_block_is_written_exactly_so() -> None:
    expected = "NOTES\nRULES\n- answer protected\nSTATE\ndoma86 = 12 by Ada\nkupo12 = 7\nOPEN\n- who did it\n- when was it"
    assert NOTES.render() == expected
    assert Notes().render() == "NOTES\nRULES\nSTATE\nOPEN"
    assert NOTES.reminder() == "RULES\n- answer protected" and Notes().reminder() == ""
    assert from_json(NOTES.as_json()) == NOTES  # type: ignore[arg-type]


def test_old_lines_can_be_left_out_of_the_view_and_it_says_so() -> None:
    assert NOTES.render(1).split("\n")[3:6] == ["STATE", "(1 older lines are not shown; recall finds them by name)", "kupo12 = 7"]
    assert "doma86" not in NOTES.render(1) and NOTES.render(2) == NOTES.render()


def test_a_changed_line_goes_to_the_end_so_that_what_stood_before_it_stays_a_prefix() -> None:
    after = apply(NOTES, read("doma86 = 20 by Bo"))
    assert [entry.name for entry in after.state] == ["kupo12", "doma86"]
    assert apply(NOTES, read("kupo12 = 7")) is NOTES, "what does not change does not move"


def test_names_are_found_in_any_letter_case_and_keep_their_spelling() -> None:
    assert apply(NOTES, read("DOMA86 = 20")).entry("doma86") == Entry("doma86", "20")


def test_questions_are_closed_by_their_text_or_a_part_that_only_one_holds() -> None:
    assert apply(NOTES, read("x Who did it?")).open == ("when was it",)
    assert apply(NOTES, read("x when")).open == ("who did it",)
    assert apply(NOTES, read("x it")).open == NOTES.open, "both hold it: nothing is closed on a guess"
    assert apply(NOTES, read("? who did it")).open == NOTES.open


def test_removing_what_is_not_there_changes_nothing() -> None:
    assert apply(NOTES, read("- tena44")) == NOTES
    assert apply(NOTES, read("- kupo12")).state == (Entry("doma86", "12", "Ada"),)


NAME = st.sampled_from(["doma86", "kupo12", "tena44", "deploy target"])
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=30)
LINE = st.one_of(
    st.builds("{} = {}".format, NAME, TEXT),
    st.builds("{} = {} + {} = {}".format, NAME, st.integers(), st.integers(0), st.integers()),
    st.builds("- {}".format, NAME),
    st.builds("+ RULE {}".format, TEXT),
    st.builds("{} unchanged".format, NAME),
    st.builds("? {}".format, TEXT),
    st.builds("x {}".format, TEXT),
    TEXT,
)


@given(st.lists(LINE, max_size=8))
def test_no_delta_loses_a_line_it_does_not_name_and_none_drops_or_rewords_a_rule(lines: list[str]) -> None:
    delta = read("\n".join(lines))
    after = apply(NOTES, delta)
    named = {line.name.casefold() for line in delta if isinstance(line, Set | Remove)}
    assert after.rules[: len(NOTES.rules)] == NOTES.rules
    for entry in NOTES.state:
        assert entry.name.casefold() in named or entry in after.state
    closed = [line for line in delta if isinstance(line, Closed)]
    assert closed or after.open[: len(NOTES.open)] == NOTES.open
    assert from_json(after.as_json()) == after  # type: ignore[arg-type]


@given(st.lists(st.tuples(NAME, st.integers(-999, 999)), max_size=6))
def test_a_rendered_block_reads_back_as_itself(values: list[tuple[str, int]]) -> None:
    notes = apply(NOTES, [Set(name, str(value), "Bo") for name, value in values])
    assert apply(Notes(), read(notes.render())) == notes
