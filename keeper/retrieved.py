"""Stored sentences shown at a question: the best matches from the archive for each thing that a message asks.

What was retrieved for a message is remembered as a mark on it and shown from there at every later request, because a search made
again later could rank differently and the view would not be the same prefix any more.
"""

from keeper.message import Message
from keeper.past import Past
from keeper.questions import questions
from keeper.search import Hit
from keeper.strategies.base import Situation

MARK = "retrieved"
HEADING = "FROM THE ARCHIVE (best matches for these questions, oldest first)"
MOST_QUESTIONS = 40


def with_retrieved(situation: Situation, messages: tuple[Message, ...], start: int, kept: int) -> tuple[Message, ...]:
    """The view with the remembered matches at the end of each message from `start` on, and of the newest one, found now.

    At most `kept` tokens are added for one message; a view that would not fit with them gets none for its oldest questions.
    """
    texts = {mark.place - 1: str(mark.body) for mark in situation.past.marks(MARK, after=start)}
    newest = len(situation.history) - 1
    if newest not in texts and (found := questions(situation.history[newest])):
        matches = _retrieve(situation.past.upto(newest), found, situation.config.retrieved_a_question)
        texts[newest] = _fitted(situation, matches, kept)
        situation.past.put(MARK, newest + 1, texts[newest])
        situation.add("retrievals")
    places = sorted(index for index in texts if texts[index])
    while places and situation.count(view := _added(situation, messages, {i: texts[i] for i in places})) > situation.limit:
        places = places[1:]
    return view if places else messages


def _added(situation: Situation, messages: tuple[Message, ...], texts: dict[int, str]) -> tuple[Message, ...]:
    """Views end with the end of the history, so a message's place is counted from there."""
    behind = len(situation.history) - len(messages)
    return tuple(m.adding(f"\n\n{texts[i]}") if i in texts and i >= 0 else m for i, m in enumerate(messages, behind))


def _retrieve(past: Past, asked: tuple[str, ...], each: int) -> str:
    """The matches of every question, each sentence once, in the order of the history. Questions match best and tell nothing."""
    hits: dict[tuple[int, int], Hit] = {}
    for question in asked[-MOST_QUESTIONS:]:
        found = [hit for hit in past.search(question, limit=each * 3).hits if not hit.text.endswith("?")]
        hits.update({(hit.index, hit.number): hit for hit in found[-each:]})
    lines = [_line(hits[key]) for key in sorted(hits)]
    return "\n".join([HEADING, *lines]) if lines else ""


def _line(hit: Hit) -> str:
    where = f"[item {hit.item}] " if hit.item is not None else ""
    return f"- {where}{hit.text}" + (f" {hit.following}" if hit.following else "")


def _fitted(situation: Situation, text: str, kept: int) -> str:
    """Whole lines, the newest, within `kept` tokens."""
    lines = text.split("\n")
    while len(lines) > 1 and situation.count((Message("user").with_text("\n".join(lines)),)) > kept:
        lines = [lines[0], *lines[1 + max(1, len(lines) // 8) :]]
    return "\n".join(lines) if len(lines) > 1 else ""
