"""The tool tree: a bounded view, navigation, and tools that run whether they are shown or not."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keeper.toolcatalogue import BRANCHES, TOOLS_A_GROUP, Branch, Catalogue, catalogue
from keeper.tooltree import FRUITLESS_ROUNDS, OPEN_GROUPS, OPEN_TOOLS, Walk, begin, called, navigate, view, walk_from_json


def tool(name: str, description: str = "") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {"type": "object"}}}


def large() -> Catalogue:
    """Sixty tools in twelve namespaces."""
    verbs = ["create", "list", "delete", "update", "search"]
    spaces = ["github", "files", "browser", "mail", "calendar", "sql", "shell", "maps", "music", "photos", "weather", "wiki"]
    return catalogue(
        [
            tool(f"mcp__{space}__{verb}_entry", f"{verb.title()} an entry in {space}. More words.")
            for space in spaces
            for verb in verbs
        ]
    )


def names(tools: Any) -> list[str]:
    return [found["function"]["name"] for found in tools]


def depths(branch: Branch, depth: int = 0) -> list[int]:
    return [depth] if not branch.branches else [d for child in branch.branches for d in depths(child, depth + 1)]


def test_every_tool_is_in_one_group_and_no_fork_has_more_than_seven_branches() -> None:
    known = large()
    assert sorted(known.root.all_tools()) == sorted(known.tools)
    assert all(len(branch.branches) <= BRANCHES for branch in known.root.walk())
    assert max(depths(known.root)) == 2


def test_a_catalogue_of_one_group_is_shown_whole_with_nothing_to_open() -> None:
    small = catalogue([tool("read_file"), tool("write_file")])
    assert names(view(small, begin(small, "hello"))) == ["read_file", "write_file"]


def test_a_catalogue_of_at_most_four_groups_is_left_whole_in_its_order() -> None:
    given: list[dict[str, Any]] = [
        {"type": "web_search"},
        *(tool(f"{space}_{n}") for n in range(8, 0, -1) for space in ("mail", "files")),
    ]
    assert len(list(catalogue(given).root.groups())) == 2
    assert view(catalogue(given), begin(catalogue(given), "hm")) == tuple(given)


def test_what_is_no_function_tool_is_shown_whatever_is_open() -> None:
    known = catalogue([*large().tools.values(), {"type": "web_search"}, {"type": "custom", "function": {"name": "x"}}])
    assert view(known, Walk())[1:] == ({"type": "web_search"}, {"type": "custom", "function": {"name": "x"}})
    assert "x" not in known.tools


def test_the_navigation_tool_makes_way_for_a_tool_of_its_name() -> None:
    own: list[dict[str, Any]] = [tool(OPEN_TOOLS), {"type": "custom", "name": "open_tools_2"}]
    known = catalogue([*large().tools.values(), *own])
    shown = [tool for tool in view(known, Walk(open=("other",))) if "function" in tool]
    assert names(shown) == ["open_tools_3", OPEN_TOOLS]


def test_a_request_without_words_opens_nothing_whatever_was_useful_before() -> None:
    assert begin(large(), "", {"photos": 3}).open == ()
    assert begin(large(), " …\n", {"photos": 3}).useful == {"photos": 3}


def test_a_tool_that_must_be_called_is_shown_though_its_group_is_closed() -> None:
    known = large()
    assert names(view(known, Walk(), ("mcp__sql__list_entry", "unknown")))[1:] == ["mcp__sql__list_entry"]
    assert len(names(view(known, Walk(open=("sql",)), ("mcp__sql__list_entry",)))) == 6


def test_the_view_is_open_tools_and_the_group_that_the_request_points_to() -> None:
    known = large()
    walk = begin(known, "please search the github entries")
    assert walk.open == ("github",)
    assert names(view(known, walk))[0] == OPEN_TOOLS
    assert all("github" in name for name in names(view(known, walk))[1:])


def test_a_request_that_points_nowhere_opens_nothing_and_the_first_level_is_described() -> None:
    known = large()
    shown = view(known, begin(known, "hm"))
    assert names(shown) == [OPEN_TOOLS]
    description = shown[0]["function"]["description"]
    assert len([line for line in description.splitlines() if line.startswith("- ")]) == BRANCHES


def test_opening_a_fork_shows_its_branches_and_opening_a_group_shows_its_tools() -> None:
    known = large()
    fork = next(branch for branch in known.root.branches if branch.branches)
    entered = navigate(known, Walk(), {"path": fork.path})
    assert entered.walk.here == fork.path
    assert all(child.path in entered.text for child in fork.branches)
    opened = navigate(known, entered.walk, {"path": fork.branches[0].path})
    assert names(view(known, opened.walk))[1:] == list(fork.branches[0].tools)


def test_a_fifth_group_closes_the_least_recently_used_one_whose_tools_still_run() -> None:
    known = large()
    groups = [group.path for group in known.root.groups()]
    walk = Walk()
    for path in groups[:OPEN_GROUPS]:
        walk = navigate(known, walk, {"path": path}).walk
    walk = called(known, walk, known.find(groups[OPEN_GROUPS - 1]).tools[0]) or walk  # type: ignore[union-attr]
    answer = navigate(known, walk, {"path": groups[OPEN_GROUPS]})
    walk = answer.walk
    assert walk.open == tuple(groups[1 : OPEN_GROUPS + 1])
    assert f"{groups[0]} closed" in answer.text
    closed_tool = known.find(groups[0]).tools[0]  # type: ignore[union-attr]
    again = called(known, walk, closed_tool)
    assert again is not None
    assert again.open == (*groups[2 : OPEN_GROUPS + 1], groups[0])


def test_a_tool_that_is_not_in_the_catalogue_is_not_called() -> None:
    assert called(large(), Walk(), "invented") is None


def test_after_four_fruitless_rounds_the_next_is_a_search_over_everything() -> None:
    known = large()
    walk = Walk()
    for path in ("nowhere", "music", "photos", "maps"):
        walk = navigate(known, walk, {"path": path}, "send mail").walk
    assert walk.fruitless == FRUITLESS_ROUNDS
    answer = navigate(known, walk, {"path": "wiki"}, "create a mail entry")
    assert "all tools were searched" in answer.text
    assert "mcp__mail__create_entry" in answer.text


def test_a_useful_call_ends_the_count_of_fruitless_rounds() -> None:
    known = large()
    walk = navigate(known, Walk(), {"path": "music"}).walk
    useful = called(known, walk, "mcp__music__list_entry")
    assert useful is not None
    assert (useful.fruitless, useful.useful) == (0, {"music": 1})


def test_a_query_and_an_unknown_branch_are_answered_by_search_and_nonsense_by_the_branches() -> None:
    known = large()
    assert "mcp__weather__search_entry" in navigate(known, Walk(), {"query": "search weather"}).text
    assert "There is no branch 'sql database'" in navigate(known, Walk(), {"path": "sql database"}).text
    assert "No tool matches" in navigate(known, Walk(), {"query": "xyzzy"}).text
    assert navigate(known, Walk(), {"path": None, "query": 3}).text


def test_a_walk_survives_being_saved_and_what_it_learned_decides_where_words_do_not() -> None:
    known = large()
    walk = called(known, begin(known, "sql please"), "mcp__photos__list_entry")
    assert walk is not None
    saved = walk_from_json(json.loads(json.dumps(walk.as_json())), known)
    assert saved == walk
    assert begin(known, "hm", saved.useful).open == ("photos",)


def test_a_saved_walk_of_a_catalogue_that_changed_still_gives_a_view() -> None:
    known = large()
    stale = Walk(open=("gone", "files"), here="gone/too", useful={"gone": 3})
    assert names(view(known, stale))[1:] == list(known.find("files").tools)  # type: ignore[union-attr]
    assert begin(known, "hm", stale.useful).open == ()


def test_groups_that_are_gone_take_no_places_in_a_saved_walk() -> None:
    known = large()
    stale = Walk(open=("gone", "lost", "files", "mail"), here="gone/too", useful={"gone": 3, "mail": 1})
    saved = walk_from_json(stale.as_json(), known)
    assert (saved.open, saved.here, saved.useful) == (("files", "mail"), "", {"mail": 1})
    assert navigate(known, saved, {"path": "sql"}).walk.open == ("files", "mail", "sql")


def test_words_no_name_shares_and_odd_tools_do_not_break_the_tree() -> None:
    odd: list[dict[str, Any]] = [
        {"type": "web_search"},
        {"function": {}},
        tool("ünïcödé"),
        tool("x"),
        tool("x", "twice"),
        *(tool(f"same_{i}") for i in range(90)),
    ]
    known = catalogue(odd)
    assert known.tools["x"]["function"]["description"] == ""
    assert all(len(group.tools) <= TOOLS_A_GROUP for group in known.root.groups())
    assert catalogue([]).root == Branch("")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("abcXY_1", min_size=1, max_size=8), max_size=150, unique=True))
def test_for_any_names_the_tree_holds_each_tool_once_within_its_bounds(found: list[str]) -> None:
    known = catalogue([tool(name) for name in found])
    assert sorted(known.root.all_tools()) == sorted(found)
    for branch in known.root.walk():
        assert len(branch.branches) <= BRANCHES
        assert len(branch.tools) <= TOOLS_A_GROUP or not branch.path
        assert known.find(branch.path) is not None
    paths = [branch.path for branch in known.root.walk()]
    assert len(paths) == len(set(paths))
