"""Ledger episodes: short stories that set counters, then questions, notes requests and searches, in the shapes the keeper sends.

An episode is a list of chat messages: a first user message with the task (after a cut with NOTES at its end), stories that are
answered "Noted.", questions with the rules (and sentences from the archive) after them, the keeper's notes request answered by a
delta, and its search tool. Those texts come from the keeper itself, so that training and serving cannot drift apart. An assistant
message that must be learnt carries its kind; the others are small talk.
"""

import random
from dataclasses import dataclass, field
from typing import Literal

from bench.ledger.words import PEOPLE, PLACES, VALUES, counter_names
from keeper.message import user
from keeper.notes import Entry, Notes
from keeper.notetaker import request_message
from keeper.recall import NAME as RECALL
from keeper.retrieved import HEADING
from keeper.window import ACKNOWLEDGED, ALREADY_NOTED, beginning

Kind = Literal["value", "unknown", "rule", "call", "notes"]
NAMES = counter_names()
SYSTEMS = ("You keep the ledger.", "You keep a ledger of counters.")
TASKS = (
    "Read the stories and answer questions about the counters.",
    "Stories follow. Keep the counters and answer questions.",
)
SETTINGS = (
    "At {place} {entry}.",
    "Then {entry}.",
    "The clerk wrote {entry}.",
    "After the rain {entry}.",
)
FILLERS = (
    "It rained over {place} all morning.",
    "{who} lost a glove near {place}.",
    "There was music at {place} in the evening.",
    "{who} bought bread at {place}.",
)
QUESTIONS = ("What is {name} now?", "What value does {name} hold now?", "Who set {name} last?", "{name}?")
RULE = "{name} is confidential. When asked for its value, answer protected."
STATED = "Rule: {rule}"
STRANGERS, PASSERS_BY = 6, 4  # names that are asked about and set nowhere; names that only stand beside search results


@dataclass(frozen=True)
class Message:
    """One chat message; `kind` is set on the answers that are learnt and scored."""

    role: str
    text: str
    kind: Kind | None = None


@dataclass(frozen=True)
class Difficulty:
    """How large an episode gets: most counters, most turns after the task, sentences a story, share of fillers, the share of
    episodes that may have rules and notes, of those the share with the search tool, and how many names nothing sets."""

    counters: int
    turns: int
    sentences: int = 4
    filler: float = 0.2
    extras: float = 1.0
    tools: float = 0.5
    strangers: int = STRANGERS


@dataclass
class Ledger:
    """The true state while an episode is made.

    values       what each counter holds and by whom, in the order in which they were set
    pending      of those what the next delta must say
    secret       names under a rule; `unstated` are the rules that no message has said yet, `fresh` those the next delta must add
    """

    names: list[str]
    values: dict[str, tuple[int, str]] = field(default_factory=dict)
    pending: dict[str, tuple[int, str]] = field(default_factory=dict)
    secret: list[str] = field(default_factory=list)
    unstated: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)

    def put(self, name: str, value: tuple[int, str]) -> None:
        self.values.pop(name, None)
        self.values[name] = value


def entry(name: str, value: int, who: str) -> str:
    return Entry(name, str(value), who).render()


def rule_of(name: str) -> str:
    return RULE.format(name=name)


def recall_call(name: str) -> str:
    """A search as the model writes it."""
    return f"<tool_call>\n<function={RECALL}>\n<parameter=query>\n{name}\n</parameter>\n</function>\n</tool_call>"


def setting(rng: random.Random, name: str, value: tuple[int, str]) -> str:
    """A sentence that sets a counter."""
    return rng.choice(SETTINGS).format(entry=entry(name, *value), place=rng.choice(PLACES))


def filler(rng: random.Random) -> str:
    """A sentence that sets nothing."""
    return rng.choice(FILLERS).format(who=rng.choice(PEOPLE), place=rng.choice(PLACES))


def drawn(rng: random.Random) -> tuple[int, str]:
    """A value and who sets it."""
    return rng.choice(VALUES), rng.choice(PEOPLE)


