"""A seeded conversation that grows, is edited, branched and repeated: the traffic of live measurements and of the replay test."""

import random

# fmt: off
WORDS = (
    "river", "stone", "window", "garden", "letter", "morning", "engine", "silver", "forest", "bridge", "number",
    "market", "winter", "candle", "harbor", "paper", "mirror", "planet", "copper", "valley", "button", "signal",
    "orange", "ladder", "island", "thunder", "meadow", "velvet", "rocket", "lantern",
)
# fmt: on
KINDS = (("append", 0.50), ("repeat", 0.08), ("edit_last", 0.14), ("edit_early", 0.14), ("branch_back", 0.08), ("new", 0.06))
"""What the next request is, and how often."""


class Conversation:
    """Messages of one client. `step` changes them and says how; every message is plain text of seeded words."""

    def __init__(self, rng: random.Random, words: int = 60) -> None:
        self._rng, self._words = rng, words
        self._branches: list[list[dict[str, str]]] = []
        self._head = {"role": "system", "content": self._text(3 * words)}
        self.messages: list[dict[str, str]] = []

    def step(self) -> str:
        """Makes the next request's messages; returns which of KINDS it is ("new" for the first)."""
        kind = self._rng.choices([name for name, _ in KINDS], [share for _, share in KINDS])[0] if self.messages else "new"
        getattr(self, f"_{kind}")()
        return kind

    def text(self) -> str:
        """All messages as one string, to compare requests by."""
        return "".join(f"\x01{message['role']}\x02{message['content']}" for message in self.messages)

    def _append(self) -> None:
        answer = {"role": "assistant", "content": self._text(self._words // 2)}
        self.messages = [*self.messages, answer, self._user()]

    def _repeat(self) -> None:
        """The same request again."""

    def _edit_last(self) -> None:
        self.messages = [*self.messages[:-1], self._user()]

    def _edit_early(self) -> None:
        """One word in an earlier user message changes; what follows it stays."""
        users = [index for index, message in enumerate(self.messages) if message["role"] == "user"]
        index = self._rng.choice(users)
        words = self.messages[index]["content"].split(" ")
        words[self._rng.randrange(len(words))] = self._rng.choice(WORDS) + str(self._rng.randrange(100))
        self._keep_branch()
        self.messages = [*self.messages[:index], {"role": "user", "content": " ".join(words)}, *self.messages[index + 1 :]]

    def _branch_back(self) -> None:
        """Back to a branch that was left, and on from there."""
        if self._branches:
            chosen = self._branches.pop(self._rng.randrange(len(self._branches)))
            self._keep_branch()
            self.messages = chosen
        self._append()

    def _new(self) -> None:
        """A new conversation under the same system text."""
        if self.messages:
            self._keep_branch()
        self.messages = [self._head, self._user()]

    def _keep_branch(self) -> None:
        self._branches = [*self._branches, self.messages][-4:]

    def _user(self) -> dict[str, str]:
        return {"role": "user", "content": self._text(self._rng.randrange(self._words // 3, 2 * self._words))}

    def _text(self, words: int) -> str:
        return " ".join(self._rng.choice(WORDS) for _ in range(words))
