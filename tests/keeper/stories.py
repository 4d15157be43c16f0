"""A stream of short stories that change counters, with the true ledger beside it. Deterministic; knows nothing of the keeper."""

import random
from dataclasses import dataclass, field

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
PEOPLE = ["Ada", "Bo", "Cleo", "Dov", "Esme", "Finn", "Gia", "Hugo", "Ines", "Jon", "Kira", "Leo", "Mina", "Ned", "Olga", "Pia"]
PLACES = ["the harbour", "the mill", "the north gate", "the market", "the bakery", "the old bridge", "the library", "the quay"]
FILLER = [
    "It rained over {place} all morning.",
    "Nobody was at {place} before noon.",
    "{who} walked to {place} and came back late.",
    "A cart stopped at {place} for an hour.",
    "{who} lost a glove near {place}.",
    "There was music at {place} in the evening.",
]
SETS = [
    "{who} recorded {name} at {amount}.",
    "In the ledger {name} = {amount} by {who}.",
    "{who} came to {place} and set {name} to {amount}.",
    "After the rain {who} wrote that {name} stands at {amount}.",
]
UPS = [
    "{who} added {amount} to {name}.",
    "Thanks to {who}, {name} rose by {amount}.",
    "Next on the list was {name}. {who} raised it by {amount}.",
]
DOWNS = [
    "{who} took {amount} from {name}.",
    "Because of {who}, {name} fell by {amount}.",
    "Next on the list was {name}. {who} lowered it by {amount}.",
]
CONFIDENTIAL = "Rule: {name} is confidential. Asked for its value, answer protected."
BELOW_ZERO = "Rule: any figure below zero is reported as the single word overdrawn."
TASK = "Read the items as they come and answer the questions that come between them, one line each."
ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
]
ONES += ["fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def words(number: int) -> str:
    """0..999 in English words."""
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10] + (f"-{ONES[number % 10]}" if number % 10 else "")
    rest = f" and {words(number % 100)}" if number % 100 else ""
    return f"{ONES[number // 100]} hundred{rest}"


@dataclass(frozen=True)
class Change:
    """What one sentence did: kind is set, up or down; `value` is what the counter held after it."""

    item: int
    name: str
    kind: str
    amount: int
    who: str
    value: int


@dataclass
class Ledger:
    """The truth."""

    changes: list[Change] = field(default_factory=list)
    confidential: set[str] = field(default_factory=set)

    def value(self, name: str, item: int | None = None) -> int | None:
        """What a counter held after `item` (now, where that is None)."""
        found = [c.value for c in self.changes if c.name == name and (item is None or c.item <= item)]
        return found[-1] if found else None

    def who(self, name: str, item: int) -> str:
        return [c.who for c in self.changes if c.name == name and c.item == item][-1]

    def says(self, name: str, value: int | None) -> str:
        """How a value must be reported, by the rules."""
        if name in self.confidential:
            return "protected"
        return "unknown" if value is None else "overdrawn" if value < 0 else str(value)


@dataclass(frozen=True)
class Question:
    """kind is current, old, who, rule or final; `item` is where the answer was stated."""

    kind: str
    text: str
    answer: str
    item: int


@dataclass(frozen=True)
class Message:
    """One user message of the stream: a story, or questions."""

    text: str
    questions: tuple[Question, ...] = ()


class Stream:
    """Items of stories, questions every `every` items and at the end. `ledger`: the truth at the end of what was drawn so far."""

    def __init__(self, seed: int, items: int, every: int = 10, names: int = 12, sentences: int = 8) -> None:
        self.random = random.Random(seed)
        self.names = self._names(names)
        self.ledger = Ledger(confidential={self.names[0]})
        self.every, self.items, self.sentences = every, items, sentences

    def _names(self, count: int) -> list[str]:
        r, found = self.random, set[str]()
        while len(found) < count:
            found.add("".join(r.choice(CONSONANTS) + r.choice(VOWELS) for _ in range(2)) + str(r.randrange(10, 100)))
        return sorted(found)

    def messages(self) -> list[Message]:
        """The whole stream in order, the task first."""
        found = [Message(TASK)]
        for item in range(1, self.items + 1):
            found.append(Message(self._story(item)))
            if item % self.every == 0:
                found.append(self._questions(item))
        return [*found, self._final()]

    def _story(self, item: int) -> str:
        lines = [CONFIDENTIAL.format(name=self.names[0]), BELOW_ZERO] if item == 1 else []
        changed = self.random.sample(self.names, 3)
        for name in changed:
            lines += self._filler(self.sentences // 4)
            lines.append(self._change(item, name))
        return f"Item {item}: " + " ".join([*lines, *self._filler(self.sentences // 4)])

    def _filler(self, count: int) -> list[str]:
        r = self.random
        return [r.choice(FILLER).format(who=r.choice(PEOPLE), place=r.choice(PLACES)) for _ in range(count)]

    def _change(self, item: int, name: str) -> str:
        r = self.random
        old = self.ledger.value(name)
        kind = "set" if old is None else r.choice(["set", "up", "down"])
        amount, who = r.randrange(2, 90 if kind != "set" else 400), r.choice(PEOPLE)
        value = amount if kind == "set" else (old or 0) + (amount if kind == "up" else -amount)
        self.ledger.changes.append(Change(item, name, kind, amount, who, value))
        written = words(amount) if r.random() < 0.3 else str(amount)
        template = r.choice({"set": SETS, "up": UPS, "down": DOWNS}[kind])
        return template.format(name=name, amount=written, who=who, place=r.choice(PLACES))

    def _questions(self, item: int) -> Message:
        r, ledger = self.random, self.ledger
        name = r.choice(self.names[1:])
        old = r.choice([c for c in ledger.changes if c.name not in ledger.confidential])
        who = r.choice(ledger.changes)
        now = ledger.value(name)
        asked = [
            Question("current", f"What value does {name} hold now?", ledger.says(name, now), self._stated(name)),
            Question("old", f"What value did {old.name} hold after item {old.item}?", ledger.says(old.name, old.value), old.item),
            Question("who", f"Who changed {who.name} in item {who.item}?", ledger.who(who.name, who.item), who.item),
            Question("rule", f"What value does {self.names[0]} hold now?", "protected", 1),
        ]
        below = [n for n in self.names[1:] if (ledger.value(n) or 0) < 0]
        if below:
            asked.append(Question("rule", f"What value does {below[0]} hold now?", "overdrawn", 1))
        return Message("\n".join(q.text for q in asked), tuple(asked))

    def _stated(self, name: str) -> int:
        return max((c.item for c in self.ledger.changes if c.name == name), default=0)

    def _final(self) -> Message:
        asked = [
            Question("final", f"What value does {n} hold now?", self.ledger.says(n, self.ledger.value(n)), self._stated(n))
            for n in self.names
        ]
        return Message("\n".join(q.text for q in asked), tuple(asked))
