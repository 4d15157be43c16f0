"""Ledger episodes: short stories that set counters, then questions, notes requests and recall calls.

An episode is a list of chat messages in the shapes that the keeper sends: a first user message with the task (after a cut with
NOTES at its end), stories that are answered "Noted.", questions with the rules repeated after them, the keeper's notes request
answered by a delta, and its recall tool. Those texts come from the keeper itself, so that training and serving cannot drift
apart. An assistant message that must be learnt carries its kind; the others are small talk.
"""

import json
import random
from dataclasses import dataclass, field
from typing import Literal

from bench.ledger.words import PEOPLE, PLACES, VALUES, counter_names
from keeper.notes import Entry, Notes
from keeper.notetaker import request_message
from keeper.recall import NAME as RECALL
from keeper.recall import tool_of
from keeper.window import ACKNOWLEDGED

Kind = Literal["value", "unknown", "rule", "call", "notes"]
NAMES = counter_names()
SYSTEMS = ("You keep the ledger.", "You keep a ledger of counters.")
TASKS = (
    "Read the stories and answer questions about the counters.",
    "Stories follow. Keep the counters and answer questions.",
)
SETTINGS = (
    "At {place} {name} = {value} by {who}.",
    "Then {name} = {value} by {who}.",
    "The clerk wrote {name} = {value} by {who}.",
    "After the rain {name} = {value} by {who}.",
)
FILLERS = (
    "It rained over {place} all morning.",
    "{who} lost a glove near {place}.",
    "There was music at {place} in the evening.",
    "{who} bought bread at {place}.",
)
QUESTIONS = ("What is {name} now?", "What value does {name} hold now?", "Who set {name} last?", "{name}?")
RULE = "{name} is confidential. When asked for its value, answer protected."
NOT_FOUND = "Nothing found. Every word must occur: try one word alone, spelt exactly."


@dataclass(frozen=True)
class Message:
    """One chat message; `kind` is set on the answers that are learnt and scored."""

    role: str
    text: str
    kind: Kind | None = None


@dataclass(frozen=True)
class Difficulty:
    """How large an episode gets: most counters, turns after the task, sentences a story, share of fillers, and the share of
    episodes that may have rules, tools and notes."""

    counters: int
    turns: int
    sentences: int = 4
    filler: float = 0.2
    extras: float = 1.0


@dataclass
class Ledger:
    """The true state while an episode is made; `pending` and `fresh_rules` are what the next delta must say."""

    names: list[str]
    values: dict[str, tuple[int, str]] = field(default_factory=dict)
    pending: dict[str, tuple[int, str]] = field(default_factory=dict)
    secret: list[str] = field(default_factory=list)
    fresh_rules: list[str] = field(default_factory=list)


def entry(name: str, value: int, who: str) -> str:
    return Entry(name, str(value), who).render()


def recall_call(name: str) -> str:
    return f"<tool_call>\n<function={RECALL}>\n<parameter=query>\n{name}\n</parameter>\n</function>\n</tool_call>"


