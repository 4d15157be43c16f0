"""rewrite: the keeper's earlier form. At each cut the model writes the whole NOTES block anew from the old one and the turns.

Kept to compare with. It writes every line at every cut, and a rewrite that stops mid-list loses lines, which a change applied by
the program cannot. What is guarded: a rule the model leaves out or rewords is put back as it was.
"""

from collections.abc import Sequence

from keeper.checks import Turns
from keeper.message import Message, user
from keeper.notes import Entry, Line, Notes, Opened, Rule, Set, apply, read
from keeper.notetaker import Taken
from keeper.noting import advance, latest_cut, view_of
from keeper.strategies.base import Situation, View

REQUEST = """\
NOTES REWRITE. Do not go on with the work. Write the whole NOTES block anew, from the old NOTES and the turns since, nothing else:
NOTES
RULES
- every standing rule or method, word for word
STATE
name = value by who
OPEN
- every question still to be answered"""


class Rewrite:
    """in_place with the whole block in each reply and no checks."""

    name = "rewrite"
    recalls = True

    async def view(self, situation: Situation) -> View:
        before = latest_cut(situation)
        return view_of(situation, await advance(situation, rewrite_notes), before)


async def rewrite_notes(situation: Situation, view: Sequence[Message], notes: Notes, turns: Turns, request: Message) -> Taken:
    """The block as the model wrote it, with the old rules put back. An empty reply leaves the old notes."""
    reply = await situation.ask((*view, user(REQUEST)), situation.config.notes_reply)
    situation.add("note_calls")
    lines = read(reply.message.text)
    return Taken(rewritten(notes, lines) if lines else notes, (reply.message.text,), (), ())


def rewritten(old: Notes, lines: Sequence[Line]) -> Notes:
    """The new block: the old rules first, then new ones that are no rewording of them; STATE and OPEN as they were written."""
    fresh = apply(Notes(), [line for line in lines if isinstance(line, Set | Rule | Opened)])
    rules = [rule for rule in fresh.rules if not any(_reworded(rule, known) for known in old.rules)]
    state = tuple(Entry(entry.name, entry.value, entry.who) for entry in fresh.state)
    return Notes((*old.rules, *rules), state, fresh.open)


def _reworded(rule: str, known: str) -> bool:
    """Whether most words of the one stand in the other."""
    one, other = set(rule.casefold().split()), set(known.casefold().split())
    return len(one & other) * 3 >= 2 * min(len(one), len(other))
