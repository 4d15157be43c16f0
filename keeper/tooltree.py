"""A bounded view of a large tool catalogue: the catalogue stays whole, the model sees a few open groups and `open_tools`.

    seven branches shown, four groups open; the least recently used group closes when a fifth opens
    a catalogue of at most four groups is shown whole, with nothing to open
    the likeliest group is open from the start, by the words of the request and by what was useful before
    a known tool runs at once, shown or not, and opens its group: closing takes advertising away, never the tool
    after four navigation rounds in a row without a useful call, the next one is answered with a search over everything

Tools stand at the very beginning of a prompt, so a change of the view makes the whole prompt be read again. Hence groups
close only when another needs the room, and a view is a pure function of the walk.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from keeper.toolcatalogue import Branch, Catalogue

OPEN_TOOLS = "open_tools"
OPEN_GROUPS = 4
FRUITLESS_ROUNDS = 4
_NAMES_SHOWN = 4
_LEARNED_WEIGHT = 0.5


@dataclass(frozen=True)
class Walk:
    """Where a conversation stands in the tree. open: paths of open groups, the least recently used first. here: the fork whose
    branches are shown. fruitless: navigation rounds since the last useful call. useful: group -> useful calls so far, learned
    across conversations. asked: what the rounds since then looked for, for the search."""

    open: tuple[str, ...] = ()
    here: str = ""
    fruitless: int = 0
    useful: Mapping[str, int] = field(default_factory=dict)
    asked: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "open": list(self.open),
            "here": self.here,
            "fruitless": self.fruitless,
            "useful": dict(self.useful),
            "asked": list(self.asked),
        }


def walk_from_json(found: Mapping[str, Any], catalogue: Catalogue) -> Walk:
    """What as_json() gave, without the groups that the catalogue has no more: they would hold places that others need."""
    groups = {group.path for group in catalogue.root.groups()}
    opened = tuple(path for path in found["open"] if path in groups)
    useful = {path: n for path, n in found["useful"].items() if path in groups}
    here = found["here"] if catalogue.find(found["here"]) else ""
    return Walk(opened, here, found["fruitless"], useful, tuple(found["asked"]))


class Answer(NamedTuple):
    """What the model is told after open_tools, and the walk after it."""

    walk: Walk
    text: str


def begin(catalogue: Catalogue, request: str, useful: Mapping[str, int] | None = None) -> Walk:
    """A walk with the group opened that the request's words point to, weighed by what was useful before; none where nothing
    points anywhere, or nothing was said. useful: what an earlier walk learned."""
    learned = {path: n for path, n in (useful or {}).items() if catalogue.find(path)}
    if not re.search(r"\w", request):
        return Walk(useful=learned)
    votes: dict[str, float] = {path: _LEARNED_WEIGHT * n / (1 + n) for path, n in learned.items()}
    for rank, name in enumerate(catalogue.search(request)):
        if group := catalogue.group_of(name):
            votes[group.path] = votes.get(group.path, 0.0) + 1 / (1 + rank)
    best = max(votes, key=lambda path: (votes[path], path), default=None)
    return Walk(open=(best,) if best is not None else (), useful=learned)


def whole(catalogue: Catalogue) -> bool:
    """Whether all of it may be shown: its groups could be open at once."""
    return len(list(catalogue.root.groups())) <= OPEN_GROUPS


def view(catalogue: Catalogue, walk: Walk, forced: Collection[str] = ()) -> tuple[Mapping[str, Any], ...]:
    """The tools to show: open_tools first, then what is no function tool, then those of the open groups in the order of the
    tree and the `forced` ones, whose groups may be closed. A catalogue of few groups is shown as it came."""
    if whole(catalogue):
        return catalogue.given
    groups = [group for group in catalogue.root.groups() if group.path in walk.open]
    names = dict.fromkeys([*(name for group in groups for name in group.tools), *(n for n in forced if n in catalogue.tools)])
    return (open_tools(catalogue, walk), *catalogue.others, *(catalogue.tools[name] for name in names))


def navigation(catalogue: Catalogue) -> str:
    """What the navigation tool is called: open_tools, or where a tool has that name the first of open_tools_2 … that is free."""
    taken = {*catalogue.tools, *(str(tool.get("name")) for tool in catalogue.others)}
    names = [OPEN_TOOLS, *(f"{OPEN_TOOLS}_{n}" for n in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)


def open_tools(catalogue: Catalogue, walk: Walk) -> dict[str, Any]:
    """The navigation tool; its description is the view of the tree from where the walk stands."""
    lines = "\n".join(f"- {_branch_line(branch, walk)}" for branch in _here(catalogue, walk).branches)
    back = '\nOpen "" for the first level.' if walk.here else ""
    return {
        "type": "function",
        "function": {
            "name": navigation(catalogue),
            "description": f"More tools than these exist. Opens a group of them, or says what a branch holds.\n{lines}{back}",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "a branch named above"},
                    "query": {"type": "string", "description": "or what the tool should do, to search all of them"},
                },
            },
        },
    }


def navigate(catalogue: Catalogue, walk: Walk, arguments: Mapping[str, Any], request: str = "") -> Answer:
    """Answers a call of open_tools. request: the user's words, which the search after four fruitless rounds uses as well."""
    path, query = (str(arguments.get(key) or "").strip() for key in ("path", "query"))
    walk = replace(walk, fruitless=walk.fruitless + 1, asked=(*walk.asked, query or path)[-FRUITLESS_ROUNDS:])
    if walk.fruitless > FRUITLESS_ROUNDS:
        return _searched(
            catalogue,
            walk,
            " ".join((*walk.asked, request)),
            "Four rounds of opening led to no call, so all tools were searched. ",
        )
    if query:
        return _searched(catalogue, walk, query, "")
    branch = catalogue.find(path)
    if branch is None:
        return _searched(catalogue, walk, path, f"There is no branch {path!r}. ")
    return _opened(walk, branch) if not branch.branches else _entered(walk, branch)


