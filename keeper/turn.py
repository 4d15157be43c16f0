"""One request of an agent from its view to its reply, with the searches and opened tool groups between that the agent never sees.

A turn may take several model calls: a search is answered and the model goes on, a reply that was all thinking is asked for again
without. take() is told each reply and says what to send next (`body`) or that the turn is finished (`reply`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from keeper.archive import Archive
from keeper.message import History, Message, ToolCall, tool
from keeper.model import Reply, Usage
from keeper.past import Past
from keeper.questions import answers
from keeper.recall import NO_ROOM, Manners, Query, answer, clipped, query_of
from keeper.search import Limits
from keeper.strategies.base import Situation, View
from keeper.thinking import with_thinking

SEARCHES = "searches"
SOME_RANDOMNESS = 0.7  # temperature of the one reply after the third refusal in a row: the same sampling gives the same search
TOKENS = frozenset({"prompt_tokens", "cached_tokens", "completion_tokens"})
AS_LONG_AS_AN_OPENING = "x " * 256
SHOWN_FOR = 8  # messages: a turn that goes on longer than that has moved on
SHOWN_AGAIN = "\n\nYOUR EARLIER SEARCHES FOR THIS (shown again, the reply after them was empty)\n"


@dataclass(frozen=True, slots=True)
class Shown:
    """Searches to show again at the end of the message before `place`, and what they were."""

    place: int
    text: str
    queries: tuple[Query, ...]


def shown_again(history: History, past: Past) -> Shown | None:
    """The searches of a turn that ended empty, where no reply of any content has come since (lesson 8)."""
    mark = past.latest(SEARCHES)
    if mark is None or len(history) - mark.place > SHOWN_FOR or any(answers(m) for m in history[mark.place :]):
        return None
    queries = tuple(Query(text, Limits(*limits), limit) for text, limits, limit in mark.body["queries"])
    return Shown(mark.place, SHOWN_AGAIN + mark.body["text"], queries)


def tool_names(tools: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names of a request's tools."""
    functions = (found.get("function") or found for found in tools)
    return tuple(str(function.get("name", "")) for function in functions if isinstance(function, Mapping))


class Tally(Protocol):
    """Where a turn's counts go."""

    def __call__(self, counters: Mapping[str, int]) -> None: ...


