"""The tope strategy: edits that stand until the next one, views that fit, and the hand-over to summarise."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings

from keeper.archive import Archive
from keeper.config import KeeperConfig
from keeper.errors import MessageTooLarge, WindowTooSmall
from keeper.graph import STUB_MARK
from keeper.message import History, Message, assistant
from keeper.model import Reply
from keeper.past import Past
from keeper.strategies.base import Situation, View
from keeper.strategies.registry import make
from keeper.strategies.tope import CARRIED, Prices, Tope, edit_from_json
from keeper.strategies.tope_notes import TopeNotes
from tests.keeper.spans import reading, result, said
from tests.keeper.test_graph import histories
from tests.keeper.test_plan import BIG, work


class Desk:
    """One archive and what a keeper would hand to a strategy; counts a token for four characters and four for a message."""

    def __init__(self, window: int = 4096, reply: str = "a summary") -> None:
        self.archive = Archive()
        self.config = KeeperConfig(window=window)
        self.limit = window - window // 4
        self.reply = reply
        self.asked = 0

    def count(self, messages: Sequence[Message]) -> int:
        return 10 + sum(4 + len(m.text) // 4 + sum(len(c.name + c.arguments) // 4 for c in m.tool_calls) for m in messages)

    async def ask(self, messages: Sequence[Message], max_tokens: int) -> Reply:
        self.asked += 1
        return Reply(assistant(self.reply))

    def situation(self, messages: Sequence[Message]) -> Situation:
        history = History([m.as_dict() for m in messages])
        past = Past(self.archive, self.archive.enter(history))
        return Situation(history, past, self.config, self.limit, self.count, self.ask)

    def view(self, messages: Sequence[Message], **options: Any) -> View:
        return asyncio.run(Tope(**options).view(self.situation(messages)))


def texts(view: View) -> list[str]:
    return [message.text for message in view.messages]


def test_a_history_that_fits_is_shown_as_it_is() -> None:
    messages = work(3)
    view = Desk(8192).view(messages)
    assert list(view.messages) == messages
    assert not view.cut


def test_the_first_edit_stubs_results_and_the_view_fits_with_the_newest_exchange_whole() -> None:
    desk = Desk()
    messages = work(8)
    view = desk.view(messages)
    assert view.cut
    assert desk.count(view.messages) <= desk.limit
    assert sum(text.startswith(STUB_MARK) for text in texts(view)) >= 2
    assert view.messages[-1] == messages[-1]
    assert len(view.messages) == len(messages)


def test_asked_again_it_gives_the_same_view_and_in_between_edits_a_view_only_grows_at_its_end() -> None:
    desk = Desk()
    before = desk.view(work(8)).messages
    assert desk.view(work(8)).messages == before
    grown = desk.view([*work(8), reading("n", "new.txt"), result("n", "short")])
    assert not grown.cut
    assert grown.messages[: len(before)] == before


def test_many_rounds_are_archived_behind_a_continuation_that_stands_with_the_task() -> None:
    desk = Desk()
    messages = work(1)
    for rounds in range(2, 60):
        messages = work(rounds)
        view = desk.view(messages)
        assert desk.count(view.messages) <= desk.limit
    assert view.start > 2
    assert view.messages[0] == messages[0]
    assert view.messages[1].text.startswith(f"Read all files.\n\n{CARRIED}")
    assert "ESTABLISHED" in view.messages[1].text
    assert view.messages[2].role == "assistant"


def test_a_question_that_waits_and_a_late_rule_leave_the_view_word_for_word_only() -> None:
    desk = Desk()
    messages = [*work(1), said("user", "Which port does the proxy use?"), said("system", "Answer in French.")]
    for i in range(40):
        messages += [reading(f"q{i}", f"more_{i}.txt"), result(f"q{i}", f"more-{i:04d}\n{BIG}")]
        view = desk.view(messages)
    assert view.start > 6
    assert "Which port does the proxy use?" in view.messages[1].text
    assert "Answer in French." in view.messages[1].text


def test_a_chat_without_tools_falls_back_to_summarise_and_says_so_now_and_later() -> None:
    desk = Desk()
    desk.limit = 3_600  # a short reply: room for the summary request beside the turns
    messages = [said("user", "Let us talk.")]
    for i in range(9):
        messages += [said("assistant", f"answer {i}"), said("user", f"part {i}: {BIG}")]
    view = desk.view(messages)
    assert desk.asked == 1
    assert "summarise takes over" in view.reason
    assert "a summary" in "".join(texts(view))
    assert desk.count(view.messages) <= desk.limit
    assert "handed over to summarise earlier" in desk.view([*messages, said("user", "and now?")]).reason


def test_a_history_without_any_assistant_message_still_gets_a_view_that_fits() -> None:
    desk = Desk()
    view = desk.view([said("user", f"part {i}: {BIG}") for i in range(12)])
    assert desk.count(view.messages) <= desk.limit
    assert "summarise takes over" in view.reason


def test_a_hand_over_does_not_reach_another_conversation_with_the_same_first_message() -> None:
    desk = Desk()
    desk.view([said("user", "Read all files."), *(said("user", f"part {i}: {BIG}") for i in range(12))])
    other = [said("user", "Read all files."), *work(8)[2:]]
    assert "summarise" not in desk.view(other).reason


def test_a_huge_task_is_shown_as_an_excerpt_once_turns_leave_the_view() -> None:
    desk = Desk()
    messages = [said("user", "Do this. " + "detail " * 1_500), *work(30, text="short\n")[2:]]
    view = desk.view(messages)
    assert view.start > 0
    assert "of this message are in the archive" in view.messages[0].text
    assert desk.count(view.messages) <= desk.limit


def test_a_newest_message_that_cannot_fit_is_named() -> None:
    with pytest.raises((MessageTooLarge, WindowTooSmall)):
        Desk().view([*work(3), said("user", BIG * 20)])


def test_a_fork_before_the_edit_does_not_inherit_it_and_one_behind_it_does() -> None:
    desk = Desk()
    desk.view(work(8))
    forked = [*work(8)[:6], said("user", "Stop reading.")]
    assert not any(text.startswith(STUB_MARK) for text in texts(desk.view(forked)))
    behind = [*work(8)[:-2], reading("other", "other.txt"), result("other", "short")]
    assert any(text.startswith(STUB_MARK) for text in texts(desk.view(behind)))


def test_prices_reach_the_plan_that_is_remembered_and_printed() -> None:
    desk = Desk()
    desk.view(work(8), prices=lambda: Prices(reread_ms_a_token=1000.0))
    mark = desk.situation(work(8)).past.latest("tope")
    assert mark is not None
    first = edit_from_json(mark.body).plan.splitlines()[0]
    assert int(first.rsplit(": ", 1)[1].removesuffix(" ms").replace(",", "")) > 100_000


def test_an_edit_survives_json() -> None:
    desk = Desk()
    desk.view(work(40))
    mark = desk.situation(work(40)).past.latest("tope")
    assert mark is not None
    assert edit_from_json(mark.body).as_json() == mark.body


@settings(max_examples=60, deadline=None)
@given(histories())
def test_a_view_of_any_history_fits_or_says_what_is_too_large(messages: list[Message]) -> None:
    desk = Desk(window=256)
    try:
        view = desk.view(messages or [said("user", "hello")])
    except (MessageTooLarge, WindowTooSmall):
        return
    assert desk.count(view.messages) <= desk.limit


NOTED = "+ RULE: be careful\nstatus = 3"


def noted_view(desk: Desk, messages: Sequence[Message]) -> View:
    return asyncio.run(TopeNotes().view(desk.situation(messages)))


def test_tope_notes_has_the_notes_and_behind_them_the_continuation() -> None:
    desk = Desk(reply=NOTED)
    for rounds in range(2, 30):
        view = noted_view(desk, work(rounds))
        assert desk.count(view.messages) <= desk.limit
    pinned = view.messages[1].text
    assert "NOTES\n" in pinned
    assert pinned.index("NOTES\n") < pinned.index(CARRIED) < pinned.index("ESTABLISHED")
    assert desk.asked > 0


def test_the_continuation_of_tope_notes_stays_as_it_is_until_the_next_cut() -> None:
    desk = Desk(reply=NOTED)
    for rounds in range(2, 30):
        before = noted_view(desk, work(rounds))
    again = noted_view(desk, work(29))
    assert again.messages == before.messages
    grown = noted_view(desk, [*work(29), said("user", "go on")])
    assert not grown.cut
    assert grown.messages[1] == before.messages[1]


@settings(max_examples=40, deadline=None)
@given(histories())
def test_a_view_of_tope_notes_of_any_history_fits_or_says_what_is_too_large(messages: list[Message]) -> None:
    desk = Desk(window=256, reply="NONE")
    try:
        view = noted_view(desk, messages or [said("user", "hello")])
    except (MessageTooLarge, WindowTooSmall):
        return
    assert desk.count(view.messages) <= desk.limit


def test_both_are_known_by_name_with_a_plus_as_well() -> None:
    assert make("tope").name == "tope"
    assert make("tope+notes").name == "tope_notes"
