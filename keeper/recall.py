"""The search tool that the keeper adds to a request and answers itself, and its manners.

The agent never sees the tool, its calls or its results. What goes into the request's `tools` is tool_of(); a call is
{"query": "doma86", "before": 332, "after": 12, "item": 40, "limit": 20}, before, after and item counting in the content's own
numbers alone (Item 332), whatever the place in the history. A result is

    3 matches.
    [item 12, user] The clerk recorded doma86 at 342. | It rose by 5.

each match with the sentence after it, in the order of the history. A list that was cut short says so in its first line. Where the
manners refuse a search the result says why; nothing is searched then.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from keeper.message import ToolCall
from keeper.past import Past
from keeper.search import MOST_COUNTED, Hit, Limits, Matches, terms

NAME = "recall"
DESCRIPTION = (
    "Search the archive of earlier turns, word for word. Use it for what is no longer in view: old values, who did something, "
    "details. Give names exactly; fewer words find more."
)
NUMBERED = {
    "before": "only items numbered below this",
    "after": "only items numbered above this",
    "item": "only the item with this number",
}
MOST_SHOWN = 100
REPEATED = "You sent this search just now and its result has not changed. Use what it showed, or search for something else."
THIRD_TIME = "You sent this search twice already and nothing has been added to the archive since. Its results are above."
STOP = "Stop searching. Answer now with what you have; say so where you do not know."
NO_ROOM = "The window has no room for more results. Answer now with what you have."
BAD = 'A search is {"query": "words"}, with numbers for before, after, item and limit. This one could not be read: '


@dataclass(frozen=True, slots=True)
class Query:
    """A search as it was asked for. Two queries are the same search where their words, in any order, and limits are."""

    text: str
    limits: Limits = field(default_factory=Limits)
    limit: int = 0

    @property
    def same(self) -> tuple[object, ...]:
        return (tuple(sorted(terms(self.text))), self.limits, self.limit)


def tool_of(name: str) -> dict[str, Any]:
    """The tool's schema. It never changes for an agent: tools stand first in a prompt, and a change there re-reads it all."""
    properties: dict[str, Any] = {"query": {"type": "string", "description": "the words to find"}}
    properties |= {name: {"type": "integer", "description": said} for name, said in NUMBERED.items()}
    properties["limit"] = {"type": "integer", "description": "how many matches to show"}
    parameters = {"type": "object", "properties": properties, "required": ["query"]}
    return {"type": "function", "function": {"name": name, "description": DESCRIPTION, "parameters": parameters}}


def tool_name(taken: Sequence[str]) -> str:
    """recall, or where a tool of the agent has that name, the first of recall_archive, recall_archive_2 … that is free."""
    names = [NAME, "recall_archive", *(f"recall_archive_{n}" for n in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)


def query_of(call: ToolCall) -> Query | str:
    """The search that a call asks for, or what is wrong with it. Numbers may come as strings."""
    try:
        found = json.loads(call.arguments or "{}")
    except ValueError:
        return f"{BAD}{call.arguments[:200]}"
    text = found.get("query") if isinstance(found, dict) else None
    if not isinstance(text, str) or not terms(text):
        return f"{BAD}{call.arguments[:200]}"
    numbers = [_number(found.get(name)) for name in ("before", "after", "item", "limit")]
    if any(isinstance(number, str) for number in numbers):
        return f"{BAD}{call.arguments[:200]}"
    before, after, item, limit = (number if isinstance(number, int) else None for number in numbers)
    return Query(text, Limits(before, after, item), max(0, min(limit or 0, MOST_SHOWN)))


def _number(value: object) -> int | str | None:
    """A whole number, None where none is given, the text where it is none."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return str(value)
    try:
        return int(value)
    except (ValueError, OverflowError):
        return str(value)


@dataclass(slots=True)
class Manners:
    """Which searches are answered. New content means a new Manners; one turn without new content keeps its own."""

    counts: dict[tuple[object, ...], int] = field(default_factory=dict)
    last: tuple[object, ...] | None = None
    refused: int = 0  # in a row
    searches: int = 0

    def refusal(self, query: Query, most: int) -> str | None:
        """Why this search is not made, or None; counts it either way. The third refusal in a row says to answer."""
        again, times = query.same == self.last, self.counts.get(query.same, 0)
        self.last, self.counts[query.same] = query.same, times + 1
        self.searches += 1
        if not again and times < 2 and self.searches <= most:
            self.refused = 0
            return None
        self.refused += 1
        if self.stopped or self.searches > most:
            return STOP
        return REPEATED if again else THIRD_TIME

    @property
    def stopped(self) -> bool:
        """Three refusals in a row: the next reply is to be an answer, and is drawn with some randomness."""
        return self.refused >= 3


def answer(past: Past, query: Query, default_limit: int) -> str:
    """The result of one search as the model reads it."""
    limited = query.limits != Limits()
    if limited and not past.numbered():
        return "Nothing in this archive carries numbers of its own, so before, after and item cannot be used. Search by words."
    return rendered(past.search(query.text, query.limits, query.limit or default_limit), query)


def rendered(matches: Matches, query: Query) -> str:
    """The matches, the first line saying whether they are all."""
    if not matches.hits:
        return "Nothing found. Every word must occur: try one word alone, spelt exactly."
    return "\n".join([_heading(matches, query), *(_line(hit) for hit in matches.hits)])


def _heading(matches: Matches, query: Query) -> str:
    shown = len(matches.hits)
    if shown == matches.total:
        return f"{shown} match." if shown == 1 else f"{shown} matches."
    which = "best"
    if query.limits.before is not None:
        which = f"nearest before item {query.limits.before}"
    elif query.limits.after is not None:
        which = f"nearest after item {query.limits.after}"
    total = matches.total if matches.total <= MOST_COUNTED else f"more than {MOST_COUNTED}"
    return f"CUT SHORT: {total} matches, these are the {shown} {which}. Narrow the search to see others."


def _line(hit: Hit) -> str:
    where = hit.role if hit.item is None else f"item {hit.item}, {hit.role}"
    return f"[{where}] {hit.text}" + (f" | {hit.following}" if hit.following else "")


def clipped(text: str, characters: int, from_top: bool = False) -> str:
    """A result cut to fit: a first line that says so, then whole lines, the last ones unless `from_top`."""
    lines = text.split("\n")
    kept: list[str] = []
    room = characters - 80
    for line in lines[1:] if from_top else reversed(lines[1:]):
        if len(line) + 1 > room:
            break
        kept.append(line)
        room -= len(line) + 1
    kept = kept if from_top else kept[::-1]
    return "\n".join([f"CUT SHORT for lack of room: {len(kept)} of {len(lines) - 1} lines shown.", *kept]) if kept else NO_ROOM
