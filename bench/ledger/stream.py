"""A ledger stream of any length: batches of stories with questions between, and the true ledger beside it.

It stays within what the model was trained for: the texts of episodes, values of two digits, names of the closed list, a dozen
counters in all (and as many strangers that are only asked about), and no counter set twice within GAP batches, so that between
two notes requests each has one change. The answers are in no message.
"""

import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bench.ledger.episodes import NAMES, QUESTIONS, STATED, SYSTEMS, TASKS, drawn, entry, filler, rule_of, setting

Asked = Literal["value", "who", "rule", "unknown"]
KINDS: tuple[Asked, ...] = ("value", "who", "rule", "unknown")
DISTANCES = ((1, "1-4"), (5, "5-24"), (25, "25-99"), (100, "100-399"), (400, "400+"))  # batches back, from which on
NEVER = "never"
GAP = 10  # batches
BUSY, SLOW, QUIET, SECRET, STRANGE = 4, 2, 4, 2, 12  # how many names are set often, now and then, once, under a rule, never
QUIET_UNTIL = 30  # batches: the quiet ones are set by then
PAUSE = (30, 70)  # batches between two settings of a slow one
QUESTION_EVERY = 3  # batches
RULE_SHARE, UNKNOWN_SHARE, WHO_SHARE = 0.15, 0.1, 0.3  # of the questions; the rest ask for values
FILLER = 0.2
WHO, VALUE = QUESTIONS[2], (QUESTIONS[0], QUESTIONS[1], QUESTIONS[3])
SYSTEM, TASK = SYSTEMS[0], TASKS[0]


def range_of(back: int) -> int:
    """The number of the range of distances that `back` falls into, from 1; 0 for never."""
    return bisect_right([least for least, _ in DISTANCES], back)


@dataclass(frozen=True)
class Question:
    """What is asked, the exact right answer, and how many batches ago it was told (0: never; for a rule, its statement)."""

    kind: Asked
    name: str
    answer: str
    back: int

    @property
    def distance(self) -> str:
        place = range_of(self.back)
        return DISTANCES[place - 1][1] if place else NEVER


@dataclass(frozen=True)
class Event:
    """The next message of the user: a story, or a question. `changes` are what it set, `rules` the rules it stated."""

    text: str
    batch: int
    question: Question | None = None
    changes: tuple[tuple[str, str, str], ...] = ()
    rules: tuple[str, ...] = ()


class LedgerStream:
    """The stream that `seed` names. `due`: the batch in which each slow or quiet name is told next."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"ledger stream {seed}")
        names = iter(self._rng.sample(NAMES, BUSY + SLOW + QUIET + SECRET + STRANGE))
        drawn_names = ([next(names) for _ in range(n)] for n in (BUSY, SLOW, QUIET, SECRET, STRANGE))
        self._busy, self._slow, self._quiet, self._secret, self._strange = drawn_names
        early = self._rng.sample(range(2, QUIET_UNTIL), QUIET + SLOW)
        self._due = dict(zip([*self._quiet, *self._slow], early, strict=True))
        self._values: dict[str, tuple[int, str]] = {}
        self._last: dict[str, int] = {}
        self._batch = 0

    def events(self, tokens: int, size: Callable[[Event], int]) -> list[Event]:
        """Batches until the sizes of their messages and right answers come to `tokens`, then questions about every quiet name."""
        found: list[Event] = []
        total = 0
        while total < tokens:
            batch = self.batch()
            total += sum(map(size, batch))
            found += batch
        return found + [self._about(name) for name in self._quiet if name in self._values]

    def batch(self) -> list[Event]:
        """The next story, and the question behind it where one is due."""
        self._batch += 1
        story = self._story()
        return [story, self._ask()] if self._batch % QUESTION_EVERY == 0 else [story]

    def _story(self) -> Event:
        """One or two sentences; the first batch states the rules and sets the counters under them."""
        first = self._batch == 1
        names = self._told_now(list(self._secret) if first else [name for name, when in self._due.items() if when == self._batch])
        rules = tuple(rule_of(name) for name in names) if first else ()
        sentences, changes = [STATED.format(rule=rule) for rule in rules], []
        for name in names:
            value, who = drawn(self._rng)
            self._values[name], self._last[name] = (value, who), self._batch
            sentences.append(setting(self._rng, name, (value, who)))
            changes.append((name, str(value), who))
        return Event(" ".join(sentences or [filler(self._rng)]), self._batch, None, tuple(changes), rules)

    def _told_now(self, names: list[str]) -> list[str]:
        """`names`, which are due, and busy ones beside them where there is room."""
        self._due.update({name: self._batch + self._rng.randint(*PAUSE) for name in names if name in self._slow})
        free = [name for name in self._busy if self._batch - self._last.get(name, -GAP) > GAP]
        for _ in range(self._rng.randint(1, 2) - len(names)):
            if free and self._rng.random() > FILLER:
                names.append(free.pop(self._rng.randrange(len(free))))
        return names

    def _ask(self) -> Event:
        draw = self._rng.random()
        if draw < RULE_SHARE:
            name = self._rng.choice(self._secret)
            return self._question("rule", name, f"{name} = protected", self._batch)
        if draw < RULE_SHARE + UNKNOWN_SHARE:
            name = self._rng.choice(self._strange)
            return self._question("unknown", name, f"{name} = unknown", 0)
        return self._about(self._by_distance())

    def _by_distance(self) -> str:
        """A counter to ask about: each range of distances that there is has the same chance."""
        by_range: dict[int, list[str]] = {}
        for name in self._values:
            if name not in self._secret:
                by_range.setdefault(range_of(self._back(name)), []).append(name)
        return self._rng.choice(by_range[self._rng.choice(sorted(by_range))])

    def _about(self, name: str) -> Event:
        kind: Asked = "who" if self._rng.random() < WHO_SHARE else "value"
        return self._question(kind, name, entry(name, *self._values[name]), self._back(name))

    def _back(self, name: str) -> int:
        """How many batches ago a name was set; the batch of now is one back."""
        return self._batch + 1 - self._last[name]

    def _question(self, kind: Asked, name: str, answer: str, back: int) -> Event:
        text = (WHO if kind == "who" else self._rng.choice(VALUE)).format(name=name)
        return Event(text, self._batch, Question(kind, name, answer, back))
