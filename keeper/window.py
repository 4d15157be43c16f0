"""Views: what of a history the model sees, stable part first. Pure functions; sizes come from the `count` they are given.

Before the first cut a view is the history as it is. After a cut at `start` it is

    system            the leading system messages, and later ones whose place has left the view, as one
    first user        the task, then NOTES, then which exchange that follows is in them already, then what is still open from
                      before `start`, word for word
    assistant         "Noted." where a user message comes next: many templates want turns to alternate
    history[start:]   as it is, with the rules repeated at the end of each message that asks

so system, tools and task are a prefix that no cut changes, NOTES changes from its first changed line on, and between cuts a
view only grows at its end. `noted` is the border up to which NOTES cover the history; `start` is where the exchange before it
begins, so that the agent still sees what it just did.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keeper.message import History, Message, assistant, system, user
from keeper.notes import Notes, from_json
from keeper.questions import questions

SYSTEM_ROLES = ("system", "developer")
ACKNOWLEDGED = "Noted."
ALREADY_NOTED = 'ALREADY IN THE NOTES: the exchange that begins "{}"'
LEFT_OUT = "\n[… {} characters of this message are in the archive; recall finds them …]\n"

NO_NOTES = Notes()

Count = Callable[[Sequence[Message]], int]


@dataclass(frozen=True, slots=True)
class Cut:
    """All that a cut view needs beside the history; what a notes mark holds. Indices are of the history.

    start    first message shown as it is        noted  first message that NOTES do not cover yet
    systems  texts of system messages whose place left the view
    waiting  (index, text) of questions from before `start` that were open at the cut; text is the whole message, or only its
             questions where whole messages would take too much
    task     how many characters of the first user message are shown (None: all)
    shown    how many STATE lines are shown (None: all)
    """

    notes: Notes = NO_NOTES
    start: int = 0
    noted: int = 0
    systems: tuple[str, ...] = ()
    waiting: tuple[tuple[int, str], ...] = ()
    task: int | None = None
    shown: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "notes": self.notes.as_json(),
            "start": self.start,
            "noted": self.noted,
            "systems": list(self.systems),
            "waiting": [list(pair) for pair in self.waiting],
            "task": self.task,
            "shown": self.shown,
        }


def cut_from_json(found: Mapping[str, Any]) -> Cut:
    """What as_json() gave."""
    waiting = tuple((int(index), str(text)) for index, text in found["waiting"])
    return Cut(
        from_json(found["notes"]), found["start"], found["noted"], tuple(found["systems"]), waiting, found["task"], found["shown"]
    )


def leading_systems(history: History) -> int:
    """How many messages at the beginning are system or developer messages."""
    count = 0
    while count < len(history) and history[count].role in SYSTEM_ROLES:
        count += 1
    return count


def task_index(history: History) -> int | None:
    """The first user message, where it is among the first messages; None otherwise."""
    near = range(min(len(history), leading_systems(history) + 4))
    return next((index for index in near if history[index].role == "user"), None)


def merged(messages: Sequence[Message], more: Sequence[str] = ()) -> tuple[Message, ...]:
    """Leading system messages (and `more` text) as one, because templates of this family refuse a second one."""
    if not messages and not more:
        return ()
    if len(messages) == 1 and not more:
        return tuple(messages)
    text = "\n\n".join(text for text in (*(message.text for message in messages), *more) if text.strip())
    return ((messages[0] if messages else system("")).with_text(text),)


def layout(history: History, end: int, cut: Cut | None) -> tuple[Message, ...]:
    """The view of history[:end]. With the same cut a longer `end` only adds messages at the end."""
    leading = leading_systems(history)
    if cut is None:
        return (*merged(history[: min(leading, end)]), *_body(history, leading, end, cut))
    rest = _body(history, cut.start, end, cut)
    bridge = (assistant(ACKNOWLEDGED),) if rest and rest[0].role == "user" else ()
    return (*merged(history[:leading], cut.systems), pinned(history, cut), *bridge, *rest)


def _body(history: History, start: int, end: int, cut: Cut | None) -> tuple[Message, ...]:
    reminder = cut.notes.reminder() if cut else ""
    return tuple(m.adding(f"\n\n{reminder}") if reminder and questions(m) else m for m in history[start:end])


def pinned(history: History, cut: Cut) -> Message:
    """The first user message of a cut view: the task, NOTES, and the questions that still wait."""
    index = task_index(history)
    task = history[index] if index is not None and index < cut.start else None
    blocks = [cut.notes.render(cut.shown)]
    if cut.start < cut.noted:
        blocks.append(ALREADY_NOTED.format(beginning(history[cut.start])))
    if cut.waiting:
        blocks += ["STILL OPEN, WORD FOR WORD", *(text for _, text in cut.waiting)]
    text = "\n\n".join(blocks)
    if task is None:
        return user(text)
    if cut.task is not None and cut.task < len(task.text):
        task = task.with_text(excerpt(task.text, cut.task))
    return task.adding(f"\n\n{text}") if task.text else task.adding(text)


def beginning(message: Message) -> str:
    """The first words of a message, by which a reader finds it: its text, else what it calls."""
    text = message.text or " ".join(f"{call.name} {call.arguments}" for call in message.tool_calls)
    return " ".join(text.split())[:60]


def excerpt(text: str, characters: int) -> str:
    """The beginning and end of a text, `characters` in all, with a line between that says how much is left out."""
    head = characters - characters // 4
    tail = characters - head
    left = len(text) - head - tail
    return text[:head] + LEFT_OUT.format(left) + (text[-tail:] if tail else "")


# --- borders ------------------------------------------------------------------------------------------------------------


def newest_exchange(history: History) -> int:
    """Where the newest exchange begins: with the last user message, or with the call whose results came last.

    What stands before it ends with a reply or a tool result, so that a notes request can follow it.
    """
    index = len(history) - 1
    while index > 0 and history[index].role == "tool":
        index -= 1
    return settled(history, index) if index >= 0 else 0


def settled(history: History, index: int) -> int:
    """The last border at or before `index` where notes can be asked for: after a reply without calls, or a call's results."""
    while index > 0 and not _settled_after(history[index - 1], history, index):
        index -= 1
    return index


def _settled_after(last: Message, history: History, index: int) -> bool:
    if index < len(history) and history[index].role == "tool":
        return False
    return last.role == "tool" or (last.role == "assistant" and not last.tool_calls)


def exchange_before(history: History, index: int) -> int:
    """Where the exchange that ends at `index` begins: its user message, or its call."""
    start = index - 1
    while start > 0 and history[start].role == "tool":
        start -= 1
    if start > 0 and history[start].role == "assistant" and history[start - 1].role == "user":
        start -= 1
    return max(start, 0)
