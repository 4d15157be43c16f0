"""tope+notes: NOTES as in_place takes them, and behind them 4tope's continuation of what left the view.

NOTES hold rules and values, which the graph cannot tell from narration; the continuation holds paths, identifiers, failures and
the files on disk, which nobody needs to write down. When notes are taken and where the window is cut is keeper.noting's; room
for the continuation is set aside from the limit beforehand. It is made once a cut and remembered, so it stays as it is.
"""

from dataclasses import replace

from keeper.errors import MessageTooLarge, WindowTooSmall
from keeper.excerpt import size
from keeper.graph import build
from keeper.message import Message
from keeper.notetaker import take_notes
from keeper.noting import advance, latest_cut, view_of
from keeper.strategies.base import Situation, View
from keeper.strategies.tope import CARRIED
from keeper.unfold import allowance, unfold
from keeper.window import Cut, leading_systems, task_index

MARK = "tope_notes"
SHARE = 0.08
"""Of the view's limit, set aside for the continuation; a sixteenth of the window in bytes comes to about that."""


class TopeNotes:
    """Where no room can be set aside (a large newest exchange), it is in_place and the reason says so."""

    name = "tope_notes"
    recalls = True

    async def view(self, situation: Situation) -> View:
        before = latest_cut(situation)
        try:
            cut = await advance(replace(situation, limit=int(situation.limit * (1 - SHARE))), take_notes)
        except (MessageTooLarge, WindowTooSmall):
            cut = await advance(situation, take_notes)
        view = view_of(situation, cut, before)
        if cut is None:
            return view
        shown = _with(view, situation, _continuation(situation, cut, view))
        if situation.count(shown.messages) > situation.limit:
            return replace(view, reason=f"{view.reason}; no room for a continuation")
        return shown


def _with(view: View, situation: Situation, continuation: str) -> View:
    """The continuation behind the NOTES, in the first user message of a cut view."""
    if not continuation:
        return view
    pinned = next(place for place, message in enumerate(view.messages) if message.role == "user")
    messages = list(view.messages)
    messages[pinned] = messages[pinned].adding(f"\n\n{CARRIED}{continuation}")
    return replace(view, messages=tuple(messages))


def _continuation(situation: Situation, cut: Cut, view: View) -> str:
    """The one remembered for this cut, or a new one; '' where the graph has none to give."""
    mark = situation.past.latest(MARK)
    if mark and mark.body["start"] == cut.start and mark.body["noted"] == cut.noted:
        return str(mark.body["text"])
    text = _unfolded(situation, cut, view)
    situation.past.put(MARK, max(1, cut.noted), {"start": cut.start, "noted": cut.noted, "text": text})
    return text


def _unfolded(situation: Situation, cut: Cut, view: View) -> str:
    history = situation.history
    task = task_index(history)
    beside = {*range(leading_systems(history)), *range(cut.start, len(history))} | ({task} if task is not None else set())
    room = min(situation.limit * SHARE, situation.limit - situation.count(view.messages))
    a_token = _bytes_a_token(situation, view.messages)
    return unfold(build(history), min(allowance(int(situation.limit * a_token)), int(room * a_token * 0.9)), in_view=beside).text


def _bytes_a_token(situation: Situation, messages: tuple[Message, ...]) -> float:
    return sum(size(message.text) for message in messages) / max(1, situation.count(messages))