def called(catalogue: Catalogue, walk: Walk, name: str) -> Walk | None:
    """The walk after the model called `name`: its group is open and has proved useful; None where no such tool exists.

    The call itself runs at once, whether the tool was shown or not.
    """
    group = catalogue.group_of(name)
    if group is None:
        return None
    useful = {**walk.useful, group.path: walk.useful.get(group.path, 0) + 1}
    return replace(_with_open(walk, group.path), fruitless=0, asked=(), useful=useful)


def _with_open(walk: Walk, path: str) -> Walk:
    kept = tuple(other for other in walk.open if other != path)
    return replace(walk, open=(*kept, path)[-OPEN_GROUPS:])


def _opened(walk: Walk, group: Branch) -> Answer:
    names = ", ".join(group.tools)
    closed = set(walk.open) - set(_with_open(walk, group.path).open)
    note = f" {', '.join(sorted(closed))} closed; its tools still run when called." if closed else ""
    return Answer(_with_open(walk, group.path), f"Open: {group.path or 'all tools'}: {names}. Call one of them now.{note}")


def _entered(walk: Walk, branch: Branch) -> Answer:
    lines = "\n".join(f"- {_branch_line(child, walk)}" for child in branch.branches)
    return Answer(replace(walk, here=branch.path), f"{branch.path or 'The first level'} has these branches:\n{lines}")


def _searched(catalogue: Catalogue, walk: Walk, query: str, why: str) -> Answer:
    """The best matches, with the group of the best one opened."""
    names = catalogue.search(query)
    if not names:
        return Answer(walk, f"{why}No tool matches {query!r}. Branches: {', '.join(_titles(_here(catalogue, walk).branches))}.")
    group = catalogue.group_of(names[0])
    found = "\n".join(f"- {name}: {_first_sentence(catalogue, name)}" for name in names)
    opened = _with_open(walk, group.path) if group else walk
    return Answer(opened, f"{why}Tools that match, best first; each can be called now:\n{found}")


def _here(catalogue: Catalogue, walk: Walk) -> Branch:
    """The fork whose branches are shown; the first level where a saved path is no longer in the catalogue."""
    found = catalogue.find(walk.here)
    return found if found is not None and found.branches else catalogue.root


def _branch_line(branch: Branch, walk: Walk) -> str:
    names = branch.all_tools()
    more = ", …" if len(names) > _NAMES_SHOWN else ""
    state = "open, " if branch.path in walk.open else ""
    return f"{branch.path} ({state}{len(names)} tools: {', '.join(names[:_NAMES_SHOWN])}{more})"


def _titles(branches: Sequence[Branch]) -> list[str]:
    return [branch.path for branch in branches]


def _first_sentence(catalogue: Catalogue, name: str) -> str:
    function = catalogue.tools[name].get("function")
    text = str(function.get("description") or "") if isinstance(function, Mapping) else ""
    return text.split("\n")[0].split(". ")[0][:160] or "no description"
