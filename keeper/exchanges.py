"""Where a history can be cut without NOTES, for the strategies that drop, stub or summarise. Pure.

A view may begin at a user message, or at an assistant message after one; never at a tool result, whose call would be missing.
"""

from collections.abc import Callable, Sequence

from keeper.message import History, Message
from keeper.window import leading_systems


def begins(history: History, index: int) -> bool:
    """Whether a view may show history[index:] as it is."""
    return index >= len(history) or history[index].role != "tool"


def first_that_fits(history: History, start: int, fits: Callable[[int], bool]) -> int | None:
    """The least place at or after `start` from which history fits, at a border; None where not even the newest exchange does.

    Found by halving: what fits from a place fits from every later one.
    """
    last = len(history) - 1
    while last > start and not begins(history, last):
        last -= 1
    if not fits(last):
        return None
    low, high = start - 1, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    while high < last and not begins(history, high):
        high += 1
    return high


def systems_and(history: History, start: int, end: int | None = None) -> tuple[Message, ...]:
    """The leading system messages, then history[start:end]."""
    leading = leading_systems(history)
    return (*history[: min(leading, len(history))], *history[max(start, leading) : end])


def without_reasoning(messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(message.without_reasoning() for message in messages)
