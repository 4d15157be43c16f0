"""The keeper: a client's whole history in, a view that fits the window out; the reply recorded, and searches answered between.

    turn = await keeper.prepare(body)
    while not turn.finished:
        turn.take(await complete(turn.body))        # or streamed: turn.passes(chunk) says what the agent may see of it
    turn.reply

It archives before anything else, so what the agent sent is on disk before a model call can fail.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from keeper.archive import Archive
from keeper.belt import Belt, with_tree
from keeper.config import KeeperConfig
from keeper.errors import BadHistory, KeeperError, MessageTooLarge, UpstreamFailed
from keeper.message import History, Message
from keeper.model import Body, Complete, CountTokens, Reply
from keeper.past import Glimpse, Past
from keeper.recall import tool_name
from keeper.strategies.base import Situation, Strategy, View
from keeper.strategies.registry import make
from keeper.thinking import for_main_call, for_own_call, with_thinking
from keeper.toolcatalogue import catalogue
from keeper.tooltree import whole
from keeper.turn import Turn, shown_again, tool_names

PASS_THROUGH = "pass_through"  # the one strategy that promises nothing and changes nothing
NOTED_AHEAD = ("in_place", "rewrite", "tope_notes")  # strategies whose marks stand before the newest message
TELLING = 8  # messages by which conversations are told apart for waiting: many agents share a system prompt
# what a call of the keeper's own does without: it is one plain answer, whatever form the agent's answers have
NOT_FOR_OWN_CALLS = (
    "stream",
    "stream_options",
    "response_format",
    "stop",
    "n",
    "max_completion_tokens",
    "logprobs",
    "top_logprobs",
)


class Keeper:
    """One archive, one window, one strategy; any number of conversations at once. All methods belong to one event loop."""

    def __init__(
        self,
        config: KeeperConfig,
        complete: Complete,
        count_tokens: CountTokens,
        archive: Archive | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        self.config = config
        self.archive = archive or Archive(config.root)
        self.strategy = strategy or make(config.strategy)
        self.counters: dict[str, int] = {}
        self._complete = complete
        self._count_tokens = count_tokens
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    async def prepare(self, body: Body, session: str | None = None, complete: Complete | None = None) -> Turn:
        """Archives the request's history and makes the view that the model is to see.

        `complete` makes the keeper's own calls for this request in place of the keeper's (a proxy calls with the client's key).

        Raises BadHistory (a message cannot be read), MessageTooLarge and WindowTooSmall (no view fits), ArchiveFailed, and
        UpstreamFailed where notes had to be taken and could not be. Two requests of one conversation wait for one another here,
        so that notes are never taken twice for the same turns.
        """
        raw = body.get("messages")
        if not isinstance(raw, list) or not raw:
            raise BadHistory("a request needs at least one message", "messages")
        history = History(raw, reasoning=self.config.keep_reasoning or self.strategy.name == PASS_THROUGH)
        track = await asyncio.to_thread(self.archive.enter, history, session)
        past = Past(self.archive, track)
        searches = shown_again(history, past)
        if searches:
            history = history.with_added({searches.place - 1: searches.text})
        situation = self._situation(body, history, past, complete or self._complete)
        async with self._lock(track.at(min(TELLING, track.length) - 1).branch):
            view = await self.strategy.view(situation)
        self._guard(situation, view)
        situation.belt.save(past, len(history))  # so that the groups opened first stay open
        sent = for_main_call(self._body(body, view.messages, situation.belt.shown), self.config, history)
        self._count({"requests": 1, **situation.counters})
        return Turn(self.archive, situation, view, sent, self._count, searches)

    async def foresee(
        self, body: Body, reply: Message, awaited: Body, session: str | None, complete: Complete
    ) -> tuple[dict[str, Any], bool] | None:
        """The request that would be sent if `awaited` came after `reply` to the request `body`, and whether it is a cut's: notes
        are taken and the window is cut here already where that message would force it. None where no view can be made yet, or by
        this strategy only when the message is there.

        The reply is archived and the awaited message is not; `complete` makes the calls. A call that fails leaves everything
        as it was.
        """
        raw = [*body["messages"], reply.as_dict()]
        reads = self.config.keep_reasoning or self.strategy.name == PASS_THROUGH
        track = await asyncio.to_thread(self.archive.enter, History(raw, reasoning=reads), session)
        history = History([*raw, awaited], reasoning=reads)
        situation = self._situation(body, history, Glimpse(self.archive, track), self._ahead(complete))
        try:
            async with self._lock(track.at(min(TELLING, track.length) - 1).branch):
                view = await self.strategy.view(situation)
        except KeeperError:
            return None
        finally:
            self._count(situation.counters)
        return for_main_call(self._body(body, view.messages, situation.belt.shown), self.config, history), view.cut

    def _ahead(self, complete: Complete) -> Complete:
        """Calls are made ahead only where their result can be kept before the next message is there."""
        return complete if self.strategy.name in NOTED_AHEAD else refused

    def _lock(self, branch: int) -> asyncio.Lock:
        lock = self._locks.get(branch)
        if lock is None:
            lock = self._locks[branch] = asyncio.Lock()
        return lock

    def _situation(self, body: Body, history: History, past: Past, complete: Complete) -> Situation:
        belt = self._belt(body, history, past)
        wanted = body.get("max_completion_tokens") or body.get("max_tokens")
        limit = self.config.window - self.config.reserve(wanted if isinstance(wanted, int) else None)
        counted: dict[tuple[object, tuple[Message, ...]], int] = {}

        def count(messages: Sequence[Message]) -> int:
            key = belt.place, tuple(messages)
            if key not in counted:
                counted[key] = self._count_tokens([message.as_dict() for message in messages], belt.shown)
            return counted[key]

        async def ask(messages: Sequence[Message], max_tokens: int) -> Reply:
            own = {key: value for key, value in self._body(body, messages, belt.shown).items() if key not in NOT_FOR_OWN_CALLS}
            sent = for_own_call({**own, "max_tokens": max_tokens}, self.config)
            reply = await self._own_call(complete, sent)
            if reply.thought_it_all_away:
                self._count({"thinking_dropped": 1})
                reply = await self._own_call(complete, with_thinking(sent, False))
            return reply

        situation = Situation(history, past, self.config, limit, count, ask, belt)
        belt.keep_within(situation.tools_fit)
        return situation

    def _belt(self, body: Body, history: History, past: Past) -> Belt:
        """The request's tools, and the keeper's own where calls of them can be answered."""
        given = body.get("tools") or []
        usable = isinstance(given, list) and all(
            isinstance(tool, dict) for tool in given
        )  # what is not is for the upstream to refuse
        if not usable or body.get("n") not in (None, 1):
            return Belt(tuple(given) if usable else ())
        belt = Belt(tuple(given), tool_name(tool_names(given)) if self.strategy.recalls else "")
        tree = catalogue(belt.given) if self.config.tool_tree and self.strategy.name != PASS_THROUGH else None
        if tree is None or whole(tree):
            return belt
        return with_tree(belt, tree, history, past, body.get("tool_choice"), self.config.openings_a_turn)

    async def _own_call(self, complete: Complete, body: Body) -> Reply:
        reply = await complete(body)
        self._count({"own_calls": 1, "own_prompt_tokens": reply.usage.prompt, "own_cached_tokens": reply.usage.cached})
        self._count({"own_completion_tokens": reply.usage.completion})
        return reply

    @staticmethod
    def _body(body: Body, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {**body, "messages": [message.as_dict() for message in messages], **({"tools": list(tools)} if tools else {})}

    def _guard(self, situation: Situation, view: View) -> None:
        """A view that does not fit never leaves, whatever a strategy does; pass-through promises nothing."""
        if self.strategy.name == PASS_THROUGH:
            return
        tokens = situation.count(view.messages)
        if tokens > situation.limit:
            raise MessageTooLarge(len(situation.history) - 1, tokens, situation.limit)

    def _count(self, counters: Mapping[str, int]) -> None:
        for name, n in counters.items():
            self.counters[name] = self.counters.get(name, 0) + n

    def close(self) -> None:
        self.archive.close()


async def refused(_: Body) -> Reply:
    """A call that is not made. Raises UpstreamFailed."""
    raise UpstreamFailed("no call is made for a message that is only awaited")
