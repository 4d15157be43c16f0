"""The sixteen lessons of the keeper's source, by number: the fault on a naive variant as it was, and the keeper without it."""

import json
import tracemalloc
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keeper.archive import Archive
from keeper.checks import Finding, Turns, check
from keeper.config import KeeperConfig, Thinking
from keeper.draft import Draft, fold, settle
from keeper.message import History, ToolCall
from keeper.notes import Entry, Notes, Rule, Set, apply, decimal, from_json, read
from keeper.noting import MARK
from keeper.recall import REPEATED, STOP, THIRD_TIME, Query, answer, query_of
from keeper.strategies.in_place import InPlace
from keeper.strategies.rewrite import rewritten
from keeper.thinking import for_main_call
from keeper.versions import versions
from keeper.window import Cut, layout
from tests.keeper.agent import Model, ask, keeper_of
from tests.keeper.helpers import a, called, past_of, run, s, situation_of, t, u
from tests.keeper.reader import Reader, call, text_of
from tests.keeper.upstream import reading

RULE = "any figure below zero is reported as the single word overdrawn"


def filler(n: int, words: int = 60) -> list[dict[str, Any]]:
    """n exchanges of a story that changes nothing."""
    return [m for i in range(n) for m in (u(f"Item {i + 2}: " + "It rained over the mill. " * (words // 5)), a("Noted."))]


# --- 1: ask for the notes after the turns -------------------------------------------------------------------------------


def continues_its_own_turns(messages: list[dict[str, Any]]) -> str:
    """A model that takes notes only where the request is the last thing it reads."""
    return f"+ RULE {RULE}" if text_of(messages[-1]).startswith("NOTES REQUEST") else "Noted. I go on with item 9."


def test_lesson_01_notes_are_asked_for_after_the_turns_that_go_not_before_them() -> None:
    turns = [s(), u("Read the items."), a("Yes."), u(f"Item 1: {RULE}."), a("Noted."), *filler(20)]
    request_first = [*turns[:3], u("NOTES REQUEST. Write down what changed."), *turns[3:]]
    assert not [line for line in read(continues_its_own_turns(request_first)) if isinstance(line, Rule)]

    model = Model(lambda body: a(continues_its_own_turns(body["messages"])))
    turn = ask(keeper_of(model, window=2048), model, [*turns, u("Item 22: nothing.")])
    assert text_of(model.sent[0]["messages"][-1]).startswith("NOTES REQUEST")
    assert f"- {RULE}" in text_of(turn.body["messages"][1])


# --- 2: a rule has a pinned place and is repeated at the question -------------------------------------------------------


def obeys_what_is_near(messages: list[dict[str, Any]]) -> str:
    """A model that follows a rule only where it stands beside the question."""
    return "overdrawn" if RULE in text_of(messages[-1]) else "-16"


def test_lesson_02_a_rule_is_pinned_and_repeated_next_to_each_question() -> None:
    history = [s(), u("Read the items."), a("Yes."), *filler(3), u("What value does doma86 hold now?")]
    notes = Notes(rules=(RULE,), state=(Entry("doma86", "-16"),))
    cut = Cut(notes, start=8, noted=8)
    pinned_only = [message.as_dict() for message in layout(History(history), len(history), cut)]
    pinned_only[-1] = history[-1]
    assert obeys_what_is_near(pinned_only) == "-16"

    view = [message.as_dict() for message in layout(History(history), len(history), cut)]
    assert obeys_what_is_near(view) == "overdrawn"
    assert sum(RULE in text_of(message) for message in view) == 2, "in NOTES, and at the question alone"


# --- 3: thinking stays on while a question is open ----------------------------------------------------------------------


def thinks(messages: list[dict[str, Any]]) -> bool:
    config = KeeperConfig(thinking=Thinking.QUESTIONS)
    return bool(for_main_call({"messages": messages}, config, History(messages))["chat_template_kwargs"]["enable_thinking"])


def test_lesson_03_thinking_stays_on_from_a_question_until_it_is_answered() -> None:
    asked = [s(), u("Read the items."), a("Yes."), u("What value does doma86 hold now?")]
    working = [*asked, called("1"), t("1", "It rained over the mill.")]
    only_for_the_call_that_got_it = text_of(working[-1]).endswith("?")
    assert not only_for_the_call_that_got_it

    assert thinks(asked)
    assert thinks(working)
    assert thinks([*working, called("2"), t("2", "Nothing there.")])
    assert not thinks([*working, a("342"), u("Item 9: It rained.")])


# --- 4 and 6: loops of searches -----------------------------------------------------------------------------------------


class Looping:
    """A model that sends the same searches round and round as long as it is sampled without randomness."""

    def __init__(self, queries: list[str]) -> None:
        self.queries = queries
        self.calls = 0

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("temperature", 0) > 0:
            return a("342")
        self.calls += 1
        query = self.queries[(self.calls - 1) % len(self.queries)]
        return {"role": "assistant", "content": None, "tool_calls": [call("recall", {"query": query}, self.calls)]}


def test_lesson_04_the_third_refusal_in_a_row_says_answer_and_draws_that_reply_with_some_randomness() -> None:
    naive = Looping(["doma86"])
    refused_forever = [naive.answer({"temperature": 0}) for _ in range(362)]
    assert all(reply["tool_calls"] for reply in refused_forever), "a refusal alone leaves the model where it was"

    looping = Looping(["doma86"])
    model = Model(looping.answer)
    turn = ask(
        keeper_of(model, window=4096), model, [s(), u("Item 1: doma86 = 342 by Ada."), a("Noted."), u("doma86?")], temperature=0
    )
    results = [text_of(m) for m in model.sent[-1]["messages"] if m["role"] == "tool"]
    assert results == ["1 match.\n[item 1, user] Item 1: doma86 = 342 by Ada.", REPEATED, REPEATED, STOP]
    assert [body.get("temperature") for body in model.sent] == [0, 0, 0, 0, 0.7]
    assert turn.reply.message.text == "342"


def test_lesson_06_a_search_sent_a_third_time_since_the_last_new_content_is_refused_too() -> None:
    queries = ["doma86", "kupo12", "the mill"]
    in_a_row_only = [one == other for one, other in zip(queries * 10, (queries * 10)[1:], strict=False)]
    assert not any(in_a_row_only), "refusing repeats in a row never fires on a circle of three"

    looping = Looping(queries)
    model = Model(looping.answer)
    turn = ask(
        keeper_of(model, window=4096), model, [s(), u("Item 1: doma86 = 342 by Ada."), a("Noted."), u("doma86?")], temperature=0
    )
    results = [text_of(m) for m in model.sent[-1]["messages"] if m["role"] == "tool"]
    assert results[6:8] == [THIRD_TIME, THIRD_TIME]
    assert results[8] == STOP
    assert looping.calls == 9 and turn.reply.message.text == "342"


# --- 5: a match is shown with the sentence after it ---------------------------------------------------------------------


def test_lesson_05_a_search_shows_the_sentence_that_follows_the_match() -> None:
    story = "Item 4: Next on the list was nipewe33. It went up by 84. The lamps were lit."
    past = past_of([u(story), a("Noted.")])
    hit = past.search("nipewe33").hits[0]
    assert "84" not in hit.text, "the matching sentence alone is blind"
    assert hit.following == "It went up by 84."


# --- 7: a re-ask loses nothing ------------------------------------------------------------------------------------------


def test_lesson_07_a_rule_named_in_any_reply_to_one_request_is_kept() -> None:
    notes = Notes(state=(Entry("doma86", "12"),))
    turns = Turns((f"Item 1: {RULE}. Bo added 5 to doma86.",))
    first, second = read(f"+ RULE {RULE}\ndoma86 = 12 + 5 = 18 by Bo"), read("doma86 = 12 + 5 = 17 by Bo")
    assert apply(notes, second).rules == (), "the second reply alone has lost it"

    draft = fold(Draft(), first, check(notes, first, turns), first=True)
    assert [finding.check for finding in draft.asked] == ["sum"]
    draft = fold(draft, second, check(notes, second, turns), first=False)
    kept = apply(notes, settle(draft)[0])
    assert kept.rules == (RULE,)
    assert kept.entry("doma86") == Entry("doma86", "17", "Bo")


# --- 8: what only the keeper saw is shown again -------------------------------------------------------------------------


def test_lesson_08_searches_of_a_turn_that_ended_empty_are_shown_again_in_the_next_request() -> None:
    replies = iter(
        [{"role": "assistant", "content": None, "tool_calls": [call("recall", {"query": "doma86"}, 1)]}, a(""), a("342")]
    )
    model = Model(lambda _: next(replies))
    keeper = keeper_of(model, window=4096)
    history = [s(), u("Item 1: doma86 = 342 by Ada."), a("Noted."), u("doma86?")]
    assert ask(keeper, model, history).reply.message.text == ""
    naive = [*history, a(""), u("Well?")]
    assert not any("[item 1" in text_of(message) for message in naive), "the agent's history never held the result"

    turn = ask(keeper, model, naive)
    sent = model.sent[-1]["messages"]
    assert "[item 1, user] Item 1: doma86 = 342 by Ada." in text_of(sent[3])
    assert turn.reply.message.text == "342"


# --- 9: one way of counting ---------------------------------------------------------------------------------------------


def test_lesson_09_a_search_counts_in_the_contents_own_numbers_alone() -> None:
    history = [m for item in range(1, 41) for m in (u(f"Item {item}: Bo set doma86 to {item * 10}."), a("Noted."))]
    past = past_of(history)
    before_message_30 = [text_of(m) for m in history[:30] if "doma86" in text_of(m)]
    assert before_message_30[-1] == "Item 15: Bo set doma86 to 150.", "message numbers are another count"

    found = run(_recalled(past, {"query": "doma86", "before": 30, "limit": 1}))
    assert found.splitlines()[1] == "[item 29, user] Item 29: Bo set doma86 to 290."
    assert "message" not in found and "[57" not in found


async def _recalled(past: Any, arguments: dict[str, Any]) -> str:
    query = query_of(ToolCall("1", "recall", json.dumps(arguments)))
    assert isinstance(query, Query)
    return answer(past, query, 20)


# --- 10: a list that is cut short says so first -------------------------------------------------------------------------


def test_lesson_10_a_list_that_is_cut_short_says_so_in_its_first_line_and_shows_the_nearest() -> None:
    past = past_of([m for item in range(1, 64) for m in (u(f"Item {item}: Bo added {item} to doma86."), a("Noted."))])
    oldest_first = [hit.item for hit in past.search("doma86", limit=63).hits][:40]
    assert 50 not in oldest_first, "the first 40 of 63 hide what was asked for"

    found = run(_recalled(past, {"query": "doma86", "before": 51, "limit": 5})).splitlines()
    assert found[0] == "CUT SHORT: 50 matches, these are the 5 nearest before item 51. Narrow the search to see others."
    assert [line.split(",")[0] for line in found[1:]] == [f"[item {item}" for item in range(46, 51)]
    after = run(_recalled(past, {"query": "doma86", "after": 20, "limit": 2})).splitlines()
    assert after[0].startswith("CUT SHORT: 43 matches, these are the 2 nearest after item 20.")
    assert [line.split(",")[0] for line in after[1:]] == ["[item 21", "[item 22"]


# --- 11: what stays in view is not noted twice --------------------------------------------------------------------------


def test_lesson_11_a_change_that_is_noted_already_is_not_noted_again() -> None:
    notes = Notes(state=(Entry("nipewe33", "184", "Bo"), Entry("doma86", "5")))
    turns = Turns(("Item 8: Bo set doma86 to 7.",), said=())
    again = read("doma86 = 7 by Bo\nnipewe33 = 184 - 84 = 100 by Bo")
    assert apply(notes, again).entry("nipewe33") == Entry("nipewe33", "100", "Bo"), "taken as it came it is noted backwards"

    draft = fold(Draft(), again, check(notes, again, turns), first=True)
    lines, left_out = settle(draft)
    kept = apply(notes, lines)
    assert kept.entry("nipewe33") == Entry("nipewe33", "184", "Bo")
    assert kept.entry("doma86") == Entry("doma86", "7", "Bo")
    assert draft.asked == () and "never mention nipewe33" in left_out[0]


def test_lesson_11_the_request_and_the_view_say_which_exchange_is_noted_already() -> None:
    model = Model(reading(Reader()))
    keeper = keeper_of(model, window=1024, notes_reply_tokens=128)
    history: list[dict[str, Any]] = [s(), u("Read the items."), a("Noted.")]
    for item in range(1, 16):
        history.append(
            u(
                f"Item {item}: Bo added {item} to doma86. " + "It rained. " * 12
                if item > 1
                else "Item 1: Bo recorded doma86 at 100."
            )
        )
        history.append(a(ask(keeper, model, history).reply.message.text))
    requests = [text_of(b["messages"][-1]) for b in model.sent if text_of(b["messages"][-1]).startswith("NOTES REQUEST")]
    assert len(requests) >= 2
    assert 'begins "Item ' in requests[-1] and requests[-1].endswith("is in the NOTES already: leave it out.")
    mark = keeper.archive.marks(keeper.archive.enter(History(history)), MARK)[-1]
    noted = from_json(mark.body["notes"]).entry("doma86")
    assert noted is not None and int(noted.value) == 100 + sum(range(2, (mark.place - 1) // 2))


# --- 12: the first reply stands, there is no other path -----------------------------------------------------------------


def test_lesson_12_after_unusable_answers_the_first_reply_stands_without_the_lines_in_question() -> None:
    history = [
        s(),
        u("Read the items."),
        a("Yes."),
        u("Item 1: Bo added 5 to doma86. Ada set kupo12 to 7."),
        a("Noted."),
        *filler(20),
    ]
    replies = iter(["kupo12 = 7 by Ada\ndoma86 = 12 + 5 = 18 by Bo", "I am not sure what you mean.", ""])
    sent: list[list[dict[str, Any]]] = []

    def answer(messages: list[dict[str, Any]]) -> str:
        sent.append(messages)
        return next(replies, "NONE")

    situation = situation_of([*history, u("Item 22: nothing.")], answer, window=2048)
    situation.past.put(MARK, 3, {**Cut(Notes(state=(Entry("doma86", "12"),)), 3, 3).as_json(), "taken": None})
    run(InPlace().view(situation))
    assert situation.counters["re_asks"] == 2
    requests = [text_of(messages[-1])[:5] for messages in sent]
    assert requests == ["NOTES", "Some ", "Some ", "NOTES"], "asked again at most twice; the next request is about the next turns"
    assert not any("NOTES REWRITE" in text_of(message) for messages in sent for message in messages)
    mark = situation.past.latest(MARK)
    assert mark is not None
    notes = from_json(mark.body["notes"])
    assert notes.entry("kupo12") == Entry("kupo12", "7", "Ada")
    assert notes.entry("doma86") == Entry("doma86", "12"), "the noted value stays, the line in question is left out"


def test_lesson_12_a_rule_that_only_restates_the_task_is_left_out() -> None:
    task = "Read the items and write all answers to the file answers.txt at the end."
    lines = read("+ RULE write all answers to the file answers.txt at the end")
    naive = rewritten(Notes(), lines)
    assert naive.rules, "repeated at every question, it is obeyed to the letter there"

    findings = check(Notes(), lines, Turns(("Item 1: It rained.",), head=task))
    assert [finding.check for finding in findings] == ["restated"]
    said_by_the_task = read("+ RULE Rule: doma86 is confidential")
    assert check(Notes(), said_by_the_task, Turns((), head="Rule: doma86 is confidential")) == ()


# --- 13: invented working -----------------------------------------------------------------------------------------------


def test_lesson_13_every_amount_of_a_working_is_in_the_text() -> None:
    notes = Notes(state=(Entry("katu85", "650"),))
    line = read("katu85 = 650 - 27 = 623")[0]
    assert isinstance(line, Set) and line.working is not None
    adds_up = line.working.start == Decimal(650) and sum(line.working.steps, line.working.start) == decimal(line.value)
    assert adds_up, "it starts from the noted value and the sum is right"

    findings = check(notes, [line], Turns(("The clerk recorded katu85 at five hundred and twenty-three.",)))
    assert [(finding.check, finding.stands) for finding in findings] == [("amount", None)]
    assert "five hundred and twenty-three" in findings[0].said


# --- 14: a check that is too eager --------------------------------------------------------------------------------------


def test_lesson_14_only_what_the_text_contradicts_is_left_out() -> None:
    notes = Notes(state=(Entry("doma86", "10"), Entry("kupo12", "32")))
    turns = Turns(("Item 3: doma86 went up by as much as kupo12 held, and a bit. It was halved then.",))
    lines = read("doma86 = 21 by Bo")
    in_the_text = any("21" in text for text in turns.heard)
    assert not in_the_text, "left out by the eager rule, though nothing contradicts it"

    findings = [finding for finding in check(notes, lines, turns) if finding.key == "doma86" and finding.check != "who"]
    assert [(finding.check, finding.stands) for finding in findings] == [("working", lines[0])]
    draft = fold(Draft(), lines, findings, first=True)
    assert apply(notes, settle(draft)[0]).entry("doma86") == Entry("doma86", "21", "Bo")


# --- 15: one snapshot at a time -----------------------------------------------------------------------------------------


def test_lesson_15_the_audit_reads_one_version_of_the_notes_at_a_time() -> None:
    archive = Archive()
    track = archive.enter(History([u("Read the items.")]))
    big = Notes(state=tuple(Entry(f"name{i}", str(i)) for i in range(400)))
    for _ in range(150):
        archive.put(track, MARK, 1, {**Cut(big, 1, 1).as_json(), "taken": None})

    def peak(work: Any) -> int:
        tracemalloc.start()
        work()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    all_at_once = peak(lambda: list(versions(archive, track)))
    one_by_one = peak(lambda: sum(1 for _ in versions(archive, track)))
    assert one_by_one * 2 < all_at_once, (one_by_one, all_at_once)


# --- 16: checking code is checked ---------------------------------------------------------------------------------------

NAMES = st.sampled_from(["doma86", "kupo12", "tena44"])
SENTENCES = st.builds("Bo {} {} {} {}.".format, st.sampled_from(["added", "set", "took", "recorded"]), st.integers(0, 99),
                      st.sampled_from(["to", "from", "at"]), NAMES)  # fmt: skip
LINES = st.builds("{} = {} by Bo".format, NAMES, st.integers(-50, 150)) | st.builds(
    "{} = {} + {} = {}".format, NAMES, st.integers(0, 99), st.integers(0, 99), st.integers(0, 198)
)


@settings(max_examples=200, deadline=None)
@given(st.lists(SENTENCES, max_size=5), st.lists(LINES, max_size=5), st.lists(LINES, max_size=5))
def test_lesson_16_no_check_can_ever_store_a_value_that_the_model_did_not_write(
    told: list[str], one: list[str], two: list[str]
) -> None:
    notes = Notes(state=(Entry("doma86", "12"), Entry("kupo12", "7")))
    first, second, turns = read("\n".join(one)), read("\n".join(two)), Turns(tuple(told))

    def corrected(line: Set, finding: Finding) -> Set:
        return Set(line.name, finding.said.split()[-1])  # a check that mends stores whatever it misread

    draft = fold(Draft(), first, check(notes, first, turns), first=True)
    draft = fold(draft, second, check(notes, second, turns), first=False)
    written = {(line.name, line.value) for line in (*first, *second) if isinstance(line, Set)}
    kept = apply(notes, settle(draft)[0])
    assert {(e.name, e.value) for e in kept.state} <= written | {(e.name, e.value) for e in notes.state}
    assert {e.name for e in kept.state} >= {"doma86", "kupo12"}
    for finding in check(notes, first, turns):
        if finding.stands is not None and isinstance(finding.line, Set) and finding.check != "who":
            assert finding.stands == finding.line != corrected(finding.line, finding)
