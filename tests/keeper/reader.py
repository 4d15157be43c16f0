"""A careful reader in place of a model: it answers from what it can see, takes notes as asked, searches for what it cannot see.

It reads the generator's sentences with patterns of its own (not the keeper's), so that a fault of the keeper's reading shows.
`slips` makes it go wrong in one of the ways that runs went wrong; each says on which notes calls.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.keeper.stories import words

NUMBER = {words(n): n for n in range(1000)}
AMOUNT = r"(?P<amount>\d+|[a-z][a-z-]*(?: [a-z][a-z-]*)*)"
NAME, WHO = r"(?P<name>[a-z]{4}\d\d)", r"(?P<who>[A-Z][a-z]+)"
SENTENCES = [
    ("set", rf"{WHO} recorded {NAME} at {AMOUNT}\."),
    ("set", rf"In the ledger {NAME} = {AMOUNT} by {WHO}\."),
    ("set", rf"{WHO} came to [a-z ]+ and set {NAME} to {AMOUNT}\."),
    ("set", rf"After the rain {WHO} wrote that {NAME} stands at {AMOUNT}\."),
    ("up", rf"{WHO} added {AMOUNT} to {NAME}\."),
    ("up", rf"Thanks to {WHO}, {NAME} rose by {AMOUNT}\."),
    ("up", rf"Next on the list was {NAME}\. \|? ?{WHO} raised it by {AMOUNT}\."),
    ("down", rf"{WHO} took {AMOUNT} from {NAME}\."),
    ("down", rf"Because of {WHO}, {NAME} fell by {AMOUNT}\."),
    ("down", rf"Next on the list was {NAME}\. \|? ?{WHO} lowered it by {AMOUNT}\."),
]
PATTERNS = [(kind, re.compile(pattern)) for kind, pattern in SENTENCES]
QUESTION = re.compile(
    r"What value does (?P<now>\S+) hold now\?"
    r"|What value did (?P<old>\S+) hold after item (?P<at>\d+)\?"
    r"|Who changed (?P<who>\S+) in item (?P<in>\d+)\?"
)


@dataclass(frozen=True)
class Event:
    """A change the reader has read; `item` is None where it does not know."""

    item: int | None
    place: int
    name: str
    kind: str
    amount: int
    who: str


@dataclass
class Seen:
    """All that the reader got out of the messages it was sent."""

    notes: dict[str, tuple[int, str]] = field(default_factory=dict)
    has_notes: bool = False
    events: list[Event] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    found: list[Event] = field(default_factory=list)  # by searches of its own
    searched: list[str] = field(default_factory=list)


def events(text: str, item: int | None) -> list[Event]:
    """The changes that a text tells, in order."""
    found = [
        (m.start(), kind, m) for kind, pattern in PATTERNS for m in pattern.finditer(text) if _amount(m["amount"]) is not None
    ]
    return [
        Event(item, at, m["name"], kind, _amount(m["amount"]) or 0, m["who"]) for at, kind, m in sorted(found, key=lambda f: f[0])
    ]


def _amount(text: str) -> int | None:
    return int(text) if text.isdigit() else NUMBER.get(text)


def text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content or ""


def look(messages: Sequence[Mapping[str, Any]]) -> Seen:
    """Reads the messages."""
    seen = Seen()
    noted = ""
    for message in messages:
        text = text_of(message)
        if message["role"] == "user" and "NOTES\nRULES\n" in text:
            seen.has_notes = True
            _read_notes(text[text.index("NOTES\nRULES\n") :], seen)
            noted = (re.findall(r'^ALREADY IN THE NOTES: the exchange that begins "(.*)"$', text, re.MULTILINE) or [""])[0]
            continue
        if noted and message["role"] == "user" and " ".join(text.split()).startswith(noted):
            seen.found += events(text, _item_of(text))  # it can be quoted, and its changes are in the values already
            continue
        if message["role"] in ("user", "system") and "SUMMARY" not in text[:10]:
            seen.rules += [rule for rule in re.findall(r"Rule: [^.]*\.(?: Asked[^.]*\.)?", text) if rule not in seen.rules]
        if message["role"] == "user":
            _read_user(text, seen)
        if message["role"] == "tool" or "YOUR EARLIER SEARCHES" in text or "FROM THE ARCHIVE" in text:
            _read_results(text, seen)
        seen.searched += [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return seen


def _read_user(text: str, seen: Seen) -> None:
    if (item := _item_of(text)) is not None:
        seen.events += events(text, item)
    for name, value, who in re.findall(r"^SUM (\S+) = (-?\d+) by (\S+)$", text, re.MULTILINE):
        seen.notes[name] = (int(value), who)


def _item_of(text: str) -> int | None:
    found = re.match(r"Item (\d+):", text)
    return int(found.group(1)) if found else None


def _read_notes(block: str, seen: Seen) -> None:
    rules, _, rest = block.partition("\nSTATE\n")
    seen.rules += [line[2:] for line in rules.splitlines() if line.startswith("- ") and line[2:] not in seen.rules]
    for name, value, who in re.findall(r"^(\S+) = (-?\d+)(?: by (\S+))?$", rest.split("\nOPEN")[0], re.MULTILINE):
        seen.notes[name] = (int(value), who)


def _read_results(text: str, seen: Seen) -> None:
    for line in text.splitlines():
        item = re.match(r"(?:- )?\[item (\d+)(?:, \w+)?\] ", line)
        if item:
            seen.found += events(line, int(item.group(1)))


def replay(found: Sequence[Event], start: int | None = None) -> int | None:
    """The value after the changes; None where they start from what is not known."""
    value = start
    for event in found:
        if event.kind == "set":
            value = event.amount
        elif value is not None:
            value += event.amount if event.kind == "up" else -event.amount
    return value


def unique(found: Sequence[Event]) -> list[Event]:
    """Without what was read twice (in view and in a search), in order."""
    kept: dict[tuple[object, ...], Event] = {}
    for event in found:
        kept.setdefault((event.item, event.name, event.kind, event.amount, event.who), event)
    return sorted(kept.values(), key=lambda e: e.item or 0)


def call(name: str, arguments: dict[str, Any], number: int) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


@dataclass
class Slips:
    """Ways to go wrong, and the notes calls (counted from 1) on which the reader does; 0 means on all.

    `stubborn`: again when asked."""

    on: dict[str, set[int]] = field(default_factory=dict)
    stubborn: bool = False
    made: list[tuple[str, str]] = field(default_factory=list)  # (way, name) as they happened

    def now(self, way: str, number: int) -> bool:
        return way in self.on and (number in self.on[way] or 0 in self.on[way])


class Reader:
    """One model. `reply` gives an assistant message for a request's messages and tools."""

    def __init__(self, slips: Slips | None = None) -> None:
        self.slips = slips or Slips()
        self.notes_calls = 0
        self.calls = 0

    def reply(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[str] = ()) -> dict[str, Any]:
        self.calls += 1
        last = text_of(messages[-1])
        if last.startswith("NOTES REQUEST"):
            self.notes_calls += 1
            return _said(self._notes(messages))
        if last.startswith("Some lines are in question"):
            return _said(self._again(messages, last))
        if last.startswith("NOTES REWRITE"):
            return _said(self._rewrite(messages))
        if last.startswith("SUMMARY REQUEST"):
            return _said(self._summary(messages))
        asked = _asked(messages)
        return self._answer(messages, asked, tools) if asked else _said("Noted.")

    # --- notes ----------------------------------------------------------------------------------------------------------

    def _turns(self, messages: Sequence[Mapping[str, Any]]) -> tuple[Seen, list[Event]]:
        """What is noted, and the changes that are not."""
        seen = look(messages)
        return seen, seen.events

    def _notes(self, messages: Sequence[Mapping[str, Any]]) -> str:
        seen, fresh = self._turns(messages[:-1])
        lines = [
            f"+ RULE {rule}"
            for rule in seen.rules
            if not seen.has_notes or f"- {rule}" not in text_of(messages[0]) + text_of(messages[1])
        ]
        lines = [line for line in lines if not self._rule_noted(messages, line[7:])]
        lines += self._state_lines(seen, fresh)
        return "\n".join(self._slip(lines, seen, fresh)) or "NONE"

    @staticmethod
    def _rule_noted(messages: Sequence[Mapping[str, Any]], rule: str) -> bool:
        return any("NOTES\nRULES\n" in text_of(m) and f"- {rule}\n" in text_of(m) for m in messages)

    def _state_lines(self, seen: Seen, fresh: Sequence[Event]) -> list[str]:
        names = dict.fromkeys(event.name for event in fresh)
        return [self._line(name, seen, [event for event in fresh if event.name == name]) for name in names]

    @staticmethod
    def _line(name: str, seen: Seen, mine: Sequence[Event]) -> str:
        last_set = max((i for i, event in enumerate(mine) if event.kind == "set"), default=-1)
        noted = seen.notes.get(name)
        start = mine[last_set].amount if last_set >= 0 else noted[0] if noted else None
        steps = [event.amount if event.kind == "up" else -event.amount for event in mine[last_set + 1 :]]
        if start is None or not steps:
            return f"{name} = {start} by {mine[-1].who}"
        working = "".join(f" {'+' if step >= 0 else '-'} {abs(step)}" for step in steps)
        return f"{name} = {start}{working} = {start + sum(steps)} by {mine[-1].who}"

    def _slip(self, lines: list[str], seen: Seen, fresh: Sequence[Event]) -> list[str]:
        for way in self.slips.on:
            if self.slips.now(way, self.notes_calls):
                lines = self._slipped(way, lines, seen, fresh)
        return lines

    def _slipped(self, way: str, lines: list[str], seen: Seen, fresh: Sequence[Event]) -> list[str]:
        """The reply with one slip of this way in it, where these turns give occasion for one."""
        for event in fresh:
            alone = [e for e in fresh if e.name == event.name] == [event]
            place = next((i for i, line in enumerate(lines) if line.startswith(f"{event.name} =")), None)
            noted = seen.notes.get(event.name)
            if place is None or not alone or noted is None:
                continue
            wrong = self._wrong(way, event, noted[0])
            if wrong is not None:
                self.slips.made.append((way, event.name))
                return [*lines[:place], *([wrong] if wrong else []), *lines[place + 1 :]]
        return lines

    @staticmethod
    def _wrong(way: str, event: Event, noted: int) -> str | None:
        """The wrong line for one change of a noted counter; '' leaves it out, None where this event gives no occasion."""
        name, amount, who = event.name, event.amount, event.who
        step = amount if event.kind == "up" else -amount
        sign = "+" if step >= 0 else "-"
        if way == "forgotten":
            return ""
        if event.kind == "set":
            if way == "set_as_change":
                return f"{name} = {noted} - {amount} = {noted - amount} by {who}"
            if way == "invented_working":
                return f"{name} = {noted} - 27 = {noted - 27} by {who}"
            return f"{name} unchanged" if way == "misread" else None
        wrong = {
            "wrong_sign": f"{name} = {noted} {'-' if step >= 0 else '+'} {amount} = {noted - step} by {who}",
            "change_as_set": f"{name} = {amount} by {who}",
            "bad_sum": f"{name} = {noted} {sign} {amount} = {noted + step + 3} by {who}",
            "stale_start": f"{name} = {noted + 50} {sign} {amount} = {noted + 50 + step} by {who}",
            "no_working": f"{name} = {noted + step + 1} by {who}",
        }
        return wrong.get(way)

    def _again(self, messages: Sequence[Mapping[str, Any]], questions: str) -> str:
        """Writes the lines in question again: right, or when stubborn as they were."""
        first = next(i for i in range(len(messages) - 1, -1, -1) if text_of(messages[i]).startswith("NOTES REQUEST"))
        if self.slips.stubborn:
            return text_of(messages[first + 1])
        seen, fresh = self._turns(messages[:first])
        return "\n".join(line for line in self._state_lines(seen, fresh) if line.split(" ")[0] in questions) or "NONE"

    def _rewrite(self, messages: Sequence[Mapping[str, Any]]) -> str:
        seen = look(messages[:-1])
        state = {name: f"{name} = {value} by {who}" for name, (value, who) in seen.notes.items()}
        for name in dict.fromkeys(event.name for event in seen.events):
            mine = [event for event in seen.events if event.name == name]
            value = replay(mine, seen.notes.get(name, (None, ""))[0])
            state[name] = f"{name} = {value} by {mine[-1].who}"
        return "\n".join(["NOTES", "RULES", *(f"- {rule}" for rule in seen.rules), "STATE", *state.values(), "OPEN"])

    def _summary(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Values, and who set them last; who did what before that, and old values, nobody knew to keep."""
        if self.slips.now("bad_summary", 0):
            return "Next I will open the file and go on with the ticket."
        seen = look(messages[:-1])
        lines = []
        for name in dict.fromkeys([*seen.notes, *(event.name for event in seen.events)]):
            mine = [event for event in seen.events if event.name == name]
            value = replay(mine, seen.notes.get(name, (None, ""))[0])
            if value is not None:
                lines.append(f"SUM {name} = {value} by {mine[-1].who if mine else seen.notes[name][1]}")
        return "\n".join(lines) or "Nothing yet."

    # --- answers --------------------------------------------------------------------------------------------------------

    def _answer(
        self, messages: Sequence[Mapping[str, Any]], asked: Sequence["re.Match[str]"], tools: Sequence[str]
    ) -> dict[str, Any]:
        seen = look(messages)
        answers, searches = [], []
        for question in asked:
            text, search = self._one(question, seen)
            answers.append(text)
            arguments = json.dumps(search) if search else ""
            if search and arguments not in seen.searched and arguments not in searches:
                searches.append(arguments)
        recall = next((name for name in tools if name.startswith("recall")), None)
        if recall and searches:
            calls = [call(recall, json.loads(arguments), self.calls * 100 + i) for i, arguments in enumerate(searches)]
            return {"role": "assistant", "content": None, "tool_calls": calls}
        return _said("\n".join(answers))

    def _one(self, question: "re.Match[str]", seen: Seen) -> tuple[str, dict[str, Any] | None]:
        """The answer from what can be seen, and the search that would help where it cannot."""
        if question["now"]:
            name = question["now"]
            mine = [event for event in seen.events if event.name == name]
            value = replay(mine, seen.notes.get(name, (None, ""))[0])
            if value is None:
                value = replay(unique([event for event in seen.found if event.name == name]))
            return self._ruled(name, value, seen), {"query": name} if value is None else None
        if question["old"]:
            name, item = question["old"], int(question["at"])
            known = unique([e for e in [*seen.events, *seen.found] if e.name == name and (e.item or 0) <= item])
            done = {"query": name, "before": item + 1}
            searched = json.dumps(done) in seen.searched
            complete = searched or any(e.item == item and e.kind == "set" for e in known)
            value = replay(known) if complete or (not seen.has_notes and known and known[0].kind == "set") else None
            if searched and value is None and known:  # the list was cut short before the last time it was set: look further back
                return self._ruled(name, value, seen), {"query": name, "before": known[0].item}
            return self._ruled(name, value, seen), None if complete else done
        name, item = question["who"], int(question["in"])
        done_by = [e.who for e in [*seen.events, *seen.found] if e.name == name and e.item == item]
        return (done_by[-1], None) if done_by else ("unknown", {"query": name, "item": item})

    @staticmethod
    def _ruled(name: str, value: int | None, seen: Seen) -> str:
        if any(name in rule and "confidential" in rule for rule in seen.rules):
            return "protected"
        if value is None:
            return "unknown"
        return "overdrawn" if value < 0 and any("below zero" in rule for rule in seen.rules) else str(value)


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _asked(messages: Sequence[Mapping[str, Any]]) -> list["re.Match[str]"]:
    """The questions of the last user message, where it asks any and nothing has been said since."""
    place = next((i for i in range(len(messages) - 1, -1, -1) if messages[i]["role"] == "user"), None)
    return list(QUESTION.finditer(text_of(messages[place]))) if place is not None else []
