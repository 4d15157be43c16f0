"""Which messages ask something, and which of them still wait for an answer.

A user message waits until a reply that says something and calls nothing. A tool's result waits in the same way, but only where it
plainly asks ("What value does doma86 hold now?"), because much that tools return holds question marks.
"""

import re
from collections.abc import Iterable

from keeper.message import History, Message
from keeper.sentences import split

INTERROGATIVE = re.compile(
    r"\W*(?:(?:item|question|q)\s*\d*\s*[:.)]\s*)?(?:what|who|whom|whose|which|when|where|why|how|is|are|was|were|did|do|does|can|could|has|"
    r"have|will|would|should)\b",
    re.IGNORECASE,
)
IMPERATIVE = re.compile(
    r"\W*(?:please\s+)?(?:give|tell|list|report|answer|name|state|show|say|explain|summari[sz]e)\b", re.IGNORECASE
)


def questions(message: Message) -> tuple[str, ...]:
    """The sentences of a user or tool message that ask; of a tool's result only whole interrogative ones."""
    if message.role not in ("user", "tool"):
        return ()
    sentences = [sentence for sentence in split(message.text) if len(sentence) < 400]
    asking = [sentence for sentence in sentences if sentence.rstrip("\"'”’)* ").endswith(("?", "？"))]
    if message.role == "tool":
        return tuple(sentence for sentence in asking if INTERROGATIVE.match(sentence))
    return tuple(sentence for sentence in sentences if sentence in asking or IMPERATIVE.match(sentence))


def answers(message: Message) -> bool:
    """A reply that says something and calls nothing: what was asked before it is answered."""
    return message.role == "assistant" and not message.tool_calls and bool(message.text.strip())


def still_open(history: History, indices: Iterable[int], end: int) -> tuple[int, ...]:
    """Those of `indices` (rising) whose message waits for an answer in history[:end]."""
    waiting: list[int] = []
    wanted = set(indices)
    if not wanted:
        return ()
    for index in range(min(wanted), end):
        message = history[index]
        if answers(message):
            waiting.clear()
        elif index in wanted and (message.role == "user" or questions(message)):
            waiting.append(index)
    return tuple(waiting)


def asked(history: History, start: int, end: int) -> bool:
    """Whether a question in history[start:end] still waits: thinking stays on then."""
    return any(questions(history[index]) for index in still_open(history, range(start, end), end))