class Episode:
    """Makes one episode; every draw comes from `rng`, so a seed names an episode."""

    def __init__(self, rng: random.Random, size: Difficulty) -> None:
        self.rng, self.size = rng, size
        self.rich = rng.random() < size.extras
        self.tools = self.rich and rng.random() < 0.5
        chosen = rng.sample(NAMES, rng.randint(2, max(2, size.counters)) + 6)
        self.ledger = Ledger(chosen[6:])
        self.strangers = chosen[:6]
        self.messages = [Message("system", rng.choice(SYSTEMS))]
        self.noted = False
        self.already = ""
        self._task()

    def _task(self) -> None:
        """The first user message: the task with its rules, or as it stands after a cut, with NOTES."""
        rng, ledger = self.rng, self.ledger
        text = rng.choice(TASKS)
        if self.rich and rng.random() < 0.5:
            ledger.secret = rng.sample(ledger.names, rng.randint(1, 2))
        self.noted = self.rich and rng.random() < 0.5
        if self.noted:
            carried = self._carried() if rng.random() < 0.7 else None
            text += "\n\n" + self._notes().render()
            self.messages += [Message("user", text), Message("assistant", ACKNOWLEDGED)]
            if carried:
                self.already = carried
                self.messages += [Message("user", carried), Message("assistant", ACKNOWLEDGED)]
            return
        for name in ledger.secret:
            ledger.fresh_rules.append(RULE.format(name=name))
            text += "\nRule: " + ledger.fresh_rules[-1]
        self.messages += [Message("user", text), Message("assistant", ACKNOWLEDGED)]

    def _carried(self) -> str:
        """The exchange that stays in view after a cut: a story whose changes the NOTES hold already."""
        text = self._story_text()
        self.ledger.pending.clear()
        return text

    def _notes(self) -> Notes:
        rng, ledger = self.rng, self.ledger
        older = [name for name in ledger.names if name not in ledger.values]
        for name in rng.sample(older, rng.randint(0, len(older))):
            ledger.values = {name: (rng.choice(VALUES), rng.choice(PEOPLE)), **ledger.values}
        state = tuple(Entry(name, str(value), who) for name, (value, who) in ledger.values.items())
        return Notes(tuple(RULE.format(name=name) for name in ledger.secret), state)

    def _setting(self, name: str) -> str:
        rng = self.rng
        value, who = rng.choice(VALUES), rng.choice(PEOPLE)
        self.ledger.values.pop(name, None)
        self.ledger.values[name] = self.ledger.pending[name] = (value, who)
        return rng.choice(SETTINGS).format(name=name, value=value, who=who, place=rng.choice(PLACES))

    def _filler(self) -> str:
        return self.rng.choice(FILLERS).format(who=self.rng.choice(PEOPLE), place=self.rng.choice(PLACES))

    def _story_text(self) -> str:
        out = []
        for _ in range(self.rng.randint(1, self.size.sentences)):
            free = [name for name in self.ledger.names if name not in self.ledger.pending]
            filler = not free or self.rng.random() < self.size.filler
            out.append(self._filler() if filler else self._setting(self.rng.choice(free)))
        return " ".join(out)

    def story(self) -> None:
        """A batch; between two notes requests no counter is set twice, so that a delta has one line a counter."""
        self.messages += [Message("user", self._story_text()), Message("assistant", ACKNOWLEDGED)]

    def question(self) -> None:
        rng, ledger = self.rng, self.ledger
        draw = rng.random()
        if ledger.secret and draw < 0.3:
            name = rng.choice(ledger.secret)
        elif ledger.values and draw < 0.8:
            name = rng.choice(list(ledger.values))
        else:
            name = rng.choice(self.strangers)
        text = rng.choice(QUESTIONS).format(name=name)
        reminder = Notes(tuple(RULE.format(name=n) for n in ledger.secret)).reminder()
        if self.noted and reminder:
            text += "\n\n" + reminder
        self.messages.append(Message("user", text))
        self._answer(name)

    def _answer(self, name: str) -> None:
        ledger = self.ledger
        if name in ledger.secret:
            self.messages.append(Message("assistant", f"{name} = protected", "rule"))
            return
        if name not in ledger.values and self.tools:
            self.messages.append(Message("assistant", recall_call(name), "call"))
            self._recalled(name)
        if name in ledger.values:
            self.messages.append(Message("assistant", entry(name, *ledger.values[name]), "value"))
        else:
            self.messages.append(Message("assistant", f"{name} = unknown", "unknown"))

    def _recalled(self, name: str) -> None:
        """The tool's answer, older settings first; what it says is known from then on."""
        rng = self.rng
        if rng.random() < 0.3:
            self.messages.append(Message("tool", NOT_FOUND))
            return
        pending = dict(self.ledger.pending)
        hits = []
        for _ in range(rng.choice((1, 1, 2))):
            following = " | " + self._filler() if rng.random() < 0.3 else ""
            hits.append(f"[user] {self._setting(name)}{following}")
        self.ledger.pending = pending
        self.strangers.remove(name)
        self.strangers.append(rng.choice([n for n in NAMES if n not in self.ledger.names and n not in self.strangers]))
        heading = "1 match." if len(hits) == 1 else f"{len(hits)} matches."
        self.messages.append(Message("tool", "\n".join([heading, *hits])))

    def notes(self) -> None:
        """The keeper's request and the delta that answers it."""
        ledger = self.ledger
        request = request_message(Notes() if self.noted else None, self.already).text
        lines = [f"+ RULE {rule}" for rule in ledger.fresh_rules]
        lines += [entry(name, *found) for name, found in ledger.pending.items()]
        self.messages += [Message("user", request), Message("assistant", "\n".join(lines) or "NONE", "notes")]
        ledger.pending.clear()
        ledger.fresh_rules.clear()


def make_episode(seed: int, size: Difficulty) -> Episode:
    """The episode that `seed` names. A notes request comes last where there is one: the keeper cuts the view after it."""
    rng = random.Random(seed)
    episode = Episode(rng, size)
    for _ in range(size.turns):
        if rng.random() < 0.45 or not episode.ledger.values:
            episode.story()
        else:
            episode.question()
    if episode.rich and rng.random() < 0.7:
        episode.notes()
    return episode


@dataclass(frozen=True)
class Segment:
    """A piece of rendered text; `kind` marks an answer to learn, `spoken` any other assistant text."""

    text: str
    kind: Kind | None = None
    spoken: bool = False


def render(episode: Episode, rng: random.Random) -> list[Segment]:
    """The episode as the embedded model's chat template renders it, cut at the answers.

    A served chat shows an answer in three ways: in history without a thinking block, and at the end after a generation prompt
    that closes the block or leaves it open for the model to close; each answer is drawn in one of them.
    """
    out: list[Segment] = []
    for message in episode.messages:
        if message.role == "system" and episode.tools:
            tools = "# Tools\n\n<tools>\n" + json.dumps(tool_of(RECALL), ensure_ascii=False) + "\n</tools>\n\n"
            out.append(Segment(f"<|im_start|>system\n{tools}{message.text}<|im_end|>\n"))
        elif message.role == "tool":
            out.append(Segment(f"<|im_start|>user\n<tool_response>\n{message.text}\n</tool_response><|im_end|>\n"))
        elif message.role == "assistant":
            out += [*_opening(rng), Segment(f"{message.text}<|im_end|>", message.kind, message.kind is None), Segment("\n")]
        else:
            out.append(Segment(f"<|im_start|>{message.role}\n{message.text}<|im_end|>\n"))
    return out


def _opening(rng: random.Random) -> list[Segment]:
    start, draw = "<|im_start|>assistant\n", rng.random()
    if draw < 0.5:
        return [Segment(start)]
    if draw < 0.75:
        return [Segment(start + "<think>\n\n</think>\n\n")]
    return [Segment(start + "<think>\n"), Segment("\n</think>\n\n", spoken=True)]
