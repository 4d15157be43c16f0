"""Which of several engines a request goes to: the one that has the most of it, unless others wait there. Pure functions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.costs import Costs
from engine.resume import Ask, choose, goes_on, live_of
from engine.slots import Slot, common_prefix, victim
from kvcache.entry import Match

STRIKES = 3  # failures in a row after which an engine is asked last


@dataclass(frozen=True, slots=True)
class Quote:
    """An engine as a request sees it: `ms` to its first token if nobody else were there, requests it `serves` now on how many
    `slots`, failures since the last success."""

    ms: float
    serves: int
    slots: int
    alive: bool = True
    strikes: int = 0


def route(quotes: Sequence[Quote], *, shared: bool) -> int:
    """The index of the best: alive and sound, with a free slot, then the soonest.

    `shared`: the engines have one device, so two at once are no faster than one after the other, and the one that serves goes on.
    """

    def rank(index: int) -> tuple[bool, bool, int, bool, float]:
        quote = quotes[index]
        queue = max(0, quote.serves + 1 - quote.slots)
        return not quote.alive, quote.strikes >= STRIKES, queue, shared and not quote.serves, quote.ms * (1 + quote.serves)

    if shared and any(quote.serves for quote in quotes):
        busy = [index for index, quote in enumerate(quotes) if quote.serves and quote.alive]
        return min(busy or range(len(quotes)), key=rank)
    return min(range(len(quotes)), key=rank)


def estimate(ask: Ask, slots: Iterable[Slot], tokens: list[int], match: Match, costs: Costs, session: str | None = None) -> float:
    """Milliseconds until an engine with these slots has read the prompt, as if all of them were idle (resume.choose). They may
    change meanwhile, which makes an estimate wrong and nothing else."""
    held = [(slot, common_prefix(slot.tokens, tokens)) for slot in slots]
    lives = [live_of(slot, common, own=goes_on(slot, common, session, ask.grid)) for slot, common in held]
    taken = victim([slot for slot, _ in held])
    return choose(ask, lives, 0 if taken is None else taken, match, costs).ms


def room(quotes: Sequence[Quote], home: int, *, shared: bool) -> int | None:
    """The engine that may read in the background, None when there is none: an idle one, rather not the conversation's own, whose
    slot it may go on from. On a shared device all must be idle."""
    if shared and any(quote.serves for quote in quotes):
        return None
    idle = [i for i, quote in enumerate(quotes) if quote.alive and not quote.serves and quote.strikes < STRIKES]
    return min(idle, key=lambda index: (index == home, index), default=None)
