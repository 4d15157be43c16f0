"""The views that a keeper may show next, made while nobody waits: the one that grows, and the one after a cut that is near.

A cut is near when a message as long as the newest ones would force it. Then its notes are taken now, by a call that nobody waits
for, and the view after it is read before it is needed; otherwise both would wait for the client's next request.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.errors import EngineStopped
from engine.foresight import Kind, Prompt
from engine.request import Exact
from keeper.keeper import Keeper, refused
from keeper.message import Message
from keeper.model import Complete
from server.foresight import PROBES, awaited, shared_prompt
from server.runtime import Runtime
from server.schemas import ChatRequest

Result = TypeVar("Result")
LOOK_SECONDS = 0.5
NEWEST = 4  # messages of others that tell how long the next one may be


@dataclass(frozen=True, slots=True)
class Outlook:
    """What may follow `reply` to the request `body`. Its methods are called on the background's thread, the keeper lives on
    `loop`. `complete` asks the model while nobody waits."""

    runtime: Runtime
    keeper: Keeper
    loop: asyncio.AbstractEventLoop
    body: Mapping[str, Any]
    reply: Message
    session: str | None
    complete: Complete

    def next_view(self) -> tuple[Kind, Prompt] | None:
        """The next view as far as it needs no call."""
        return self._view(refused)

    def after_a_cut(self) -> tuple[Kind, Prompt] | None:
        """The view after a cut that is near, None while none is."""
        found = self._view(self.complete)
        return found if found is not None and found[0] is Kind.CUT else None

    def _view(self, complete: Complete) -> tuple[Kind, Prompt] | None:
        length = expected_length(self.body["messages"])
        one = awaited(self.reply.as_dict(), PROBES[0] * length)
        work = self.keeper.foresee(self.body, self.reply, one, self.session, complete)
        found = result_of(work, self.loop)
        if found is None:
            return None
        sent, cut = found
        request = ChatRequest.model_validate(sent)
        messages = request.raw_messages()
        last = {**messages[-1], "content": PROBES[1] + str(messages[-1]["content"])[1:]}
        exact = Exact(request.exact or self.runtime.settings.exact)
        prompt = shared_prompt(self.runtime, request, messages, [*messages[:-1], last], exact)
        return None if prompt is None else (Kind.CUT if cut else Kind.ANTICIPATE, prompt)


def result_of(work: Coroutine[Any, Any, Result], loop: asyncio.AbstractEventLoop) -> Result:
    """What `work` returns on a loop of another thread. Raises EngineStopped when the loop ends first: a server that is closing
    waits for this thread, and nobody would run the work any more."""
    future = asyncio.run_coroutine_threadsafe(work, loop)
    while not future.done() and loop.is_running():
        wait((future,), LOOK_SECONDS)
    if not future.done():
        raise EngineStopped("the server is closing")
    return future.result()


def expected_length(messages: list[dict[str, Any]]) -> int:
    """Characters of the next message: as many as the longest of the newest that were not the model's."""
    theirs = [message for message in messages if message.get("role") in ("user", "tool")]
    return max((len(str(message.get("content") or "")) for message in theirs[-NEWEST:]), default=1) or 1
