"""The archive: word for word, once each, forks and prefixes, searchable along one path, and never losing what it acknowledged."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keeper.archive import Archive
from keeper.errors import ArchiveFailed, BadHistory, UnknownConversation
from keeper.library import conversation, conversations, sizes, verify
from keeper.message import History, assistant, read
from keeper.past import Past
from keeper.search import Limits, terms
from tests.keeper.helpers import a, called, past_of, s, t, u


def enter(archive: Archive, messages: list[dict[str, Any]], session: str | None = None) -> Past:
    return Past(archive, archive.enter(History(messages), session))


def stored(past: Past) -> list[dict[str, Any]]:
    return [message.as_dict() for message in past.messages()]


def nodes(archive: Archive) -> int:
    return int(archive.rows("SELECT count(*) FROM node")[0][0])


HISTORY = [s(), u("Item 1: doma86 = 342 by Ada."), a("Noted."), u("Item 2: Bo added 5 to doma86."), called("1"), t("1", "42")]


@pytest.mark.parametrize("bad", [u("a\ud800b"), {**u("x"), "name": "\udfff"}])
def test_a_lone_surrogate_is_refused_by_the_message_that_holds_it_and_nothing_is_archived(bad: dict[str, Any]) -> None:
    archive = Archive()
    with pytest.raises(BadHistory, match=r"messages\[1\]"):
        archive.enter(History([s(), bad]))
    assert nodes(archive) == 0


def test_a_history_is_kept_word_for_word() -> None:
    past = enter(Archive(), HISTORY)
    assert stored(past) == HISTORY


def test_a_client_that_resends_its_history_adds_only_what_is_new() -> None:
    archive = Archive()
    for end in range(1, len(HISTORY) + 1):
        enter(archive, HISTORY[:end])
        assert nodes(archive) == end
    enter(archive, HISTORY)
    assert nodes(archive) == len(HISTORY)


def test_an_edited_history_forks_and_shares_its_prefix() -> None:
    archive = Archive()
    enter(archive, HISTORY)
    edited = [*HISTORY[:3], u("Item 2: something else."), a("Noted.")]
    past = enter(archive, edited)
    assert stored(past) == edited
    assert nodes(archive) == len(HISTORY) + 2
    assert stored(enter(archive, HISTORY)) == HISTORY, "the old branch is still whole"
    forked = [one for one in conversations(archive) if one.forked_from]
    assert [(one.fork, one.messages) for one in forked] == [(3, 5)]


def test_the_same_message_twice_is_stored_once_and_placed_twice() -> None:
    archive = Archive()
    past = enter(archive, [u("again"), a("yes"), u("again"), a("yes")])
    assert stored(past) == [u("again"), a("yes"), u("again"), a("yes")]
    assert sizes(archive).messages == 2 and nodes(archive) == 4


def test_reasoning_is_not_kept_and_does_not_fork() -> None:
    archive = Archive()
    enter(archive, [u("q"), {**a("x"), "reasoning_content": "because"}])
    past = enter(archive, [u("q"), a("x"), u("more")])
    assert nodes(archive) == 3 and stored(past)[1] == a("x")


def test_a_bad_message_archives_nothing_of_its_request() -> None:
    archive = Archive()
    with pytest.raises(BadHistory):
        enter(archive, [u("a"), a("b"), {"content": "no role"}])
    assert nodes(archive) == 0


def test_known_messages_are_not_read_again() -> None:
    archive = Archive()
    enter(archive, HISTORY)
    history = History([*HISTORY, u("new")])
    archive.enter(history)
    assert set(history._read) == {len(HISTORY)}, "only the new message was looked at"


def test_after_a_restart_the_path_is_found_by_its_messages(tmp_path: Path) -> None:
    first = Archive(tmp_path)
    enter(first, HISTORY).put("notes", 2, {"x": 1})
    first.close()
    again = Archive(tmp_path)
    past = enter(again, [*HISTORY, u("new")])
    assert nodes(again) == len(HISTORY) + 1
    mark = past.latest("notes")
    assert mark is not None and (mark.place, mark.body) == (2, {"x": 1})


def test_marks_are_found_by_whoever_stands_deeper_on_the_same_path() -> None:
    archive = Archive()
    long = enter(archive, HISTORY)
    long.put("notes", 2, "early")
    long.put("notes", 5, "late")
    fork = enter(archive, [*HISTORY[:3], u("another way")])
    assert [m.body for m in long.marks("notes")] == ["early", "late"]
    assert [m.body for m in fork.marks("notes")] == ["early"], "a fork inherits what its shared prefix had, and no more"
    fork.put("notes", 4, "mine")
    assert [m.body for m in long.marks("notes")] == ["early", "late"]
    assert [m.body for m in archive.each_mark(fork.track, "notes")] == ["early", "mine"]
    assert fork.latest("cuts") is None and long.marks("notes", after=3)[0].body == "late"
    assert enter(archive, HISTORY[:1]).latest("notes") is None


def test_a_reply_is_recorded_as_the_next_message() -> None:
    archive = Archive()
    past = enter(archive, HISTORY[:2])
    archive.append(past.track, [assistant("Noted.")])
    assert nodes(archive) == 3
    enter(archive, HISTORY[:3])
    assert nodes(archive) == 3, "the client's echo is the same message"


def test_two_clients_with_one_history_fork_where_they_differ_and_lose_nothing() -> None:
    archive = Archive()
    errors: list[Exception] = []

    def client(name: str) -> None:
        try:
            for turn in range(20):
                enter(archive, [*HISTORY, *(u(f"{name} {i}") for i in range(turn))])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=client, args=(f"client{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for n in range(4):
        assert stored(enter(archive, [*HISTORY, *(u(f"client{n} {i}") for i in range(19))]))[-1] == u(f"client{n} 18")
    assert nodes(archive) == len(HISTORY) + 4 * 19
    assert verify(archive).problems == ()


def test_two_processes_may_use_one_archive(tmp_path: Path) -> None:
    one, other = Archive(tmp_path), Archive(tmp_path)
    enter(one, HISTORY[:3])
    enter(other, HISTORY)
    past = enter(one, [*HISTORY, u("new")])
    assert stored(past) == [*HISTORY, u("new")] and nodes(other) == len(HISTORY) + 1


WRITER = """
import sys, json
from pathlib import Path
from keeper.archive import Archive
from keeper.message import History
archive, history = Archive(Path(sys.argv[1])), []
while True:
    history.append({"role": "user", "content": f"message {len(history)}"})
    track = archive.enter(History(history))
    archive.put(track, "notes", len(history), {"upto": len(history)})
    print(len(history), flush=True)
