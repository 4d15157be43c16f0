"""NOTES, the block that stays in view, and the delta in which a model writes only what changed.

The block, exactly, at the end of the first user message of a cut view (so that system, tools and task stay a cached prefix):

    NOTES
    RULES
    - rule text
    STATE
    name = value by who
    OPEN
    - question

A section with nothing in it keeps its heading. STATE lines stand in the order in which they last changed, oldest first, so that
a cut re-reads only from the first line that changed. Next to a question, the rules are repeated at the end of its message:

    <the question>

    RULES
    - rule text

The request (request_text in notetaker.py) asks for a delta: one change a line, nothing else.

    name = value                 sets a STATE line               name = value by who    says who did it
    name = 12 + 5 = 17 by who    sets it with its working; it starts from the noted value (or the word old)
    name unchanged               was mentioned and did not change
    - name                       removes a STATE line
    + rule text                  adds a rule (a standing rule or method; never dropped, never reworded)
    ? question                   opens a question                x question             closes it
    NONE                         nothing changed

Tolerant in form: list bullets, numbering, backticks, **bold**, code fences, section headings (under RULES "- text" is a rule,
under OPEN a question), "RULE: text", "+ text", := or -> or → or : for =, "name += 5", "+ name = value", a working without its
result (it is worked out), "- name = value" with its dash meant as a bullet. Strict in meaning: a line that fits no form is not
guessed at but questioned (Unread). Applying a delta changes only the lines that it names; no delta can drop or reword a rule.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation

HEADINGS = {"NOTES": "", "RULES": "rule", "RULE": "rule", "STATE": "state", "OPEN": "open", "CHANGES": "", "DELTA": ""}


@dataclass(frozen=True, slots=True)
class Working:
    """The steps of a value: it starts from `start` (None: the word old) and adds each of `steps`. `result` None: not written."""

    start: Decimal | None
    steps: tuple[Decimal, ...]
    result: Decimal | None


@dataclass(frozen=True, slots=True)
class Set:
    """name = value by who; `working` where it was shown."""

    name: str
    value: str
    who: str = ""
    working: Working | None = None


@dataclass(frozen=True, slots=True)
class Remove:
    name: str


@dataclass(frozen=True, slots=True)
class Unchanged:
    name: str


@dataclass(frozen=True, slots=True)
class Rule:
    text: str


@dataclass(frozen=True, slots=True)
class Opened:
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    text: str


@dataclass(frozen=True, slots=True)
class Unread:
    """A line that fits no form."""

    text: str


Line = Set | Remove | Unchanged | Rule | Opened | Closed | Unread


@dataclass(frozen=True, slots=True)
class Entry:
    """A STATE line."""

    name: str
    value: str
    who: str = ""

    def render(self) -> str:
        return f"{self.name} = {self.value}" + (f" by {self.who}" if self.who else "")


@dataclass(frozen=True, slots=True)
class Notes:
    """The whole of the notes: a value; apply() gives the next one."""

    rules: tuple[str, ...] = ()
    state: tuple[Entry, ...] = ()
    open: tuple[str, ...] = ()

    def entry(self, name: str) -> Entry | None:
        """The STATE line of a name; letter case does not count where no name is spelt exactly so."""
        exact = [entry for entry in self.state if entry.name == name]
        return next(iter(exact or [entry for entry in self.state if entry.name.casefold() == name.casefold()]), None)

    def render(self, most_state: int | None = None) -> str:
        """The block. With `most_state`, only that many STATE lines, the newest, and a line that says how many are not shown."""
        hidden = 0 if most_state is None else max(0, len(self.state) - most_state)
        more = [f"({hidden} older lines are not shown; recall finds them by name)"] if hidden else []
        state = [*more, *(entry.render() for entry in self.state[hidden:])]
        rules, questions = [f"- {rule}" for rule in self.rules], [f"- {text}" for text in self.open]
        return "\n".join(["NOTES", "RULES", *rules, "STATE", *state, "OPEN", *questions])

    def reminder(self) -> str:
        """The rules as they are repeated next to a question; '' where there are none."""
        return "\n".join(["RULES", *(f"- {rule}" for rule in self.rules)]) if self.rules else ""

    def as_json(self) -> dict[str, object]:
        return {"rules": list(self.rules), "state": [[e.name, e.value, e.who] for e in self.state], "open": list(self.open)}


def from_json(found: dict[str, list[str] | list[list[str]]]) -> Notes:
    """What as_json() gave."""
    return Notes(
        tuple(str(rule) for rule in found["rules"]),
        tuple(Entry(*(str(field) for field in entry)) for entry in found["state"]),
        tuple(str(text) for text in found["open"]),
    )


def apply(notes: Notes, lines: Iterable[Line]) -> Notes:
    """The notes after the changes. Lines that no change names stay as they are and in their order; Unread changes nothing."""
    for line in lines:
        notes = _apply(notes, line)
    return notes


def _apply(notes: Notes, line: Line) -> Notes:
    match line:
        case Set():
            old = notes.entry(line.name)
            entry = Entry(old.name if old else line.name, line.value, line.who)
            return replace(notes, state=(*(e for e in notes.state if e is not old), entry)) if old != entry else notes
        case Remove():
            old = notes.entry(line.name)
            return replace(notes, state=tuple(e for e in notes.state if e is not old))
        case Rule():
            known = {normal(rule) for rule in notes.rules}
            return notes if normal(line.text) in known else replace(notes, rules=(*notes.rules, line.text))
        case Opened():
            known = {normal(text) for text in notes.open}
            return notes if normal(line.text) in known else replace(notes, open=(*notes.open, line.text))
        case Closed():
            closed = closing(notes, line.text)
            return replace(notes, open=tuple(text for text in notes.open if text != closed))
        case _:
            return notes


def closing(notes: Notes, text: str) -> str | None:
    """The open question that "x text" closes: the same text, or the only one that holds it; None closes nothing."""
    wanted = normal(text)
    same = [question for question in notes.open if normal(question) == wanted]
    held = [question for question in notes.open if wanted and wanted in normal(question)]
    return same[0] if same else held[0] if len(held) == 1 else None


def normal(text: str) -> str:
    """Text as it is compared: words and numbers in lower case, one space between."""
    return " ".join(re.findall(r"\w+", text.casefold()))


# --- reading ------------------------------------------------------------------------------------------------------------

NUMBER = r"[-−–]?\$?\d[\d,]*(?:\.\d+)?"
BULLET = re.compile(r"^(?:[*•▪]\s+|\d{1,3}[.)]\s+)")
WORKING = re.compile(
    rf"^(?P<start>old|{NUMBER})\s*(?P<steps>(?:[-+−–]\s*{NUMBER}\s*)+)(?:=\s*(?P<result>{NUMBER})\s*)?$", re.IGNORECASE
)
STEP = re.compile(r"([-+−–])\s*(\$?\d[\d,]*(?:\.\d+)?)")
ASSIGNS = re.compile(r"^(?P<name>[^=:→\n]{1,80}?)\s*(?:(?P<sign>[-+−])=|:=|=|→|->)\s*(?P<value>\S.*)$")
COLON = re.compile(r"^(?P<name>[\w./-]{1,60})\s*:\s+(?P<value>\S.*)$")
UNCHANGED = re.compile(
    r"^(?:=\s*(?P<bare>\S.{0,60})|(?P<name>\S.{0,60}?)(?:\s+is|\s*[=:])?\s+\(?(?:unchanged|no change|(?:the )?same)\)?\.?)$",
    re.IGNORECASE,
)
RULE = re.compile(r"^(?:\+\s*(?:RULE\b\s*:?)?|RULE\b\s*:)\s*(?P<text>\S.*)$", re.IGNORECASE)
SET_AS_ADDED = re.compile(r"^\+\s*(?P<line>(?!RULE\b)[\w./-]+\s*=.*)$")
CLOSED = re.compile(r"^[xX✓✗×]\s+(?:-\s+)?(?P<text>[^=\s].*)$")
NOTHING = re.compile(r"^\W*(?:none|nothing(?: changed)?|no changes?)\W*$", re.IGNORECASE)


def read(reply: str) -> tuple[Line, ...]:
    """The changes that a delta reply writes down, in order; lines without meaning (fences, headings, NONE) are left out."""
    found: list[Line] = []
    section = ""
    for raw in reply.splitlines():
        text = clean(raw)
        heading = text.strip("#:* ").upper()
        if heading in HEADINGS:
            section = HEADINGS[heading]
        elif text and not text.startswith("```") and not NOTHING.match(text):
            found.append(read_line(text, section))
    return tuple(found)


def clean(line: str) -> str:
    """A line without edge space, list bullets, bold marks and backticks."""
    text = line.strip()
    if text.startswith("```"):
        return text
    return BULLET.sub("", text.replace("**", "").replace("`", "").strip()).strip()


def read_line(text: str, section: str = "") -> Line:
    """One line; `section` is the kind of the heading it stands under: rule, state, open or ''."""
    if added := SET_AS_ADDED.match(text):  # a diff's way to write "name = value"
        return _state_line(added["line"], None)
    if rule := RULE.match(text):
        return Rule(rule["text"].strip())
    if text.startswith("?"):
        return Opened(text[1:].strip()) if text[1:].strip() else Unread(text)
    if closed := CLOSED.match(text):
        return Closed(closed["text"].strip())
    bare = text[1:].strip() if re.match(r"^[-−–]\s+\S", text) else None
    if bare is not None and section in ("rule", "open"):
        return Rule(bare) if section == "rule" else Opened(bare)
    return _state_line(text, bare)


def _state_line(text: str, bare: str | None) -> Line:
    body = text if bare is None else bare
    if (same := UNCHANGED.match(body)) and bare is None:
        return Unchanged(same["bare"] or same["name"])
    assigned = ASSIGNS.match(body) or COLON.match(body)
    if assigned:
        return _set(assigned["name"].strip(), assigned["value"].strip(), assigned.groupdict().get("sign"))
    if bare is not None and len(bare.split()) <= 4:
        return Remove(bare.rstrip("."))
    return Unread(text)


def _set(name: str, value: str, sign: str | None) -> Line:
    value, _, who = _by(value.rstrip())
    amount = decimal(value)
    if sign:
        if amount is None:
            return Unread(f"{name} {sign}= {value}")
        working = Working(None, (amount if sign == "+" else -amount,), None)
        return Set(name, "", who, working)
    found = WORKING.match(value)
    if not found:
        return Set(name, value if amount is None else plain(amount), who)
    start = None if found["start"].lower() == "old" else decimal(found["start"])
    steps = tuple(_signed(mark, number) for mark, number in STEP.findall(found["steps"]))
    result = decimal(found["result"]) if found["result"] else None
    return Set(name, plain(result) if result is not None else "", who, Working(start, steps, result))


def _signed(mark: str, number: str) -> Decimal:
    amount = decimal(number) or Decimal(0)
    return amount if mark == "+" else -amount


def _by(value: str) -> tuple[str, str, str]:
    """ "342 by Ada." -> 342, by, Ada. A value that has " by " in it keeps all but the last."""
    head, middle, who = value.rpartition(" by ")
    if not middle or len(who.split()) > 4:
        return value.rstrip(".") if decimal(value.rstrip(".")) is not None else value, "", ""
    return head.strip(), "by", who.strip().rstrip(".")


def decimal(text: str) -> Decimal | None:
    """A number in digits, with thousands separators, a $ or any of the minus signs; None for other text."""
    stripped = text.strip().replace(",", "").replace("$", "").replace("−", "-").replace("–", "-")
    if not re.fullmatch(r"-?\d+(?:\.\d+)?", stripped):
        return None
    try:
        return Decimal(stripped)
    except InvalidOperation:
        return None


def plain(number: Decimal) -> str:
    """A number as the notes write it: no exponent, no trailing zeros, no separators."""
    text = format(number, "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"
