"""A conversation between two of its turns: what the last one left, and what is done for the next one."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine.foresight import Kind, Prompt
from engine.request import Request
from engine.slots import common_prefix

Foresee = Callable[[], tuple[Kind, Prompt] | None]
"""Makes the beginning of a prompt that may come and says why it may; called on the background's thread, which may wait. None:
nothing can be foreseen."""


@dataclass(slots=True, eq=False)
class Conversation:
    """See the module. `request` is its last one, `ahead` what is not yet foreseen and `prompts` what is. `home` is the engine
    that answered last, `reader` the one that has read for the next turn. `tried` are the reads that were begun, by kind and end;
    `resumed` where the next turn went on from (chain ids, position), once it has."""

    number: int
    request: Request
    home: int
    ahead: deque[Foresee] = field(default_factory=deque)
    prompts: dict[Kind, Prompt] = field(default_factory=dict)
    reader: int | None = None
    spent: int = 0
    tried: set[tuple[Kind, int]] = field(default_factory=set)
    exhausted: bool = True  # until something is expected
    resumed: tuple[Sequence[bytes], int] | None = None

    def goes_on_with(self, request: Request, grid: int) -> bool:
        """Whether a request is its next turn: by name, else because it has the last prompt, or one that was foreseen, in it but
        for a grid step."""
        if self.request.session is not None and request.session is not None:
            return self.request.session == request.session
        tokens = list(request.tokens)
        known = (self.request.tokens, *(prompt.tokens for prompt in self.prompts.values()))
        return any(common_prefix(list(one), tokens) >= max(1, len(one) - grid) for one in known)

    def foresee(self) -> bool:
        """Asks for one more prompt that may come; False when there is no more to ask."""
        if not self.ahead:
            return False
        found = self.ahead.popleft()()
        if found is not None:
            kind, prompt = found
            self.prompts[kind] = prompt
        return True


def next_of(conversations: Iterable[Conversation], request: Request, grid: int) -> Conversation | None:
    """The conversation that a request goes on with, the newest first."""
    return next((one for one in conversations if one.goes_on_with(request, grid)), None)
