"""Eviction: which entry goes first, by name."""

from dataclasses import replace

import pytest

from kvcache.eviction import KEYS, POLICIES, by_name, drop_order
from kvcache.facts import EntryKind, EvictionFacts
from kvcache.placement import UnknownPolicy

PLAIN = EvictionFacts(
    kind=EntryKind.CHECKPOINT,
    nbytes=1000,
    last_used=1.0,
    uses=1,
    position=640,
    pinned=False,
    children=0,
    saved_tokens=64,
    backed=False,
)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_pinned_entries_go_last_whatever_the_policy_thinks_of_them(policy: str) -> None:
    worthless = replace(PLAIN, pinned=True, saved_tokens=1, uses=0, last_used=0.0, chance=0.0)
    assert drop_order(policy, [worthless, PLAIN, PLAIN])[-1] == 0


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_of_equal_entries_the_longest_unused_goes_first(policy: str) -> None:
    assert drop_order(policy, [replace(PLAIN, last_used=3.0), replace(PLAIN, last_used=2.0)]) == [1, 0]
    assert drop_order(policy, []) == []


@pytest.mark.parametrize("policy", sorted(KEYS))
def test_a_key_never_falls_when_the_entry_is_used_again(policy: str) -> None:
    key = by_name(policy)
    assert not key(replace(PLAIN, uses=2, last_used=9.0)) < key(PLAIN)  # type: ignore[operator]


def test_what_another_tier_still_holds_goes_before_what_would_be_lost() -> None:
    backed = replace(PLAIN, backed=True, saved_tokens=6400)
    assert drop_order("cost", [PLAIN, backed]) == [1, 0]


def test_lru_drops_the_longest_unused_and_lfu_the_least_used() -> None:
    old_but_used = replace(PLAIN, last_used=1.0, uses=9)
    new_but_unused = replace(PLAIN, last_used=5.0, uses=0)
    assert drop_order("lru", [new_but_unused, old_but_used]) == [1, 0]
    assert drop_order("lfu", [new_but_unused, old_but_used]) == [0, 1]


def test_cost_keeps_what_saves_the_most_reading_per_byte() -> None:
    big = replace(PLAIN, nbytes=10_000)
    deep = replace(PLAIN, saved_tokens=6400)
    assert drop_order("cost", [deep, PLAIN, big]) == [2, 1, 0]


def test_adaptive_drops_what_conversations_can_spare_first_and_then_the_longest_unused() -> None:
    core_but_old = replace(PLAIN, last_used=1.0)
    core = replace(PLAIN, last_used=5.0)
    spare = replace(PLAIN, last_used=9.0, chance=0.8)
    first_to_spare = replace(PLAIN, last_used=9.0, chance=0.2)
    assert drop_order("adaptive", [core, spare, core_but_old, first_to_spare]) == [3, 1, 2, 0]


def test_adaptive_is_lru_where_nothing_was_learned() -> None:
    entries = [replace(PLAIN, last_used=at) for at in (3.0, 1.0, 2.0)]
    assert drop_order("adaptive", entries) == drop_order("lru", entries)


def test_marconi_lets_saved_compute_outweigh_recency_and_recency_decide_between_equals() -> None:
    older = replace(PLAIN, last_used=0.0)
    newer = replace(PLAIN, last_used=10.0)
    older_but_deep = replace(PLAIN, last_used=4.0, saved_tokens=6400)
    assert drop_order("marconi", [newer, older, older_but_deep]) == [1, 0, 2]


def test_an_unknown_eviction_policy_names_those_that_exist() -> None:
    with pytest.raises(UnknownPolicy, match="adaptive, cost, lfu, lru"):
        drop_order("fifo", [PLAIN])
