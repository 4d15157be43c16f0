"""What a client is likely to ask next, as far as it can be known when its answer has ended: the next prompt's beginning.

It is the template's own rendering of the conversation with the answer in it and a next message behind that, up to where that
message's text starts. Two renderings that differ in this text alone show where it starts, whatever the template does to
the messages before it (thinking taken back, tool results wrapped).
"""

from collections.abc import Callable
from typing import Any

from engine.errors import EngineError
from engine.foresight import Kind, Prompt
from engine.request import Anchor, Exact
from server.prompt import read, render
from server.runtime import Runtime
from server.schemas import ChatTemplateFields
from server.turn import Said

Message = dict[str, Any]
PROBES = ("a", "b")  # texts of the next message: plain, and different from their first letter on


def foretelling(runtime: Runtime, body: ChatTemplateFields, exact: Exact, *, forced: bool) -> Callable[[Said], None] | None:
    """What to do when a chat turn has ended; None where nobody could read ahead, or where the answer goes on with a message."""
    pair = runtime.pair
    if pair is None or body.continues():
        return None

    def ended(said: Said) -> None:
        message = said.parsed.message()
        pair.expect(said.done.request, lambda: anticipated(next_prompt(runtime, body, message, exact, forced=forced)))

    return ended


def text_foretelling(runtime: Runtime, given: str | list[int], exact: Exact) -> Callable[[Said], None] | None:
    """The same for a prompt without messages."""
    pair = runtime.pair
    if pair is None:
        return None
    return lambda said: pair.expect(said.done.request, continued(runtime, given, said, exact))


def anticipated(prompt: Prompt | None) -> tuple[Kind, Prompt] | None:
    return None if prompt is None else (Kind.ANTICIPATE, prompt)


def next_prompt(
    runtime: Runtime, body: ChatTemplateFields, answer: Message, exact: Exact, *, forced: bool = False
) -> Prompt | None:
    """The beginning of the prompt after `answer`; None where the template refuses such a conversation."""
    history = [*body.raw_messages(), as_returned(body.raw_messages(), answer)]
    first, second = ([*history, awaited(answer, probe)] for probe in PROBES)
    return shared_prompt(runtime, body, first, second, exact, forced=forced)


def continued(runtime: Runtime, given: str | list[int], said: Said, exact: Exact) -> Callable[[], tuple[Kind, Prompt] | None]:
    """What follows a prompt without messages, as far as it follows at all: prompt and answer, as a canonical read."""

    def foresee() -> tuple[Kind, Prompt]:
        if isinstance(given, str):
            return Kind.EXACT, Prompt(read(runtime, given + said.parsed.content, exact)[0].tokens)
        return Kind.EXACT, Prompt((*given, *said.done.generated))

    return foresee


def shared_prompt(
    runtime: Runtime,
    body: ChatTemplateFields,
    one: list[Message],
    other: list[Message],
    exact: Exact,
    *,
    forced: bool = False,
) -> Prompt | None:
    """What the prompts of two conversations have in common; None where the template refuses them."""
    try:
        first = render(runtime, body.model_copy(update={"messages": one}), forced=forced)
        second = render(runtime, body.model_copy(update={"messages": other}), forced=forced)
    except EngineError:
        return None
    end = shared_start(first.text, second.text)
    reading, places = read(runtime, first.text[:end], exact)
    anchors = tuple(Anchor(places.token(a.position), a.kind, a.pinned) for a in first.anchors if a.position <= end)
    return Prompt(reading.tokens, anchors)


def awaited(answer: Message, text: str) -> Message:
    """The message that comes after an answer: the result of its first call, or the user's."""
    calls = answer.get("tool_calls")
    if not calls:
        return {"role": "user", "content": text}
    return {"role": "tool", "tool_call_id": calls[0].get("id"), "name": calls[0]["function"]["name"], "content": text}


def as_returned(history: list[Message], answer: Message) -> Message:
    """The answer as this client will send it back: with its reasoning only where it has done so before. Where it does and the
    template shows it, the slot goes on anyway; where it does not, the reading is needed."""
    returns = any(message.get("reasoning_content") or message.get("reasoning") for message in history)
    return answer if returns else {name: value for name, value in answer.items() if name != "reasoning_content"}


def shared_start(a: str, b: str) -> int:
    """Leading equal characters, by halving over slices, which compare at C speed."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a.startswith(b[:middle]) else (low, middle - 1)
    return low
