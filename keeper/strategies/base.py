"""The one interface of every way to manage a window, and the registry that makes one by name.

A strategy holds no state of its own. What it must remember (notes, cuts, summaries, stubs) it puts as marks on the archive's
node at a place in the history, and finds again as the deepest mark on the path of the history that a later request sends. So it
survives a restart, a fork inherits what its shared prefix had, and two clients cannot mix. To add one: write
strategies/NAME.py with a class that has this shape, and name it in strategies/registry.py.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from keeper.belt import Belt
from keeper.config import KeeperConfig
from keeper.message import History, Message, user
from keeper.model import Reply
from keeper.past import Past


@dataclass(frozen=True, slots=True)
class View:
    """What the model is to see: messages in order, stable part first.

    `start` is the history index from which messages stand verbatim in the view, `cut` says that this request moved it,
    `reason` is one line for people and logs.
    """

    messages: tuple[Message, ...]
    start: int = 0
    cut: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a strategy may look at for one request.

    history  the client's messages, read lazily: look at few of them, a history may hold millions of tokens
    past     the archive along this history: marks (put, latest), search, stored messages; all of `history` is in it already
    limit    tokens that the view may take, tools included: the window less the room for a reply
    count    tokens of a view with this request's tools, by the model's own tokenizer
    belt     the tools that are shown now, the search tool last where there is one; `recall` is its name then
    ask      one call of the strategy's own (notes, summary): the given messages, rendered exactly like a main call with the
             same tools, at most `max_tokens` of reply; raises UpstreamFailed
    """

    history: History
    past: Past
    config: KeeperConfig
    limit: int
    count: Callable[[Sequence[Message]], int]
    ask: Callable[[Sequence[Message], int], Awaitable[Reply]]
    belt: Belt = field(default_factory=lambda: Belt(()))
    counters: dict[str, int] = field(default_factory=dict)  # what this request did: note_calls, re_asks, cuts, left_out, ...

    @property
    def recall(self) -> str:
        return self.belt.recall

    def tools_fit(self) -> bool:
        """Whether the shown tools leave the conversation its share of the view."""
        return self.count((user("?"),)) <= self.limit * self.config.tools_share

    def add(self, counter: str, n: int = 1) -> None:
        """Counts something that happened in this request; it ends in /metrics."""
        self.counters[counter] = self.counters.get(counter, 0) + n


class Strategy(Protocol):
    """One way to manage a window. `recalls`: the model gets the search tool with it."""

    @property
    def name(self) -> str: ...

    @property
    def recalls(self) -> bool: ...

    async def view(self, situation: Situation) -> View:
        """The view for this request: at most `situation.limit` tokens, and the history's last message is in it.

        Raises MessageTooLarge or WindowTooSmall where no view can be made, UpstreamFailed where a call it cannot do
        without failed. Asked again with the same situation it gives the same view.
        """
        ...
