"""Choosing a cut: what stands beside the newest turns, and what is given up first where not all of it fits. Pure.

Nothing here is ever lost: what is given up leaves the view, and stays in the notes or in the archive.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from keeper.message import History, user
from keeper.notes import Notes
from keeper.questions import questions, still_open
from keeper.window import SYSTEM_ROLES, Count, Cut, excerpt, exchange_before, layout, leading_systems, task_index

ORDER_SHOWN = 400  # characters of an instruction that waits and asks nothing, where whole messages take too much


@dataclass(frozen=True, slots=True)
class Room:
    """What a cut may take: `limit` tokens of the whole view; `kept` each for the exchange before the border, for what waits, and
    for system messages from the middle; `task` for the first user message."""

    limit: int
    kept: int
    task: int
    count: Count = field(compare=False)


def plan_cut(history: History, end: int, cut: Cut, noted: int, notes: Notes, room: Room) -> Cut | None:
    """The next cut after `cut`, with NOTES that cover history[:noted], so that the view of history[:end] fits `room.limit`.

    Tries, until one fits: all that may stay; without the exchange before the border; what waits as question sentences alone; the
    newest STATE lines alone; most of a long task left out; nothing that waits; no system message from the middle.
    None where even that does not fit.
    """
    for planned in _candidates(history, end, cut, noted, notes, room):
        if _fits(history, end, planned, room):
            return planned
    return None


def least(history: History, cut: Cut, border: int) -> Cut:
    """The cut that keeps least: the leading system messages, rules, open questions of the notes, nothing else before `border`."""
    return replace(cut, start=border, noted=border, systems=(), waiting=(), task=0, shown=0)


def _candidates(history: History, end: int, cut: Cut, noted: int, notes: Notes, room: Room) -> Iterator[Cut]:
    planned = _from(history, end, cut, max(exchange_before(history, noted), cut.start), noted, notes, room)
    kept = room.count(layout(history, noted, planned)) - room.count(layout(history, planned.start, planned))
    if kept <= room.kept:
        yield planned
    planned = _from(history, end, cut, noted, noted, notes, room)
    yield planned
    planned = _only_questions(planned)
    yield planned
    planned = _fewer_lines(history, end, planned, room)
    yield planned
    planned = _less_task(history, end, planned, room)
    yield planned
    planned = replace(planned, waiting=())
    yield planned
    yield replace(planned, systems=())


def _fits(history: History, end: int, cut: Cut, room: Room) -> bool:
    return room.count(layout(history, end, cut)) <= room.limit


def _from(history: History, end: int, cut: Cut, start: int, noted: int, notes: Notes, room: Room) -> Cut:
    """A cut at `start` with its pinned parts: system messages and what waits from before it."""
    task, leading = task_index(history), leading_systems(history)
    task = task if task is not None and task < noted else None  # in the newest exchange it stands as it is
    start = max(start, leading, 0 if task is None else task + 1)
    passed = range(max(cut.start, leading), start)
    told = dict.fromkeys((*cut.systems, *(history[i].text for i in passed if history[i].role in SYSTEM_ROLES)))
    systems = _newest(tuple(told), room)
    older = [index for index, _ in cut.waiting]
    open_now = still_open(history, [i for i in [*older, *passed] if i != task], end)
    waiting = tuple((i, history[i].text) for i in open_now if i < start and history[i].text.strip())
    shown = cut.task if cut.task is not None else _task_shown(history, task, room)
    planned = Cut(notes, start, noted, systems, waiting, shown)
    if _size(tuple(text for _, text in waiting), room) <= room.kept:
        return planned
    planned = _only_questions(planned)
    texts = _newest(tuple(text for _, text in planned.waiting), room)
    return replace(planned, waiting=planned.waiting[len(planned.waiting) - len(texts) :])


def _newest(texts: tuple[str, ...], room: Room) -> tuple[str, ...]:
    """The last of them that fit their share; the older ones are in the archive."""
    while texts and _size(texts, room) > room.kept:
        texts = texts[1:]
    return texts


def _size(texts: tuple[str, ...], room: Room) -> int:
    return room.count((user("\n\n".join(texts)),)) if texts else 0


def _task_shown(history: History, task: int | None, room: Room) -> int | None:
    """How many characters of the task are shown: all (None) where it takes no more than its share."""
    if task is None or room.count((history[task],)) <= room.task:
        return None
    text = history[task].text
    return _most(len(text), lambda n: room.count((history[task].with_text(excerpt(text, n)),)) <= room.task)


def _only_questions(cut: Cut) -> Cut:
    """Of the messages that wait, the sentences that ask; of an instruction that asks nothing, its beginning."""
    return replace(cut, waiting=tuple((i, "\n".join(questions(user(text))) or text[:ORDER_SHOWN]) for i, text in cut.waiting))


def _fewer_lines(history: History, end: int, cut: Cut, room: Room) -> Cut:
    return replace(cut, shown=_most(len(cut.notes.state), lambda n: _fits(history, end, replace(cut, shown=n), room)))


def _less_task(history: History, end: int, cut: Cut, room: Room) -> Cut:
    index = task_index(history)
    if index is None:
        return cut
    return replace(cut, task=_most(len(history[index].text), lambda n: _fits(history, end, replace(cut, task=n), room)))


def _most(most: int, works: Callable[[int], bool]) -> int:
    """The greatest number in 0..most that works, found by halving; 0 where none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if works(middle) else (low, middle - 1)
    return low
