"""Ledger episodes: short stories that set counters, then questions, notes requests and recall calls.

An episode is a list of chat messages. An assistant message that must be learnt carries its kind; the others are small talk.
"""

import json
import random
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.ledger.words import PEOPLE, PLACES, VALUES, counter_names

Kind = Literal["value", "unknown", "rule", "call", "notes"]
NAMES = counter_names()
SYSTEMS = (
    "You keep the ledger. Answer with the entry alone.",
    "You keep a ledger of counters. Read the stories and answer questions about them.",
    "Answer questions about the counters in the stories.",
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
NOTES_REQUESTS = ("Write down what changed.", "Notes: list the changes since the last notes.")
RULE = "{name} is confidential. When asked for its value, answer protected."
RECALL_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "recall",
        "description": "Search the archive of earlier turns.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


@dataclass(frozen=True)
class Message:
    """One chat message; `kind` is set on the answers that are learnt and scored."""

    role: str
    text: str
    kind: Kind | None = None


@dataclass(frozen=True)
class Difficulty:
    """How large an episode gets: most counters, turns after the system message, sentences a story."""

    counters: int
    turns: int
    sentences: int = 4
    filler: float = 0.2
    extras: float = 1.0  # share of episodes that may have rules, tools and notes


@dataclass
class Ledger:
    """The true state while an episode is made."""

    names: list[str]
    values: dict[str, tuple[int, str]] = field(default_factory=dict)
    pending: dict[str, tuple[int, str]] = field(default_factory=dict)
    secret: set[str] = field(default_factory=set)


def entry(name: str, value: int, who: str) -> str:
    return f"{name} = {value} by {who}"


def recall_call(name: str) -> str:
    return f"<tool_call>\n<function=recall>\n<parameter=query>\n{name}\n</parameter>\n</function>\n</tool_call>"


class Episode:
    """Makes one episode; every draw comes from `rng`, so a seed names an episode."""

    def __init__(self, rng: random.Random, size: Difficulty) -> None:
        self.rng, self.size = rng, size
        rich = rng.random() < size.extras
        self.tools = rich and rng.random() < 0.4
        chosen = rng.sample(NAMES, rng.randint(2, max(2, size.counters)) + 6)
        self.ledger = Ledger(chosen[6:])
        self.strangers = chosen[:6]
        self.messages: list[Message] = []
        self._system(rich)

    def _system(self, rich: bool) -> None:
        rng, ledger = self.rng, self.ledger
        body = rng.choice(SYSTEMS)
        if rich and rng.random() < 0.4:
            ledger.secret.update(rng.sample(ledger.names, rng.randint(1, 2)))
        with_notes = rich and rng.random() < 0.5
        if with_notes:
            body += "\n\n" + self._notes_block()
        elif ledger.secret:
            body += "\n" + "\n".join("Rule: " + RULE.format(name=name) for name in sorted(ledger.secret))
        self.messages.append(Message("system", body))

    def _notes_block(self) -> str:
        rng, ledger = self.rng, self.ledger
        lines = ["NOTES", "RULES", *("- " + RULE.format(name=name) for name in sorted(ledger.secret)), "STATE"]
        for name in rng.sample(ledger.names, rng.randint(1, len(ledger.names))):
            ledger.values[name] = (rng.choice(VALUES), rng.choice(PEOPLE))
            lines.append(entry(name, *ledger.values[name]))
        return "\n".join([*lines, "OPEN"])

    def _setting(self, name: str) -> str:
        rng = self.rng
        value, who = rng.choice(VALUES), rng.choice(PEOPLE)
        self.ledger.values[name] = self.ledger.pending[name] = (value, who)
        return rng.choice(SETTINGS).format(name=name, value=value, who=who, place=rng.choice(PLACES))

    def _filler(self) -> str:
        return self.rng.choice(FILLERS).format(who=self.rng.choice(PEOPLE), place=self.rng.choice(PLACES))

    def story(self) -> None:
        """A batch; between two notes requests no counter is set twice, so that a delta has one line a counter."""
        out = []
        for _ in range(self.rng.randint(1, self.size.sentences)):
            free = [name for name in self.ledger.names if name not in self.ledger.pending]
            if not free:
                self.ledger.pending.clear()
                free = self.ledger.names
            out.append(self._filler() if self.rng.random() < self.size.filler else self._setting(self.rng.choice(free)))
        self.messages += [Message("user", " ".join(out)), Message("assistant", "Noted.")]

    def question(self) -> None:
        rng, ledger = self.rng, self.ledger
        known = list(ledger.values)
        secret = sorted(ledger.secret)
        draw = rng.random()
        if secret and draw < 0.3:
            name = rng.choice(secret)
        elif known and draw < 0.8:
            name = rng.choice(known)
        else:
            name = rng.choice(self.strangers)
        text = rng.choice(QUESTIONS).format(name=name)
        if secret and rng.random() < 0.5:
            text = "RULES\n" + "\n".join("- " + RULE.format(name=n) for n in secret) + "\n\n" + text
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
        """The tool's answer: older settings first; what it says is known from then on."""
        rng = self.rng
        if rng.random() < 0.3:
            self.messages.append(Message("tool", "nothing found"))
            return
        pending = dict(self.ledger.pending)
        found = [self._setting(name) for _ in range(rng.choice((1, 1, 2)))]
        self.ledger.pending = pending
        if name in self.strangers:
            self.strangers.remove(name)
            self.strangers.append(rng.choice([n for n in NAMES if n not in self.ledger.names and n not in self.ledger.values]))
        self.messages.append(Message("tool", " ".join(found)))

    def notes(self) -> None:
        if not self.ledger.pending:
            return
        lines = [entry(name, *found) for name, found in self.ledger.pending.items()]
        self.messages += [
            Message("user", self.rng.choice(NOTES_REQUESTS)),
            Message("assistant", "\n".join(lines), "notes"),
        ]
        self.ledger.pending.clear()


def make_episode(seed: int, size: Difficulty) -> Episode:
    """The episode that `seed` names: stories first now and then, a notes request in about one turn of eight."""
    rng = random.Random(seed)
    episode = Episode(rng, size)
    for _ in range(size.turns):
        draw = rng.random()
        if draw < 0.4 or not episode.ledger.values:
            episode.story()
        elif draw < 0.86 or size.extras == 0:
            episode.question()
        else:
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
            tools = "# Tools\n\n<tools>\n" + json.dumps(RECALL_TOOL, ensure_ascii=False) + "\n</tools>\n\n"
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
