"""When notes are taken and where the window is cut: what the strategies with NOTES share.

Notes are due when enough is not noted yet, or when the next request would not fit. The view of everything before the newest
exchange then gets one more message, the notes request; the server has read all but that message already. After it the view starts
again from the stable part, the new NOTES and the last exchange. What left the view is in the archive, where it was all along.

A history that comes in at once and is longer than the window is noted piece by piece, each as large as fits. A piece that cannot
be noted (one message that leaves no room for the request) goes to the archive alone and counts as `unnoted`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from keeper.checks import Turns
from keeper.cutting import Room, least, plan_cut
from keeper.errors import MessageTooLarge, UpstreamFailed, WindowTooSmall
from keeper.message import History, Message
from keeper.notes import Notes
from keeper.notetaker import Taken, request_message
from keeper.strategies.base import Situation, View
from keeper.window import (
    NO_NOTES,
    Cut,
    beginning,
    cut_from_json,
    layout,
    leading_systems,
    newest_exchange,
    settled,
    task_index,
)

MARK = "notes"

# situation, view that ends with the turns to be noted, notes so far, those turns, the request -> the next notes
TakeNotes = Callable[[Situation, Sequence[Message], Notes, Turns, Message], Awaitable[Taken]]


def latest_cut(situation: Situation) -> Cut | None:
    """The cut that this history stands behind, by its deepest notes mark that leaves its newest message in view (a client may
    send fewer messages than before)."""
    mark = situation.past.upto(len(situation.history) - 1).latest(MARK)
    return cut_from_json(mark.body) if mark else None


async def advance(situation: Situation, take: TakeNotes) -> Cut | None:
    """Takes notes and cuts until the view fits and nothing is due; the cut in force then (None: everything still stands).

    A notes call that fails is let pass where the request fits without it: the next request asks again.
    """
    cut, border = latest_cut(situation), newest_exchange(situation.history)
    _check_possible(situation, cut or Cut())
    while True:
        tokens = size(situation, len(situation.history), cut)
        if (cut.noted if cut else 0) >= border:
            if tokens <= comfortable(situation):
                return cut
            tightened = _tightened(situation, cut, tokens)
            if tightened is not None or tokens <= situation.limit:
                return tightened or cut
            border = _later_border(situation, cut or Cut(), border)
        elif tokens <= comfortable(situation) and not due(situation, cut, border, tokens):
            return cut
        try:
            cut = await _next_cut(situation, cut, border, take)
        except UpstreamFailed:
            if tokens > situation.limit:
                raise
            return cut


def comfortable(situation: Situation) -> int:
    """Tokens of a view beside which searches still have room; only the newest exchange may take that room as well."""
    return situation.limit - (situation.config.room_for_searches if situation.recall else 0)


def view_of(situation: Situation, cut: Cut | None, before: Cut | None) -> View:
    """The view behind `cut`; `before` is the cut that stood when the request came."""
    messages = layout(situation.history, len(situation.history), cut)
    if cut is None:
        return View(messages, reason="everything fits")
    state = f"{len(cut.notes.rules)} rules, {len(cut.notes.state)} STATE lines, {len(cut.notes.open)} open"
    return View(messages, cut.start, cut != before, f"from message {cut.start}: {state}")


def size(situation: Situation, end: int, cut: Cut | None) -> int:
    """Tokens of the view of history[:end]."""
    return situation.count(layout(situation.history, end, cut))


def due(situation: Situation, cut: Cut | None, border: int, tokens: int) -> bool:
    """Whether enough before the newest exchange is not noted yet, in tokens or in batches (user and tool messages).

    `tokens`: of the whole view; below the mark nothing needs to be counted.
    """
    config, history, noted = situation.config, situation.history, cut.noted if cut else 0
    if config.notes_every_batches:
        batches = sum(history[i].role in ("user", "tool") for i in range(noted, border))
        if batches >= config.notes_every_batches:
            return True
    if tokens < config.notes_due_at:
        return False
    base = max(noted, leading_systems(history) + 1)
    return size(situation, border, cut) - size(situation, base, cut) >= config.notes_due_at


async def _next_cut(situation: Situation, cut: Cut | None, border: int, take: TakeNotes) -> Cut:
    """Notes the next piece and cuts behind it."""
    history, noted, notes = situation.history, cut.noted if cut else 0, cut.notes if cut else NO_NOTES
    request = _request(history, cut)
    end = _piece(situation, cut, noted, border, request)
    taken: Taken | None = None
    if end is None:
        end = _next_place(history, noted, border)
        situation.add("unnoted", end - noted)
    else:
        view = layout(history, end, cut)
        taken = await take(situation, view, notes, turns(history, noted, end), request)
        notes = taken.notes
    return _put(situation, cut or Cut(), len(history) if end == border else end, end, notes, taken)


def _put(situation: Situation, cut: Cut, upto: int, noted: int, notes: Notes, taken: Taken | None) -> Cut:
    """The cut behind `noted`, with room for searches where that can be had."""
    for limit in (comfortable(situation), situation.limit):
        planned = plan_cut(situation.history, upto, cut, noted, notes, room(situation, limit))
        if planned is not None:
            return _saved(situation, planned, taken)
    if upto < len(situation.history) or noted < len(situation.history) - 1:
        # not there yet: advance() goes on from here
        return _saved(situation, replace(least(situation.history, cut, noted), notes=notes), taken)
    raise too_large(situation, replace(cut, notes=notes))


def _saved(situation: Situation, planned: Cut, taken: Taken | None) -> Cut:
    situation.add("cuts")
    situation.past.put(MARK, planned.noted, {**planned.as_json(), "taken": taken.as_json() if taken else None})
    return planned


def _tightened(situation: Situation, cut: Cut | None, tokens: int) -> Cut | None:
    """All is noted and still the view is too large, by the newest exchange or a client that wants a longer reply now: less is
    kept beside the notes. None where that does not help."""
    if cut is None:
        return None
    limits = (comfortable(situation), *((situation.limit,) if tokens > situation.limit else ()))
    for limit in limits:
        planned = plan_cut(situation.history, len(situation.history), cut, cut.noted, cut.notes, room(situation, limit))
        if planned is not None:
            return _saved(situation, planned, None)
    return None


def _later_border(situation: Situation, cut: Cut, border: int) -> int:
    """A border inside a newest exchange that does not fit as a whole (many messages that nobody answered): the first from which
    it fits. Raises MessageTooLarge or WindowTooSmall where there is none."""
    history = situation.history
    for place in range(border + 1, len(history)):
        if history[place].role != "tool" and size(situation, len(history), least(history, cut, place)) <= situation.limit:
            return place
    raise too_large(situation, cut)


def room(situation: Situation, limit: int) -> Room:
    """What a cut may take under `limit` tokens."""
    config = situation.config
    return Room(limit, int(limit * config.kept_share), int(limit * config.task_share), situation.count)


def turns(history: History, noted: int, end: int) -> Turns:
    """The turns history[noted:end] as the checks want them.

    An assistant message that comes first remarks on what is noted already, so it is no evidence (lesson 11).
    """
    span = [history[i] for i in range(noted, end)]
    heard = tuple(m.text for m in span if m.role in ("user", "tool"))
    remark = 1 if noted and span and span[0].role == "assistant" else 0
    said = tuple(m.text for m in span[remark:] if m.role == "assistant")
    task = task_index(history)
    head = [m.text for m in history[: leading_systems(history)]]
    return Turns(heard, said, "\n".join(head if task is None else [*head, history[task].text]))


def too_large(situation: Situation, cut: Cut) -> MessageTooLarge | WindowTooSmall:
    """Why no view can be made behind `cut`: what must stay is too much, or the newest call or message beside it (its largest is
    named)."""
    history, last = situation.history, _last_beginning(situation.history)
    stays = least(history, cut, last)
    if (tokens := size(situation, last, stays)) >= situation.limit:
        return WindowTooSmall(tokens, situation.limit)
    worst = max(range(last, len(history)), key=lambda index: situation.count((history[index],)))
    return MessageTooLarge(worst, size(situation, len(history), stays), situation.limit)


def _check_possible(situation: Situation, cut: Cut) -> None:
    """Before any call is made: whether the newest message can be shown at all."""
    history = situation.history
    if size(situation, len(history), least(history, cut, _last_beginning(history))) > situation.limit:
        raise too_large(situation, cut)


def _last_beginning(history: History) -> int:
    """The last place where a view can begin: the newest message, or the call whose results came last."""
    last = len(history) - 1
    while last > 0 and history[last].role == "tool":
        last -= 1
    return last


def _request(history: History, cut: Cut | None) -> Message:
    already = beginning(history[cut.start]) if cut and cut.start < cut.noted else ""
    return request_message(cut.notes if cut else None, already)


def _piece(situation: Situation, cut: Cut | None, noted: int, border: int, request: Message) -> int | None:
    """The last settled place up to which a notes call fits the window, with room to be asked again where that can be had.

    None where not even the first place does.
    """
    tokens = situation.config.notes_reply
    for replies in (2, 1):
        end = _last_settled(situation, cut, noted, border, request, situation.config.window - replies * tokens)
        if end is not None:
            return end
    return None


def _last_settled(situation: Situation, cut: Cut | None, noted: int, border: int, request: Message, limit: int) -> int | None:
    def fits(end: int) -> bool:
        view = layout(situation.history, end, cut)
        return situation.count((*view, request)) <= limit

    if fits(border):
        return border
    low, step = noted, 1
    while low + step < border and fits(low + step):
        low, step = low + step, step * 2
    high = min(low + step, border)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    end = settled(situation.history, low)
    return end if end > noted else None


def _next_place(history: History, noted: int, border: int) -> int:
    """The next place after `noted` where a view can begin; settled where there is such a place."""
    places = [i for i in range(noted + 1, border + 1) if i == border or history[i].role != "tool"]
    return next((i for i in places if settled(history, i) == i), places[0])
