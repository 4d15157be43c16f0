"""Counts of a replay: over everything, by distance, and for the conversations that cost most. Bounded memory."""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any

from kvcache.simulate import Outcome

IN_FLIGHT = 4096
WORST = 10


@dataclass(slots=True)
class Sums:
    """Tokens and requests of one conversation, or of all."""

    requests: int = 0
    tokens: int = 0
    known: int = 0
    resumed: int = 0
    reread: int = 0
    unavoidable: int = 0

    def add(self, outcome: Outcome) -> None:
        self.requests += 1
        self.tokens += outcome.length
        self.known += outcome.known
        self.resumed += outcome.resumed
        self.reread += outcome.reread
        self.unavoidable += outcome.unavoidable

    def row(self) -> dict[str, Any]:
        """Shares: hit rate, ceiling, and extra re-read over unavoidable prefill (None when nothing was unavoidable)."""
        return {
            "requests": self.requests,
            "tokens": self.tokens,
            "hit": self.resumed / self.tokens if self.tokens else None,
            "ceiling": self.known / self.tokens if self.tokens else None,
            "reread_tokens": self.reread,
            "unavoidable_tokens": self.unavoidable,
            "reread": self.reread / self.unavoidable if self.unavoidable else None,
        }


@dataclass(slots=True)
class Tally:
    """What one policy did on one or more traces."""

    all: Sums = field(default_factory=Sums)
    blocks: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    conversations: int = 0
    rollbacks: Counter[int] = field(default_factory=Counter)
    rereads: Counter[int] = field(default_factory=Counter)
    worst: list[tuple[str, Sums]] = field(default_factory=list)
    _open: OrderedDict[str, Sums] = field(default_factory=OrderedDict)

    def add(self, conversation: str, outcome: Outcome, blocks: int) -> None:
        self.all.add(outcome)
        self.blocks += blocks
        if outcome.rollback:
            self.rollbacks[outcome.rollback.bit_length()] += 1
        if outcome.reread:
            self.rereads[outcome.reread.bit_length()] += 1
        self._sums(conversation).add(outcome)

    def _sums(self, conversation: str) -> Sums:
        if conversation not in self._open:
            self.conversations += 1
            self._open[conversation] = Sums()
            if len(self._open) > IN_FLIGHT:
                self._close(*self._open.popitem(last=False))
        self._open.move_to_end(conversation)
        return self._open[conversation]

    def _close(self, name: str, sums: Sums) -> None:
        self.worst = sorted([*self.worst, (name, sums)], key=lambda item: -item[1].reread)[:WORST]

    def finish(self) -> None:
        """Counts the conversations that were still open."""
        while self._open:
            self._close(*self._open.popitem(last=False))


def distances(counts: Counter[int]) -> list[dict[str, int]]:
    """A histogram of tokens in powers of two: {"up_to": 2^k - 1, "count": n}."""
    return [{"up_to": (1 << bits) - 1, "count": counts[bits]} for bits in sorted(counts)]