"""


@pytest.mark.e2e
def test_nothing_acknowledged_is_lost_at_kill_9(tmp_path: Path) -> None:
    for attempt in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / str(attempt))], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        acknowledged = 0
        for line in process.stdout:
            acknowledged = int(line)
            if acknowledged >= 20 + attempt * 7:
                os.kill(process.pid, signal.SIGKILL)
                break
        acknowledged = max([acknowledged, *(int(line) for line in process.stdout.read().split())])
        process.wait()
        archive = Archive(tmp_path / str(attempt))
        history = [{"role": "user", "content": f"message {i}"} for i in range(acknowledged)]
        before = nodes(archive)
        past = enter(archive, history)
        assert nodes(archive) == before >= acknowledged
        mark = past.latest("notes")
        assert mark is not None and mark.body == {"upto": acknowledged}
        assert verify(archive).problems == ()


def test_verify_finds_a_changed_word_a_broken_chain_and_a_lost_index_row(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    enter(archive, HISTORY)
    assert verify(archive).problems == ()
    with sqlite3.connect(tmp_path / "keeper.db") as db:
        db.execute("UPDATE message SET body = ? WHERE id = 2", (json.dumps(u("Item 1: doma86 = 999 by Ada.")),))
        db.execute("UPDATE node SET chain = x'00' WHERE id = 4")
    db.close()
    problems = verify(archive).problems
    assert any("message 2" in problem for problem in problems)
    assert any("node 4" in problem for problem in problems)


def test_what_is_no_archive_is_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "keeper.db").write_bytes(b"this is no database, it is a text that is long enough" * 20)
    with pytest.raises(ArchiveFailed, match="not a database"):
        Archive(tmp_path)
    newer = tmp_path / "newer"
    Archive(newer).close()
    with sqlite3.connect(newer / "keeper.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(ArchiveFailed, match="format 99"):
        Archive(newer)


def test_conversations_are_listed_and_found_by_id_and_session() -> None:
    archive = Archive()
    enter(archive, HISTORY, "ticket-7")
    enter(archive, [s(), u("Something   else\nentirely")])
    listed = conversations(archive)
    assert [one.title for one in listed] == ["Something else entirely", "Item 1: doma86 = 342 by Ada."]
    found, track = conversation(archive, listed[1].id[:6])
    assert found.messages == len(HISTORY) == track.length and found.session == "ticket-7"
    assert conversation(archive, "ticket-7")[0] == found
    for wanted in ("", "ffff", "nothing"):
        with pytest.raises(UnknownConversation):
            conversation(archive, wanted)


# --- search -------------------------------------------------------------------------------------------------------------


def test_search_covers_one_path_alone() -> None:
    archive = Archive()
    one = enter(archive, [u("Item 1: doma86 = 342."), a("Noted.")])
    other = enter(archive, [u("Item 1: doma86 = 7."), a("Noted.")])
    assert [hit.text for hit in one.search("doma86").hits] == ["Item 1: doma86 = 342."]
    assert [hit.text for hit in other.search("doma86").hits] == ["Item 1: doma86 = 7."]
    fork = enter(archive, [u("Item 1: doma86 = 342."), a("Other."), u("Item 2: doma86 = 8.")])
    assert [hit.item for hit in fork.search("doma86").hits] == [1, 2]
    assert [hit.item for hit in one.search("doma86").hits] == [1], "what the fork added is not on this path"


def test_search_prefers_sentences_with_every_word_and_falls_back_to_any() -> None:
    past = past_of([u("The clerk wrote doma86. The clerk slept. doma86 was green."), a("Noted.")])
    assert [hit.text for hit in past.search("clerk doma86").hits] == ["The clerk wrote doma86."]
    assert past.search("clerk elephant").total == 2
    assert past.search("elephant").total == 0 and past.search("!?").total == 0


def test_limits_count_in_the_contents_numbers_and_replies_belong_to_their_item() -> None:
    past = past_of([m for i in range(1, 9) for m in (u(f"Item {i}: doma86 = {i}."), a(f"doma86 is {i} now."))])
    assert [hit.item for hit in past.search("doma86", Limits(before=3)).hits] == [1, 1, 2, 2]
    assert [hit.item for hit in past.search("doma86", Limits(after=7)).hits] == [8, 8]
    assert [hit.role for hit in past.search("doma86", Limits(item=4)).hits] == ["user", "assistant"]
    assert past.numbered() and not past_of([u("What was it at item 12?")]).numbered()


def test_hits_come_in_the_order_of_the_path_and_say_how_many_there_were() -> None:
    past = past_of([m for i in range(1, 31) for m in (u(f"Day {i}: doma86 rose."), a("Noted."))])
    found = past.search("doma86", limit=7)
    assert found.total == 30 and len(found.hits) == 7
    assert [hit.index for hit in found.hits] == sorted(hit.index for hit in found.hits)


def test_upto_leaves_out_what_came_later() -> None:
    past = past_of([u("doma86 one"), a("doma86 two"), u("doma86 three")])
    assert past.upto(2).search("doma86").total == 2 and past.upto(0).search("doma86").total == 0


def test_queries_with_anything_in_them_are_words_to_search_and_never_syntax() -> None:
    past = past_of([u('He said "NEAR(a, b)" AND* OR -x ^y {z} src/main.py:12'), a("Noted.")])
    for query in ('"', "NEAR(", "a AND", "*", "-x", "src/main.py", "col:on", "^", "(((", "\x00"):
        past.search(query)
    assert past.search("src/main.py").total == 1
    assert terms("What is the value of doma86 now?") == ("value", "doma86")
    assert terms("what is it") == ("what", "is", "it"), "common words alone are searched as they are"


def test_tool_calls_and_huge_messages_are_searchable() -> None:
    past = past_of([u("go"), called("1", "read", '{"path": "lib/recipes.py"}'), t("1", "x" * 5000 + " needle " + "y" * 5000)])
    assert past.search("recipes.py").total == 1
    assert past.search("needle").total == 1


SMALL = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.sampled_from(["a", "b", "c"])), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(SMALL, min_size=1, max_size=8))
def test_any_histories_in_any_order_come_back_whole(histories: list[list[tuple[str, str]]]) -> None:
    archive = Archive()
    made = [[{"role": role, "content": text} for role, text in one] for one in histories]
    for one in made:
        assert stored(enter(archive, one)) == one
    prefixes = {tuple(map(str, one[:end])) for one in made for end in range(1, len(one) + 1)}
    assert nodes(archive) == len(prefixes), "one node for each distinct prefix"
    for one in made:
        assert stored(enter(archive, one)) == one
    assert nodes(archive) == len(prefixes) and verify(archive).problems == ()
    assert {read(m).hash() for one in made for m in one} == {bytes(h) for (h,) in archive.rows("SELECT hash FROM message")}
