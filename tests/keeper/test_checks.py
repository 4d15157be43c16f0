"""Each check by itself: what it asks about, what it says it saw, and what stands when nobody mends it."""

from typing import Any

import pytest

from keeper.checks import Turns, check
from keeper.draft import Draft, fold, settle
from keeper.notes import Entry, Notes, apply, read

NOTES = Notes(state=(Entry("doma86", "12", "Ada"), Entry("kupo12", "7"), Entry("port", "8080")))
STORY = ("Item 3: Bo added 5 to doma86. Ada recorded kupo12 at forty.",)


def seen(delta: str, *heard: str, notes: Notes = NOTES, **turns: Any) -> list[tuple[str, str, bool, bool]]:
    """(check, key, asked, stands) of every finding."""
    return [(f.check, f.key, f.asked, f.stands is not None) for f in check(notes, read(delta), Turns(heard or STORY, **turns))]


def test_a_right_reply_is_not_questioned() -> None:
    assert seen("doma86 = 12 + 5 = 17 by Bo\nkupo12 = 40 by Ada") == []
    assert seen("doma86 = old + 5 = 17 by Bo\nkupo12 = forty by Ada") == []
    assert seen("doma86 += 5 by Bo\nkupo12 = 40") == []


@pytest.mark.parametrize(
    ("delta", "name", "stands"),
    [
        ("doma86 = 12 + 5 = 18 by Bo", "sum", False),
        ("doma86 = 11 + 5 = 16 by Bo", "start", False),
        ("doma86 = 12 - 5 = 7 by Bo", "sign", False),
        ("doma86 = 12 + 6 = 18 by Bo", "amount", False),
        ("doma86 = 5 by Bo", "change_noted_as_set", False),
        ("doma86 = 19 by Bo", "working", False),
        ("kupo12 = 7 + 40 = 47 by Ada", "set_noted_as_change", False),
        ("kupo12 = 7 - 27 = -20 by Ada", "amount", False),
        ("kupo12 = high by Ada", "contradicted", False),
        ("doma86 unchanged", "contradicted", False),
        ("doma86 = 17 by Zed", "who", True),
    ],
)
def test_a_wrong_line_is_questioned_from_the_sentence_it_comes_from(delta: str, name: str, stands: bool) -> None:
    other = "\nkupo12 = 40 by Ada" if delta.startswith("doma86") else "\ndoma86 = 17 by Bo"
    assert seen(delta + other) == [(name, delta.split()[0], True, stands)]
    said = check(NOTES, read(delta + other), Turns(STORY))[0].said
    assert any(quoted in said for quoted in ("Bo added 5", "forty", "12 + 5 is 17", "noted value is 12", "not in these turns")), (
        said
    )


def test_a_noted_name_that_is_mentioned_and_has_no_line_is_asked_about() -> None:
    assert seen("doma86 = 17 by Bo") == [("unaccounted", "kupo12", True, False)]
    assert seen("doma86 = 17 by Bo\nkupo12 unchanged", "Bo added 5 to doma86. They spoke of kupo12.") == []


def test_of_a_plain_word_only_what_looks_like_a_change_must_be_accounted_for() -> None:
    assert seen("NONE", "The port is lovely in spring.") == []
    assert seen("NONE", "We set the port to 9090.") == [("unaccounted", "port", True, False)]


def test_questions_are_no_mention() -> None:
    assert seen("NONE", "What value does doma86 hold now?") == []


def test_a_line_that_cannot_be_read_is_asked_about_once() -> None:
    lines = read("Well, doma86 went up I think.\nkupo12 = 40")
    draft = fold(Draft(), lines, check(NOTES, lines, Turns(("Ada recorded kupo12 at forty.",))), first=True)
    assert [f.check for f in draft.asked] == ["unread"]
    again = read("doma86 = 17")
    draft = fold(draft, again, check(NOTES, again, Turns(("Bo added 5 to doma86.",))), first=False)
    assert draft.asked == ()
    assert apply(NOTES, settle(draft)[0]).entry("doma86") == Entry("doma86", "17")


def test_a_line_about_what_the_turns_never_mention_is_left_out_without_asking() -> None:
    assert seen("tena44 = 5 by Bo\ndoma86 = 17 by Bo\nkupo12 = 40") == [("unmentioned", "tena44", False, False)]
    assert seen("- port\ndoma86 = 17\nkupo12 = 40") == [("unmentioned", "port", False, False)]
    assert seen("- tena44\ndoma86 = 17\nkupo12 = 40") == [("remove", "tena44", False, False)]