class Turn:
    """See the module. `body` is the next request to send, until `finished`; then `reply` is what the agent gets."""

    def __init__(
        self, archive: Archive, situation: Situation, view: View, body: dict[str, Any], tally: Tally, shown: Shown | None
    ) -> None:
        self.view = view
        self.body = body
        self.finished = False
        self.reply = Reply(Message("assistant"))
        self.usage = Usage()
        self._archive = archive
        self._earlier = situation.past.upto(len(situation.history) - 1)  # the newest message is in view
        self._situation = situation
        self._tally = tally
        self._manners = Manners()
        for query in shown.queries if shown else ():
            self._manners.refusal(query, situation.config.searches_a_turn)
        self._belt = situation.belt
        self.hidden = self._belt.hidden  # names of tools whose calls the agent does not see
        self._sampling = body
        self._thinking_dropped = False
        self._said: list[str] = []
        self._found: list[tuple[Query, str]] = []
        self._added: list[Message] = []
        self._from_top: set[str | None] = set()  # results whose first lines are the nearest to what was asked for

    def report(self) -> dict[str, Any]:
        """What was done for this request, for logs and clients: the view, every call's tokens, what was counted."""
        return {
            "view_from": self.view.start,
            "cut": self.view.cut,
            "reason": self.view.reason,
            "prompt_tokens": self.usage.prompt,
            "cached_tokens": self.usage.cached,
            "completion_tokens": self.usage.completion,
            **self._situation.counters,
        }

    # --- the next step --------------------------------------------------------------------------------------------------

    def take(self, reply: Reply) -> None:
        """What becomes of a finished model reply: another call (see `body`) or the end of the turn."""
        self.usage += reply.usage
        self._add({"calls": 1, **_spent(reply.usage)})
        if reply.thought_it_all_away and not self._thinking_dropped:
            self._thinking_dropped = True
            self._add({"thinking_dropped": 1})
            self.body, self._sampling = with_thinking(self.body, False), with_thinking(self._sampling, False)
            return
        mine = [call for call in reply.message.tool_calls if call.name in self.hidden]
        others = tuple(call for call in reply.message.tool_calls if call not in mine)
        self._said.append(reply.message.text)
        if mine and not self._gave_up():
            self._go_on(reply.message, mine, others)
            if not others:
                return
        self._finish(reply, others)

    def _add(self, counters: Mapping[str, int]) -> None:
        """Counts for /metrics and for this request's report (tokens stand there under their own names)."""
        self._tally(counters)
        for name in counters.keys() - TOKENS:
            self._situation.add(name, counters[name])

    def _gave_up(self) -> bool:
        """It searched or opened on after it was told, twice, to answer: the turn ends with what it said."""
        return (
            self._belt.refused > 2
            or self._manners.refused > 4
            or self._manners.searches > self._situation.config.searches_a_turn + 2
        )

    def _go_on(self, message: Message, mine: Sequence[ToolCall], others: tuple[ToolCall, ...]) -> None:
        """Answers the calls of the keeper's tools; beside calls that the agent must answer, searches wait for its next request,
        and the groups that were opened are open in it."""
        calls = replace(message.without_reasoning(), tool_calls=tuple(mine))
        results = [
            (call, self._opened(call, calls) if call.name == self._belt.navigation else self._result(call)) for call in mine
        ]
        if others:
            return
        self._added += [calls, *(tool(call.id, text) for call, text in results)]
        self._make_room()
        if any(call.name == self._belt.navigation for call in mine):
            self._sampling = {**self._sampling, "tools": list(self._belt.shown)}
        sampling = {**self._sampling, "temperature": max(SOME_RANDOMNESS, self._sampling.get("temperature") or 0)}
        self.body = {**(sampling if self._manners.stopped else self._sampling), "messages": self._messages()}

    def _opened(self, call: ToolCall, calls: Message) -> str:
        """What the model is told after open_tools. A group opens only where its tools fit beside what this turn has shown."""
        refused = self._belt.refused

        def fits() -> bool:
            shown = (*self.view.messages, *self._added, calls, tool(call.id, AS_LONG_AS_AN_OPENING))
            return self._situation.tools_fit() and self._situation.count(shown) <= self._situation.limit

        text = self._belt.answer(call, fits)
        self._add({"tool_openings_refused" if self._belt.refused > refused else "tool_openings": 1})
        return text

    def _result(self, call: ToolCall) -> str:
        query = query_of(call)
        if isinstance(query, str):
            return query
        refusal = self._manners.refusal(query, self._situation.config.searches_a_turn)
        self._add({"searches_refused" if refusal else "searches": 1})
        if refusal:
            return refusal
        if query.limits.after is not None and query.limits.before is None:
            self._from_top.add(call.id)
        found = answer(self._earlier, query, self._situation.config.search_limit)
        self._found.append((query, found))
        return found

    def _messages(self) -> list[dict[str, Any]]:
        return [message.as_dict() for message in (*self.view.messages, *self._added)]

    def _tokens(self) -> int:
        return self._situation.count((*self.view.messages, *self._added))

    def _make_room(self) -> None:
        """Results that do not fit are cut short, the longest first; where that is not enough the oldest exchange goes."""
        while self._tokens() > self._situation.limit:
            longest = max(range(len(self._added)), key=lambda place: _cuttable(self._added[place]))
            if _cuttable(self._added[longest]) > len(NO_ROOM):
                text, top = self._added[longest].text, self._added[longest].tool_call_id in self._from_top
                self._added[longest] = self._added[longest].with_text(clipped(text, len(text) * 2 // 3, top))
            else:
                del self._added[: 1 + sum(1 for _ in _results(self._added))]
                if not self._added:
                    return

    def _finish(self, reply: Reply, calls: tuple[ToolCall, ...]) -> None:
        text = "".join(self._said)
        message = replace(reply.message.with_text(text), tool_calls=calls)
        finish = "stop" if reply.finish == "tool_calls" and not calls else reply.finish
        self.finished, self.reply = True, replace(reply, message=message, finish=finish)
        for call in calls:
            self._belt.called(call.name, self._situation.tools_fit)
        self._belt.save(self._situation.past, len(self._situation.history))
        if self._found and (calls or not text.strip()):
            self._remember_searches()
        if not message.empty:
            self._archive.append(self._situation.past.track, [message])

    def _remember_searches(self) -> None:
        """What only this turn saw is kept for the next request, because its reply does not carry it."""
        text = "\n\n".join(f"recall({query.text})\n{found}" for query, found in self._found)
        most = int(self._situation.limit * self._situation.config.kept_share) * 3  # characters, at three a token
        queries = [[q.text, [q.limits.before, q.limits.after, q.limits.item], q.limit] for q, _ in self._found]
        place = len(self._situation.history)
        self._situation.past.put(
            SEARCHES, place, {"text": text if len(text) <= most else clipped("\n" + text, most), "queries": queries}
        )


def _cuttable(message: Message) -> int:
    return len(message.text) if message.role == "tool" else 0


def _results(added: Sequence[Message]) -> Iterable[Message]:
    """The results of the first exchange."""
    for message in added[1:]:
        if message.role != "tool":
            return
        yield message


def _spent(usage: Usage) -> dict[str, int]:
    return {"prompt_tokens": usage.prompt, "cached_tokens": usage.cached, "completion_tokens": usage.completion}