class Episode:
    """Makes one episode; every draw comes from `rng`, so a seed names an episode."""

    def __init__(self, rng: random.Random, size: Difficulty) -> None:
        self.rng, self.size = rng, size
        self.rich = rng.random() < size.extras
        self.tools = self.rich and rng.random() < size.tools
        self.retrieves = self.rich and rng.random() < 0.2
        chosen = rng.sample(NAMES, rng.randint(2, max(2, size.counters)) + size.strangers + PASSERS_BY)
        self.strangers, self.passers_by = chosen[: size.strangers], chosen[size.strangers : size.strangers + PASSERS_BY]
        self.ledger = Ledger(chosen[size.strangers + PASSERS_BY :])
        self.messages = [Message("system", rng.choice(SYSTEMS))]
        self.noted: Notes | None = None
        self.already = ""
        self._task()

    def _say(self, text: str, answer: str = ACKNOWLEDGED) -> None:
        self.messages += [Message("user", text), Message("assistant", answer)]

    # --- the beginning ----------------------------------------------------------------------------------------------------

    def _task(self) -> None:
        """The first user message: the task, maybe with its rules, or as it stands after a cut, with NOTES and the exchange that
        stays in view."""
        rng, ledger = self.rng, self.ledger
        text = rng.choice(TASKS)
        if self.rich and rng.random() < 0.5:
            ledger.secret = rng.sample(ledger.names, rng.randint(1, 2))
        rules = [rule_of(name) for name in ledger.secret]
        in_task = rng.random() < 0.5
        if in_task:
            text += "".join("\n" + STATED.format(rule=rule) for rule in rules)
        if self.rich and rng.random() < 0.5:
            self._after_a_cut(text, tuple(rules))
            return
        ledger.fresh, ledger.unstated = list(rules), [] if in_task else list(rules)
        self._say(text)

    def _after_a_cut(self, text: str, rules: tuple[str, ...]) -> None:
        rng, ledger = self.rng, self.ledger
        for name in rng.sample(ledger.names, rng.randint(0, len(ledger.names))):
            ledger.put(name, drawn(rng))
        kept = rng.choice(("story", "story", "question", "nothing"))
        story = self._story_text() if kept == "story" else ""
        name = self._asked()
        carried = {"story": story, "question": rng.choice(QUESTIONS).format(name=name), "nothing": ""}[kept]
        ledger.pending.clear()
        self.noted = Notes(rules, tuple(Entry(n, str(value), who) for n, (value, who) in ledger.values.items()))
        text += "\n\n" + self._block(self.noted)
        if carried:
            self.already = beginning(user(carried))
            text += "\n\n" + ALREADY_NOTED.format(self.already)
        self._say(text)
        if kept == "story":
            self._say(story)
        elif kept == "question":
            self.ask(name, carried)
        if rng.random() < 0.2 and len(ledger.secret) < len(ledger.names):
            self._new_rule()

    def _block(self, notes: Notes) -> str:
        """The NOTES block; sometimes one whose older lines are not shown."""
        hidden = self.rng.randint(1, 9) if self.tools and self.rng.random() < 0.2 else 0
        older = tuple(Entry(name, "0") for name in self.passers_by * 3)[:hidden]
        return Notes(notes.rules, (*older, *notes.state)).render(len(notes.state))

    def _new_rule(self) -> None:
        name = self.rng.choice([n for n in self.ledger.names if n not in self.ledger.secret])
        self.ledger.secret.append(name)
        self.ledger.fresh.append(rule_of(name))
        self.ledger.unstated.append(rule_of(name))

    # --- turns ------------------------------------------------------------------------------------------------------------

    def _story_text(self) -> str:
        """Some sentences. Between two notes requests no counter is set twice, so that a delta has one line a counter."""
        rng, ledger, out = self.rng, self.ledger, []
        for _ in range(rng.randint(1, self.size.sentences)):
            free = [name for name in ledger.names if name not in ledger.pending]
            if not free or rng.random() < self.size.filler:
                out.append(filler(rng))
                continue
            name, value = rng.choice(free), drawn(rng)
            ledger.put(name, value)
            ledger.pending[name] = value
            out.append(setting(rng, name, value))
        return " ".join(out)

    def story(self) -> None:
        rules = "".join(STATED.format(rule=rule) + " " for rule in self.ledger.unstated)
        self.ledger.unstated.clear()
        self._say(rules + self._story_text())

    def _asked(self) -> str:
        """The name that a question is about."""
        rng, ledger, draw = self.rng, self.ledger, self.rng.random()
        secret = [name for name in ledger.secret if rule_of(name) not in ledger.unstated]
        if secret and draw < 0.25:
            return rng.choice(secret)
        if ledger.values and draw < 0.78:
            return rng.choice(list(ledger.values))
        return rng.choice(self.strangers)

    def question(self) -> None:
        name = self._asked()
        self.ask(name, self.rng.choice(QUESTIONS).format(name=name))

    def ask(self, name: str, text: str) -> None:
        """A question as the keeper shows it, and its answer."""
        reminder = self.noted.reminder() if self.noted else ""
        shown = text + (f"\n\n{reminder}" if reminder else "")
        if self.retrieves:
            shown += self._retrieved(name)
        self.messages.append(Message("user", shown))
        self._answer(name, text)

    def _answer(self, name: str, question: str) -> None:
        ledger = self.ledger
        if name in ledger.secret and rule_of(name) not in ledger.unstated:
            self.messages.append(Message("assistant", f"{name} = protected", "rule"))
            return
        if name not in ledger.values and self.tools:
            self.messages.append(Message("assistant", recall_call(name), "call"))
            self._recalled(name, question)
        if name in ledger.values:
            self.messages.append(Message("assistant", entry(name, *ledger.values[name]), "value"))
        else:
            self.messages.append(Message("assistant", f"{name} = unknown", "unknown"))

    def _retrieved(self, name: str) -> str:
        """Sentences from the archive under a question: older settings, then the one that holds. They make a value known."""
        rng, ledger = self.rng, self.ledger
        if name in self.strangers and rng.random() < 0.5:
            return ""
        if name in self.strangers:
            self._met(name)
        held = [ledger.values[name]] if name in ledger.values else []
        told = [setting(rng, name, value) for value in [*(drawn(rng) for _ in range(rng.choice((0, 0, 1, 2)))), *held]]
        told = [line + (" " + filler(rng) if rng.random() < 0.3 else "") for line in told]
        if held and rng.random() < 0.3:
            told.append(entry(name, *held[0]))
        return "\n\n" + "\n".join([HEADING, *(f"- {line}" for line in told)]) if told else ""

    def _met(self, name: str) -> None:
        """A stranger gets a value that only the archive tells; another takes its place."""
        self.ledger.put(name, drawn(self.rng))
        known = {*self.ledger.names, *self.ledger.values, *self.strangers, *self.passers_by}
        self.strangers.remove(name)
        self.strangers.append(self.rng.choice([other for other in NAMES if other not in known]))

    def _recalled(self, name: str, question: str) -> None:
        """The tool's result in the order of the history: older settings, the one that holds, and always the question itself."""
        rng, hits = self.rng, []
        if rng.random() < 0.65:
            self._met(name)
            older = [drawn(rng) for _ in range(rng.choice((0, 0, 1)))]
            hits = [f"[user] {setting(rng, name, value)}{self._following()}" for value in [*older, self.ledger.values[name]]]
        elif rng.random() < 0.3:
            hits = [f"[user] {rng.choice(QUESTIONS).format(name=name)}", f"[assistant] {name} = unknown"]
        hits.append(f"[user] {question}")
        heading = "1 match." if len(hits) == 1 else f"{len(hits)} matches."
        self.messages.append(Message("tool", "\n".join([heading, *hits])))

    def _following(self) -> str:
        """What stands after a hit in its message: nothing, a filler, or the setting of a counter that nobody asks about."""
        draw = self.rng.random()
        if draw < 0.5:
            return ""
        return " | " + (filler(self.rng) if draw < 0.7 else setting(self.rng, self.rng.choice(self.passers_by), drawn(self.rng)))

    def notes(self) -> None:
        """The keeper's request and the delta that answers it."""
        ledger = self.ledger
        fresh = [rule for rule in ledger.fresh if rule not in ledger.unstated]
        lines = [f"+ RULE {rule}" for rule in fresh] + [entry(name, *found) for name, found in ledger.pending.items()]
        self.messages.append(Message("user", request_message(self.noted, self.already).text))
        self.messages.append(Message("assistant", "\n".join(lines) or "NONE", "notes"))


def make_episode(seed: int, size: Difficulty, noted: float = 0.6) -> Episode:
    """The episode that `seed` names. A notes request comes last where there is one, which is in a share `noted` of those that may
    have one: the keeper cuts the view after it."""
    rng = random.Random(seed)
    episode = Episode(rng, size)
    for _ in range(rng.randint(max(2, size.turns * 2 // 3), size.turns)):
        if rng.random() < 0.4 or not episode.ledger.values:
            episode.story()
        else:
            episode.question()
    if episode.rich and rng.random() < noted:
        episode.notes()
    return episode
