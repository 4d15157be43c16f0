"""The tools of one request as the model sees them now: all of them, or what the tool tree has open, and the search tool last.

With the tree (keeper/tooltree.py) the walk is a mark on the archive's path, so the agent's next request finds the same groups
open and its prompt begins with the same tools. Where a request has no mark yet, the newest user message says what to open first.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from keeper.message import History, ToolCall
from keeper.past import Past
from keeper.recall import tool_of
from keeper.toolcatalogue import Catalogue
from keeper.tooltree import Walk, begin, called, navigate, navigation, view, walk_from_json

WALK = "tool_walk"
LOOKED_AT = 32  # newest messages in which the user's words are looked for
NO_ROOM = "There is no room in the window for the tools of {}, so it stays closed. Call a tool that is shown, or answer without."
ENOUGH = "No more groups can be opened in this turn. Call one of the tools that are shown, or answer with what you have."
CLOSED = " {} closed for lack of room; its tools still run when called."


@dataclass(slots=True)
class Belt:
    """Belongs to one request. given: the request's tools. recall: the search tool's name, '' for none. tree: None shows all of
    `given`. forced: the names that the request's tool_choice asks for. most: openings in one turn."""

    given: tuple[dict[str, Any], ...]
    recall: str = ""
    tree: Catalogue | None = None
    walk: Walk = field(default_factory=Walk)
    request: str = ""
    forced: tuple[str, ...] = ()
    most: int = 0
    openings: int = 0
    refused: int = 0  # openings, since the most were made
    saved: Walk | None = None

    @property
    def navigation(self) -> str:
        """The name of the tool that opens groups, '' for none."""
        return navigation(self.tree) if self.tree else ""

    @property
    def hidden(self) -> frozenset[str]:
        """Tools of the keeper's own, whose calls the agent never sees."""
        return frozenset({self.recall, self.navigation} - {""})

    @property
    def shown(self) -> tuple[dict[str, Any], ...]:
        """What a request to the model holds now."""
        tools = self.given if self.tree is None else tuple(dict(tool) for tool in view(self.tree, self.walk, self.forced))
        return (*tools, tool_of(self.recall)) if self.recall else tools

    @property
    def place(self) -> tuple[tuple[str, ...], str]:
        """What `shown` depends on."""
        return self.walk.open, self.walk.here

    def keep_within(self, fits: Callable[[], bool]) -> tuple[str, ...]:
        """Closes groups, the least recently used first, until the tools fit; returns their paths."""
        closed: list[str] = []
        while self.walk.open and not fits():
            closed.append(self.walk.open[0])
            self.walk = replace(self.walk, open=self.walk.open[1:])
        return tuple(closed)

    def answer(self, call: ToolCall, fits: Callable[[], bool]) -> str:
        """The result of a call of open_tools. Groups that `fits` refuses stay closed, others close before the one asked for."""
        assert self.tree is not None
        if self.openings >= self.most:
            self.refused += 1
            return ENOUGH
        self.openings += 1
        before = self.walk
        self.walk, text = navigate(self.tree, before, _arguments(call), self.request)
        wanted = set(self.walk.open[-1:]) - set(before.open)
        closed = self.keep_within(fits)
        if not fits() or (wanted and not wanted <= set(self.walk.open)):
            self.walk = replace(before, fruitless=self.walk.fruitless, asked=self.walk.asked)
            return NO_ROOM.format(", ".join(wanted) or "this group")
        return text + (CLOSED.format(", ".join(closed)) if closed else "")

    def called(self, name: str, fits: Callable[[], bool]) -> None:
        """The model called a tool of the agent's: its group is open from now on, where it fits."""
        walk = called(self.tree, self.walk, name) if self.tree else None
        if walk is not None:
            self.walk = walk
            self.keep_within(fits)

    def save(self, past: Past, place: int) -> None:
        """Puts the walk on the path after `place` messages, where it is not what stands there."""
        if self.tree is not None and self.walk != self.saved:
            past.put(WALK, place, self.walk.as_json())
            self.saved = self.walk


def with_tree(belt: Belt, tree: Catalogue, history: History, past: Past, choice: Any, most: int) -> Belt:
    """The belt with the tree over its tools, at the walk of this history."""
    request = newest_words(history)
    mark = past.latest(WALK)
    saved = walk_from_json(mark.body, tree) if mark else None
    walk = saved if saved is not None else begin(tree, request)
    return replace(belt, tree=tree, walk=walk, saved=saved, request=request, forced=forced(choice), most=most)


def newest_words(history: History) -> str:
    """The text of the newest user message; '' where none is near."""
    near = range(len(history) - 1, max(-1, len(history) - 1 - LOOKED_AT), -1)
    return next((history[index].text for index in near if history[index].role == "user"), "")


def forced(choice: Any) -> tuple[str, ...]:
    """The names in a tool_choice: of the one tool that must be called, or of those that are allowed."""
    if not isinstance(choice, Mapping):
        return ()
    allowed = choice.get("allowed_tools")
    listed = allowed.get("tools") if isinstance(allowed, Mapping) else None
    functions = [tool.get("function") for tool in (choice, *(listed or ())) if isinstance(tool, Mapping)]
    return tuple(str(function.get("name")) for function in functions if isinstance(function, Mapping))


def _arguments(call: ToolCall) -> Mapping[str, Any]:
    try:
        found = json.loads(call.arguments or "{}")
    except ValueError:
        return {"path": call.arguments[:200]}
    return found if isinstance(found, dict) else {"path": str(found)[:200]}
