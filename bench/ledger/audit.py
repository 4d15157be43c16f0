"""The notes of a keeper against the true ledger, version by version."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.ledger.stream import Event
from keeper.notes import Entry, Notes


@dataclass(frozen=True)
class Version:
    """One saved version of the notes: lines whose value or person is not the true one, counters without a line, lines of counters
    that were never set, and rules that are not there."""

    lines: int
    wrong: tuple[str, ...]
    missing: tuple[str, ...]
    invented: tuple[str, ...]
    rules_lost: int

    @property
    def clean(self) -> bool:
        return not (self.wrong or self.missing or self.invented or self.rules_lost)


def truth(events: Sequence[Event]) -> Notes:
    """What the notes of a conversation with these events should hold."""
    state: dict[str, Entry] = {}
    rules: list[str] = []
    for event in events:
        rules += event.rules
        state.update({name: Entry(name, value, who) for name, value, who in event.changes})
    return Notes(tuple(rules), tuple(state.values()))


def audit(notes: Notes, events: Sequence[Event]) -> Version:
    """Compares notes with what they should hold after `events`."""
    true = truth(events)
    known = {entry.name: entry for entry in true.state}
    held = {entry.name: entry for entry in notes.state}
    wrong = tuple(name for name, entry in held.items() if name in known and known[name] != entry)
    missing = tuple(name for name in known if name not in held)
    invented = tuple(name for name in held if name not in known)
    lost = sum(rule not in notes.rules for rule in true.rules)
    return Version(len(notes.state), wrong, missing, invented, lost)
