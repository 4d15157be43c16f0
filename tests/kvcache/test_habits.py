"""Habits: what a server learns of its own traffic reaches placement and eviction."""

from kvcache.chain import chain_ids, root_id
from kvcache.config import CacheConfig
from kvcache.entry import Block, Checkpoint
from kvcache.habits import Habits
from kvcache.store import Store
from kvcache.thinning import CORE

GRID = 64
ROOT = root_id(b"habits")


def store(checkpoints: int, eviction: str = "adaptive") -> Store:
    """Room for so many checkpoints of 100,000 bytes beside small blocks."""
    return Store(CacheConfig(ram_bytes=checkpoints * 101_600 + 80_000, eviction=eviction), ROOT, True)


def park(kept: Store, tokens: list[int], positions: list[int]) -> None:
    ids = chain_ids(ROOT, tokens, GRID)
    for number, id in enumerate(ids):
        parent = ids[number - 1] if number else ROOT
        kept.park_block(Block(id, parent, number * GRID, tuple(tokens[number * GRID : (number + 1) * GRID]), b"x", True))
    for position in positions:
        kept.park_checkpoint(Checkpoint(ids[position // GRID - 1], position, bytes(100_000), True))


def held(kept: Store, tokens: list[int]) -> list[int]:
    return [ref.position for ref in kept.match(tokens).checkpoints]


def test_what_a_conversation_can_spare_leaves_before_another_conversations_core() -> None:
    kept = store(11)
    habits = Habits(kept)
    old, new = [1] * 640, [2] * 1280
    park(kept, old, [320, 640])
    habits.expect(kept.match(old), 641, [])
    park(kept, new, [GRID * step for step in range(1, 10)])
    habits.expect(kept.match(new), 1281, [])
    park(kept, [3] * 320, [128, 192, 320])
    assert held(kept, old) == [320, 640]
    assert len(held(kept, new)) >= CORE
    assert held(kept, [3] * 320) == [128, 192, 320]


def test_a_long_idle_conversation_leaves_before_the_core_of_one_that_is_here() -> None:
    kept = store(6)
    habits = Habits(kept)
    park(kept, [1] * 640, [320, 640])
    park(kept, [2] * 640, [64, 320, 640])
    habits.expect(kept.match([2] * 640), 641, [])
    park(kept, [3] * 320, [128, 192, 320])
    assert held(kept, [1] * 640) != [320, 640]
    assert held(kept, [2] * 640) == [320, 640]  # what it could spare went first


def test_a_return_is_learned_and_expected_in_the_next_conversation() -> None:
    kept = store(50)
    habits = Habits(kept)
    for number in range(20):
        start = [5] * 640 + [100 + number] * 640
        park(kept, start, [])
        curve = habits.expect(kept.match(start), 1281, [("system_end", 640)])
    assert curve is not None and curve[10] > 0.2


def test_with_every_tier_off_nothing_is_learned_or_wanted() -> None:
    off = Store(CacheConfig(ram_bytes=0), ROOT, True)
    assert Habits(off).expect(off.match([1] * 640), 641, []) is None
