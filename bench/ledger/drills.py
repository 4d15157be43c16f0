"""Drills: episodes that ask for one skill again and again, where ordinary ones ask for it now and then.

A name is asked about once, since a second answer could be copied from the first, and about half of the names are strangers:
that nothing set a name is learnt only where it is as likely as not. The same seed with and without the search tool begins with
the same story, so that the tool alone decides between `unknown` and a search.
"""

import random

from bench.ledger.episodes import Difficulty, Episode, rule_of
from bench.ledger.rendering import TOOLS, Segment, render

STRANGE, SECRET = 0.45, 0.12  # shares of the questions, about names that nothing set and names under a rule
STORY, AGAIN = 0.1, 0.6  # chance that a story comes before a question, and where all that was told has been asked for
SHORT_TOOLS = "# Tools\n\n<tools>\n</tools>\n\n"  # in place of the schema's 173 tokens, for more questions a row
QUESTIONS, STRANGERS = 24, 14  # more than a row holds


class Drill(Episode):
    """An episode that asks once about a value, and first about those of a kind that is drawn."""

    def __init__(self, rng: random.Random, size: Difficulty) -> None:
        self._done: set[str] = set()
        super().__init__(rng, size)

    def _story_text(self) -> str:
        before = dict(self.ledger.values)
        self.ledger.pending.clear()  # no delta comes: a counter may be set as often as it will
        text = super()._story_text()
        self._done -= {name for name, value in self.ledger.values.items() if before.get(name) != value}
        return text

    def untold(self) -> bool:
        """Every value that was told has been asked for."""
        return all(name in self._done for name in self.ledger.values)

    def _asked(self) -> str:
        ledger, draw = self.ledger, self.rng.random()
        told, secret = list(ledger.values), [name for name in ledger.secret if rule_of(name) not in ledger.unstated]
        groups = (told, self.strangers, secret)
        if draw < STRANGE + SECRET:
            groups = (self.strangers, told, secret) if draw < STRANGE else (secret, told, self.strangers)
        left = ([name for name in group if name not in self._done] for group in groups)
        name = self.rng.choice(next(filter(None, left), self.strangers))
        self._done.add(name)
        return name


def asking(seed: int, counters: int, extras: float, tools: float, schema: str = TOOLS) -> list[Segment]:
    """Stories and as many questions as a row holds: current values, rules, names that were never set; with the tool, searches."""
    rng = random.Random(seed)
    drill = Drill(rng, Difficulty(counters, 0, 3, 0.1, extras, tools, STRANGERS))
    drill.story()
    for _ in range(QUESTIONS):
        if rng.random() < (AGAIN if drill.untold() else STORY):
            drill.story()
        drill.question()
    return render(drill, rng, schema, plain=True)


def noting(seed: int, counters: int, stories: int) -> list[Segment]:
    """Stories, few questions, and the notes request: a delta of any number of lines from none to `counters`."""
    rng = random.Random(seed)
    episode = Episode(rng, Difficulty(counters, 0, 3, 0.15, 1.0, 0.0))
    for _ in range(rng.randint(1, stories)):
        episode.story()
        if rng.random() < 0.2:
            episode.question()
    episode.notes()
    return render(episode, rng, plain=True)
