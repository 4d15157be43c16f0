"""A catalogue of tools as a tree of groups, each with at most seven branches, and keyword search over all of it.

Groups come from the names: `github__create_issue` and `github__list_issues` are in `github`. A group that is too large is
split by the next word of its names; where there are more than seven groups, neighbours in the alphabet share a branch. The
same tools always give the same tree, so what a model learned of it stays true.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

BRANCHES = 7
TOOLS_A_GROUP = 10
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@dataclass(frozen=True)
class Branch:
    """A node of the tree: a group (it has tools) or a fork (it has branches); never both. `path` names it for open_tools."""

    path: str
    tools: tuple[str, ...] = ()
    branches: tuple["Branch", ...] = ()

    def all_tools(self) -> tuple[str, ...]:
        return self.tools or tuple(name for branch in self.branches for name in branch.all_tools())

    def groups(self) -> Iterator["Branch"]:
        if not self.branches:
            yield self
        for branch in self.branches:
            yield from branch.groups()

    def walk(self) -> Iterator["Branch"]:
        yield self
        for branch in self.branches:
            yield from branch.walk()


@dataclass(frozen=True)
class Catalogue:
    """All function tools by name, in the order in which they came, and the tree over their names. given: everything that came.
    others: what is no function tool; no tree can hold it, so it is always shown."""

    tools: Mapping[str, Mapping[str, Any]]
    root: Branch
    given: tuple[Mapping[str, Any], ...] = ()
    others: tuple[Mapping[str, Any], ...] = ()

    def find(self, path: str) -> Branch | None:
        wanted = path.strip().strip("/").casefold()
        return next((branch for branch in self.root.walk() if branch.path.casefold() == wanted), None)

    def group_of(self, name: str) -> Branch | None:
        return next((group for group in self.root.groups() if name in group.tools), None)

    def search(self, query: str, most: int = 5) -> tuple[str, ...]:
        """Names of the tools that match best: words of the query in name (thrice) and description, rare words first."""
        wanted = set(_terms(query))
        texts = {
            name: Counter(_terms(f"{' '.join([_spaced(name)] * 3)} {_description(tool)}")) for name, tool in self.tools.items()
        }
        spread = Counter(word for words in texts.values() for word in words)
        rarity = {word: math.log(1 + len(texts) / spread[word]) for word in wanted if spread[word]}
        scores = {name: sum(math.log1p(words[w]) * r for w, r in rarity.items()) for name, words in texts.items()}
        found = [name for name in scores if scores[name] > 0]
        return tuple(sorted(found, key=lambda name: (-scores[name], name))[:most])


def catalogue(tools: Sequence[Mapping[str, Any]]) -> Catalogue:
    """The tree over OpenAI function tools; entries without a function name are not in it, a repeated name keeps the first."""
    named: dict[str, Mapping[str, Any]] = {}
    others: list[Mapping[str, Any]] = []
    for tool in tools:
        if name := _function_name(tool):
            named.setdefault(name, tool)
        else:
            others.append(tool)
    words = {name: _words(name) for name in named}
    shared = _shared_prefix(list(words.values()))
    root = _branch("", sorted(named), {name: found[shared:] for name, found in words.items()})
    return Catalogue(named, root, tuple(tools), tuple(others))


def _function_name(tool: Mapping[str, Any]) -> str:
    """The name of a function tool, '' for anything else."""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) and tool.get("type", "function") == "function" else None
    return name if isinstance(name, str) else ""


def _branch(path: str, names: Sequence[str], words: Mapping[str, list[str]], depth: int = 0) -> Branch:
    if len(names) <= TOOLS_A_GROUP and path:
        return Branch(path, tuple(names))
    groups = _grouped(names, words, depth)
    if len(groups) < 2:
        return _chunked(path, names)
    children = [_branch(_joined(path, title), members, words, depth + 1) for title, members in groups.items()]
    return Branch(path, branches=_folded(path, children))


def _grouped(names: Iterable[str], words: Mapping[str, list[str]], depth: int) -> dict[str, list[str]]:
    """By the word at `depth`; groups of one are together in `other`, which comes last."""
    by_word: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_word[words[name][depth] if depth < len(words[name]) else "other"].append(name)
    lone = {word for word, members in by_word.items() if len(members) == 1}
    groups = {word: members for word, members in sorted(by_word.items()) if word not in lone and word != "other"}
    others = sorted([*by_word.get("other", []), *(by_word[word][0] for word in lone - {"other"})])
    return {**groups, "other": others} if others else groups


def _chunked(path: str, names: Sequence[str]) -> Branch:
    """Names that no word tells apart: groups of neighbours, numbered."""
    if len(names) <= TOOLS_A_GROUP:
        return Branch(path, tuple(names))
    chunks = [names[i : i + TOOLS_A_GROUP] for i in range(0, len(names), TOOLS_A_GROUP)]
    groups = [Branch(_joined(path, str(number)), tuple(chunk)) for number, chunk in enumerate(chunks, 1)]
    return Branch(path, branches=_folded(path, groups))


def _folded(path: str, children: Sequence[Branch]) -> tuple[Branch, ...]:
    """At most seven: neighbours share a fork that is named after the first and the last of them."""
    if len(children) <= BRANCHES:
        return tuple(children)
    borders = [len(children) * i // BRANCHES for i in range(BRANCHES + 1)]
    runs = [children[start:end] for start, end in pairwise(borders)]
    forks = [run[0] if len(run) == 1 else Branch(_joined(path, _span(run)), branches=_folded(path, run)) for run in runs]
    return tuple(forks)


def _span(run: Sequence[Branch]) -> str:
    return f"{run[0].path.rpartition('/')[2]}..{run[-1].path.rpartition('/')[2]}"


def _joined(path: str, title: str) -> str:
    return f"{path}/{title}" if path else title


def _shared_prefix(names: Sequence[list[str]]) -> int:
    """How many first words all names have (a namespace like `mcp`); it tells nothing apart."""
    if len(names) < 2:
        return 0
    shared = 0
    while all(len(words) > shared + 1 for words in names) and len({words[shared] for words in names}) == 1:
        shared += 1
    return shared


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)] or [name.lower()]


def _spaced(name: str) -> str:
    return " ".join(_words(name))


def _terms(text: str) -> list[str]:
    """Words of three characters and more, a plural's s taken off, so that "issues" finds "issue"."""
    words = [word.lower() for word in _WORD.findall(text)]
    return [word[:-1] if word.endswith("s") and len(word) > 3 else word for word in words if len(word) > 2]


def _description(tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    return str(function.get("description") or "") if isinstance(function, Mapping) else ""
