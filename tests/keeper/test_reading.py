"""What plain sentences say about a name, amounts in running text, sentences, item numbers, questions."""

from decimal import Decimal

import pytest

from keeper.items import item_number
from keeper.message import History, read
from keeper.numbers import amounts
from keeper.questions import asked, questions, still_open
from keeper.reading import Fact, Kind, Told, outcome
from keeper.sentences import LONGEST, split
from tests.keeper.helpers import a, called, s, t, u

D = Decimal


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("recorded at three hundred and forty-two", [342]),
        ("took seven and eight", [7, 8]),
        ("two thousand three hundred and five of 1,234.5", [2305, 1234.5]),
        ("a hundred and one, minus five", [101, -5]),
        ("650 − 27 = 623 and 650 -27 at -7 (−5)", [650, 27, 623, 650, 27, -7, -5]),
        ("doma86 on the 1st: 12:30, $5, 3.5.", [12, 30, 5, 3.5]),
        ("one of them, no one, one day; one", [1]),
        ("nothing here", []),
    ],
)
def test_amounts_are_found_in_digits_and_words(text: str, found: list[float]) -> None:
    assert [float(amount.value) for amount in amounts(text)] == found


def facts(name: str, text: str, *names: str) -> list[tuple[Kind, Decimal | None]]:
    return [(fact.kind, fact.amount) for fact in Told([text], [name, *names]).facts(name)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The clerk recorded doma86 at three hundred and forty-two.", [(Kind.SET, D(342))]),
        ("The clerk recorded doma86 at six.", [(Kind.SET, D(6))]),
        ("In the ledger doma86 = 342 by Ada.", [(Kind.SET, D(342))]),
        ("doma86 now stands at 12.", [(Kind.SET, D(12))]),
        ("doma86 rose to 9.", [(Kind.SET, D(9))]),
        ("The clerk put doma86 at 5.", [(Kind.SET, D(5))]),
        ("Ten were taken from doma86 by Ada.", [(Kind.CHANGE, D(-10))]),
        ("Wren lowered doma86 by 12.", [(Kind.CHANGE, D(-12))]),
        ("doma86 gained seven.", [(Kind.CHANGE, D(7))]),
        ("Next on the list was doma86. It went up by 84.", [(Kind.MENTION, None), (Kind.CHANGE, D(84))]),
        ("Bo added 5 to doma86, and kupo12 fell by 3.", [(Kind.CHANGE, D(5))]),
        ("Bo moved 5 from kupo12 to doma86.", [(Kind.UNCLEAR, None)]),
        ("doma86 went up by as much as kupo12 held.", [(Kind.UNCLEAR, None)]),
        ("doma86 was halved and lost 3.", [(Kind.UNCLEAR, None)]),
        ("Bo did not add 5 to doma86.", [(Kind.UNCLEAR, None)]),
        ("Bo took 7 from doma86 and left 3 apples.", [(Kind.UNCLEAR, None)]),
        ("doma86 was painted green.", [(Kind.MENTION, None)]),
        ("What is doma86 at 5?", []),
        ("Nothing about doma867 or xdoma86 at 5.", []),
        ("Next was doma86. kupo12 slept. It went up by 84.", [(Kind.MENTION, None)]),
    ],
)
def test_a_sentence_is_read_where_it_is_plain_and_unclear_where_it_is_not(
    text: str, found: list[tuple[Kind, Decimal | None]]
) -> None:
    assert facts("doma86", text, "kupo12") == found


def test_the_outcome_is_known_until_something_is_unclear_and_again_from_the_next_plain_value() -> None:
    plus, minus, to, unclear = (
        Fact(Kind.CHANGE, "", D(5)),
        Fact(Kind.CHANGE, "", D(-2)),
        Fact(Kind.SET, "", D(7)),
        Fact(Kind.UNCLEAR, ""),
    )
    assert outcome(D(10), [plus, minus]) == 13
    assert outcome(None, [plus]) is None
    assert outcome(D(10), [plus, unclear, minus]) is None
    assert outcome(D(10), [unclear, to, minus]) == 5


def test_sentences_end_at_marks_before_space_and_at_line_ends() -> None:
    assert split('He said "no." Then 3.5 of x.py fell!\nNext\n\n') == ['He said "no."', "Then 3.5 of x.py fell!", "Next"]
    assert split("x" * (LONGEST + 1)) == ["x" * LONGEST, "x"] and split("  ") == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Item 332: rain", 332),
        ("**Ticket #5** - fix it", 5),
        ("[Day 12]", 12),
        ("Batch no. 7", 7),
        ("What was doma86 at item 12?", None),
        ("Item twelve", None),
        ("The items 3 and 4", None),
        ("", None),
    ],
)
def test_the_number_a_message_gives_itself(text: str, number: int | None) -> None:
    assert item_number(text) == number


def test_a_user_message_asks_by_a_mark_or_an_order_and_a_tool_result_only_by_a_whole_question() -> None:
    assert questions(read(u("It rained. What value does doma86 hold now?"))) == ("What value does doma86 hold now?",)
    assert questions(read(u("Give the current value of doma86."))) == ("Give the current value of doma86.",)
    assert questions(read(u("It rained all morning."))) == ()
    assert questions(read(t("1", "x = y ? a : b\nreally?\nurl?a=b"))) == ()
    assert questions(read(t("1", "Batch 9\nQuestion 1: Who changed it?"))) == ("Question 1: Who changed it?",)
    assert questions(read(a("Shall I?"))) == ()


def test_a_question_waits_until_a_reply_that_says_something_and_calls_nothing() -> None:
    waiting = History([s(), u("Do it."), called("1"), t("1", "ok"), {"role": "assistant", "content": ""}])
    assert still_open(waiting, range(5), 5) == (1,)
    answered = History([*waiting.raw, a("Done."), u("Thanks.")])
    assert still_open(answered, range(7), 7) == (6,)
    assert not asked(answered, 0, 7) and asked(History([u("doma86?"), called("1"), t("1", "x")]), 0, 3)
    assert still_open(answered, [], 7) == ()
