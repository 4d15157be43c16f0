"""Where a history can be cut without NOTES, for the strategies that drop, stub or summarise. Pure but for the mark it leaves.

A view may begin at a user message, or at an assistant message after one; never at a tool result, whose call would be missing.
"""

from collections.abc import Callable

from keeper.errors import MessageTooLarge
from keeper.message import History, Message
from keeper.strategies.base import Situation
from keeper.window import leading_systems, merged

DEPTH = 0.5  # of the limit: how far a cut empties the window, so that not every request after it cuts, and is read, again

Render = Callable[[int], tuple[Message, ...]]  # the view that shows history from this index on


def begins(history: History, index: int) -> bool:
    """Whether a view may show history[index:] as it is."""
    return index >= len(history) or history[index].role != "tool"


def systems(history: History) -> tuple[Message, ...]:
    """The leading system messages as one."""
    return merged(history[: leading_systems(history)])


def shown(history: History, start: int) -> tuple[Message, ...]:
    """history[start:] without the leading system messages."""
    return history[max(start, leading_systems(history)) :]


def next_start(situation: Situation, start: int, render: Render) -> int:
    """The least place after `start` from which the view takes half the limit, or no more than the newest exchange alone.

    MessageTooLarge where not even the newest exchange fits.
    """
    history, last = situation.history, len(situation.history) - 1
    while last > start and not begins(history, last):
        last -= 1
    least = situation.count(render(last))
    if least <= situation.limit:
        limit = max(least, int(situation.limit * DEPTH))
        return _least(history, start, last, lambda place: situation.count(render(place)) <= limit)
    worst = max(range(last, len(history)), key=lambda index: situation.count((history[index],)))
    raise MessageTooLarge(worst, least, situation.limit)


def _least(history: History, low: int, high: int, fits: Callable[[int], bool]) -> int:
    """By halving, as what fits from a place fits from every later one; then on to a place where a view may begin."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    while not begins(history, low):
        low += 1
    return low
