"""A conversation between two of its turns: what the last one left, and what is done for the next one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine.foresight import Kind, Prompt
from engine.request import Done, Request
from engine.slots import common_prefix

Foresee = Callable[[], Prompt | None]
"""Makes the beginning of a prompt that may come; called on the background's thread. None: nothing can be foreseen."""


@dataclass(slots=True, eq=False)
class Conversation:
    """See the module. `home` is the engine that answered last, `reader` the one that has read for the next turn. `tried` are the
    reads that were begun, by kind and end; `resumed` where the next turn went on from (chain ids, position), once it has."""

    number: int
    request: Request
    said: tuple[int, ...]
    home: int
    since: float
    ahead: list[tuple[Kind, Foresee]] = field(default_factory=list)
    reader: int | None = None
    spent: int = 0
    tried: set[tuple[Kind, int]] = field(default_factory=set)
    exhausted: bool = False
    resumed: tuple[Sequence[bytes], int] | None = None
    _seen: dict[Kind, Prompt] = field(default_factory=dict)

    def goes_on_with(self, request: Request, grid: int) -> bool:
        """Whether a request is its next turn: by name, else because it has the last prompt in it but for a grid step."""
        if self.request.session is not None and request.session is not None:
            return self.request.session == request.session
        return common_prefix(list(self.said), list(request.tokens)) >= max(1, len(self.request.tokens) - grid)

    def prompts(self) -> tuple[tuple[Kind, Prompt], ...]:
        """What may be asked next, made once; where nothing is foreseen, what was read and said."""
        todo, self.ahead = self.ahead, []
        for kind, foresee in todo:
            made = foresee()
            if made is not None:
                self._seen[kind] = made
        if Kind.ANTICIPATE not in self._seen:
            return ((Kind.EXACT, Prompt(self.said, self.request.anchors)), *self._seen.items())
        return tuple(self._seen.items())


def resident(request: Request, done: Done) -> tuple[int, ...]:
    """What the slot holds when a request has ended; the last token that was sampled may not be in it."""
    return (*request.tokens, *done.generated)


def next_of(conversations: Iterable[Conversation], request: Request, grid: int) -> Conversation | None:
    """The conversation that a request goes on with, the newest first."""
    return next((one for one in conversations if one.goes_on_with(request, grid)), None)