def test_names_that_the_notes_invent_are_found_by_their_words_or_by_the_value() -> None:
    assert seen("deploy_target = staging", "We deploy to the staging target.", notes=Notes()) == []
    assert seen("current_goal = fix the failing parser test", "The parser test is failing, fix it.", notes=Notes()) == []
    assert seen("current_goal = buy some cheese", "The parser test is failing.", notes=Notes())[0][0] == "unmentioned"


def test_lines_on_the_way_to_the_last_one_of_a_name_are_steps() -> None:
    told = "Ada recorded doma86 at 30. Bo added 5 to doma86."
    assert seen("doma86 = 30 by Ada\ndoma86 = 30 + 5 = 35 by Bo", told) == []
    assert seen("doma86 = 30 + 5 = 35 by Bo", told) == [], "a working may start from what was set in these turns"


def test_a_value_the_task_itself_states_is_one_to_start_from() -> None:
    assert seen("tena44 = 3 + 5 = 8 by Bo", "Bo added 5 to tena44.", notes=Notes(), head="The task: tena44 = 3.") == []


def test_what_the_reader_cannot_follow_is_believed_when_the_model_says_it_again() -> None:
    turns = Turns(("doma86 went up by as much as kupo12 held, by Bo.",))
    lines = read("doma86 = 12 + 7 = 19 by Bo\nkupo12 unchanged")
    assert check(NOTES, lines, turns) == (), "its amount is a noted value"
    lines = read("doma86 = 20 by Bo\nkupo12 unchanged")
    draft = fold(Draft(), lines, check(NOTES, lines, turns), first=True)
    assert [f.check for f in draft.asked] == ["working"]
    draft = fold(draft, lines[:1], check(NOTES, lines[:1], turns), first=False)
    assert draft.asked == () and apply(NOTES, settle(draft)[0]).entry("doma86") == Entry("doma86", "20", "Bo")


def test_what_the_text_contradicts_is_not_believed_however_often_it_is_said() -> None:
    turns = Turns(STORY)
    lines = read("doma86 = 12 - 5 = 7 by Bo\nkupo12 = 40 by Ada")
    draft = fold(Draft(), lines, check(NOTES, lines, turns), first=True)
    for _ in range(2):
        draft = fold(draft, lines, check(NOTES, lines, turns), first=False)
    stands, left_out = settle(draft)
    assert apply(NOTES, stands).entry("doma86") == Entry("doma86", "12", "Ada")
    assert apply(NOTES, stands).entry("kupo12") == Entry("kupo12", "40", "Ada")
    assert len(left_out) == 1 and "wrong sign" in left_out[0]


def test_an_invented_person_is_dropped_and_the_value_kept() -> None:
    lines = read("doma86 = 17 by Zed\nkupo12 = 40 by Ada")
    draft = fold(Draft(), lines, check(NOTES, lines, Turns(STORY)), first=True)
    assert apply(NOTES, settle(draft)[0]).entry("doma86") == Entry("doma86", "17")


def test_an_invented_person_does_not_hide_a_contradiction() -> None:
    lines = read("doma86 = 99 by Zed\nkupo12 = 40 by Ada")
    draft = fold(Draft(), lines, check(NOTES, lines, Turns(STORY)), first=True)
    assert apply(NOTES, settle(draft)[0]).entry("doma86") == Entry("doma86", "12", "Ada")


def test_a_line_that_passed_is_never_replaced_by_a_later_reply() -> None:
    first, later = read("doma86 = 17 by Bo\nkupo12 = 41 by Ada"), read("doma86 = 12 by Bo\nkupo12 = 40 by Ada")
    draft = fold(Draft(), first, check(NOTES, first, Turns(STORY)), first=True)
    draft = fold(draft, later, check(NOTES, later, Turns(STORY)), first=False)
    after = apply(NOTES, settle(draft)[0])
    assert (after.entry("doma86"), after.entry("kupo12")) == (Entry("doma86", "17", "Bo"), Entry("kupo12", "40", "Ada"))


def test_another_language_is_neither_followed_nor_contradicted() -> None:
    told = "Der Schreiber trug doma86 mit dreißig ein. Bo nahm 4 von doma86."
    assert [f for f in seen("doma86 = 26 by Bo", told) if not f[3]] == []
