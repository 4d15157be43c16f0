"""Ranking by BM25 over bounded candidates, and what a search says of more matches than it counts."""

from keeper.bm25 import scores
from keeper.recall import Query, rendered
from keeper.search import MOST_COUNTED, Limits
from tests.keeper.helpers import a, past_of, u


def test_a_rare_word_weighs_more_than_a_common_one() -> None:
    texts = ["the mill was quiet", "the zebra was quiet", "the mill and the mill again"]
    common, rare, twice = scores(("mill", "zebra"), texts, {"mill": 500, "zebra": 1}, 1000)
    assert rare > twice > common > 0


def test_a_short_sentence_weighs_more_than_a_long_one_with_the_same_words() -> None:
    short, long, none = scores(("mill",), ["The mill.", "The mill " + "and more " * 20, "Nothing."], {"mill": 3}, 100)
    assert short > long > none == 0


def test_a_word_in_every_sentence_still_counts_for_something() -> None:
    assert scores(("mill",), ["mill"], {"mill": 5000}, 100)[0] > 0


def test_more_matches_than_are_counted_are_called_so_and_the_newest_are_ranked() -> None:
    stories = [m for i in range(1, 24) for m in (u(f"Item {i}: " + f"The mill was quiet on day {i}. " * 50), a("Noted."))]
    past = past_of(stories)
    found = past.search("mill", limit=5)
    assert found.total == MOST_COUNTED + 1 and len(found.hits) == 5
    assert rendered(found, Query("mill")).startswith("CUT SHORT: more than 1000 matches, these are the 5 best.")
    assert [hit.item for hit in past.search("mill", Limits(before=3), 3).hits] == [2, 2, 2]
    assert [hit.item for hit in past.search("mill", Limits(after=21), 3).hits] == [22, 22, 22]
    assert past.search("mill", Limits(before=1)).total == 0 and past.search("mill", Limits(item=99)).total == 0
