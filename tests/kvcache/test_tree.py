"""The prefix tree: what it may drop, in which order, and that it never makes a gap."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.eviction import KEYS
from kvcache.facts import EntryKind, EvictionFacts
from kvcache.tree import Held, Tree

BLOCK, CHECKPOINT = EntryKind.BLOCK, EntryKind.CHECKPOINT


def make(policy: str = "lru", needs_checkpoint: bool = True) -> Tree:
    return Tree(KEYS[policy], needs_checkpoint, lambda kind, id: False)


def name(*path: int) -> bytes:
    return b"/".join(str(step).encode() for step in path)


def grow(tree: Tree, *path: int, size: int = 10, used: float = 0.0) -> bytes:
    """Adds the block at `path` (grid 4) under the one at path[:-1]."""
    id = name(*path)
    tree.add_block(id, name(*path[:-1]), 4 * (len(path) - 1), 4 * len(path), Held(size, True, used))
    return id


def test_the_end_of_a_chain_goes_before_its_beginning_however_old_that_is() -> None:
    tree = make()
    first = grow(tree, 1, used=1)
    second = grow(tree, 1, 1, used=2)
    third = grow(tree, 1, 1, 1, used=3)
    assert tree.make_room(0, 20) == ((BLOCK, third),)
    assert tree.make_room(0, 0) == ((BLOCK, second), (BLOCK, first))


def test_a_block_under_a_checkpoint_stays_until_the_checkpoint_went() -> None:
    tree = make()
    block = grow(tree, 1, used=1)
    tree.add_checkpoint(block, 4, Held(10, True, 9))
    other = grow(tree, 2, used=5)
    assert tree.make_room(0, 10) == ((BLOCK, other), (CHECKPOINT, block))


def test_a_checkpoint_may_go_while_its_block_stays() -> None:
    tree = make()
    block = grow(tree, 1, used=5)
    tree.add_checkpoint(block, 4, Held(10, True, 1))
    assert tree.make_room(0, 10) == ((CHECKPOINT, block),)
    assert tree.get(BLOCK, block) is not None


def test_pinned_and_kept_entries_go_last_or_not_at_all() -> None:
    tree = make()
    for index in range(4):
        tree.add_checkpoint(name(index), 4, Held(10, True, index, pinned=index == 0))
    gone = tree.make_room(0, 0, keep=[(CHECKPOINT, name(1))])
    assert gone == ((CHECKPOINT, name(2)), (CHECKPOINT, name(3)), (CHECKPOINT, name(0)))
    assert tree.make_room(0, 0) == ((CHECKPOINT, name(1)),)


def test_what_waits_for_the_disk_goes_after_what_is_there_already() -> None:
    tree = make()
    tree.add_checkpoint(name(1), 4, Held(10, True, 1))
    tree.add_checkpoint(name(2), 4, Held(10, True, 2))
    tree.change(CHECKPOINT, name(1), dirty=True)
    assert tree.make_room(0, 10) == ((CHECKPOINT, name(2)),)


def test_a_use_moves_an_entry_back_in_the_queue() -> None:
    tree = make()
    for index in range(3):
        tree.add_checkpoint(name(index), 4, Held(10, True, index))
    assert tree.make_room(0, 20) == ((CHECKPOINT, name(0)),)
    tree.touch(CHECKPOINT, name(1), 99.0)
    assert tree.make_room(0, 10) == ((CHECKPOINT, name(2)),)


def test_a_chain_is_as_recent_as_what_stood_on_it() -> None:
    tree = make()
    grow(tree, 1, used=1)
    grow(tree, 1, 1, used=1)
    other = grow(tree, 2, used=5)
    tree.touch(BLOCK, name(1, 1), 9.0)
    assert tree.make_room(0, 20) == ((BLOCK, other),)
    assert tree.make_room(0, 10) == ((BLOCK, name(1, 1)),)
    later = grow(tree, 3, used=8)
    assert tree.make_room(0, 10) == ((BLOCK, later),)


def test_facts_say_how_many_tokens_a_checkpoint_saves_over_the_one_before() -> None:
    tree = make()
    for depth in range(1, 6):
        grow(tree, *[1] * depth)
    for depth in (2, 5):
        tree.add_checkpoint(name(*[1] * depth), 4 * depth, Held(10, True, 0))
    assert tree.facts(CHECKPOINT, name(1, 1)).saved_tokens == 8
    assert tree.facts(CHECKPOINT, name(*[1] * 5)).saved_tokens == 12
    tree.drop(CHECKPOINT, name(1, 1))
    assert tree.facts(CHECKPOINT, name(*[1] * 5)).saved_tokens == 20


def test_facts_of_a_block_depend_on_whether_checkpoints_are_needed() -> None:
    for needs_checkpoint, saved in ((True, 0), (False, 4)):
        tree = make(needs_checkpoint=needs_checkpoint)
        grow(tree, 1)
        block = grow(tree, 1, 1)
        assert tree.facts(BLOCK, block) == EvictionFacts(BLOCK, 10, 0.0, 0, 8, False, 0, saved, False)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), policy=st.sampled_from(sorted(KEYS)))
def test_any_history_keeps_bytes_counted_and_chains_whole(seed: int, policy: str) -> None:
    draw, tree = random.Random(seed), make(policy)
    paths: dict[bytes, tuple[int, ...]] = {}
    for step in range(120):
        action = draw.randrange(5)
        if action <= 1:
            parent = draw.choice([(), *paths.values()])
            path = (*parent, draw.randrange(3))
            if len(path) < 7 and name(*path) not in paths:
                paths[grow(tree, *path, size=draw.randrange(1, 30), used=step)] = path
        elif action == 2 and paths:
            id = draw.choice(sorted(paths))
            if tree.get(CHECKPOINT, id) is None:
                held = Held(draw.randrange(1, 30), True, step, pinned=draw.random() < 0.2)
                tree.add_checkpoint(id, 4 * len(paths[id]), held)
        elif action == 3 and paths:
            tree.touch(BLOCK, draw.choice(sorted(paths)), step)
        else:
            tree.make_room(draw.randrange(40), 300)
            paths = {id: path for id, path in paths.items() if tree.get(BLOCK, id) is not None}
        held_now = [(kind, node.id, held) for kind, node, held in tree.all()]
        assert tree.used == sum(held.nbytes for _, _, held in held_now)
        assert len(tree) == len(held_now)
        for kind, id, _ in held_now:
            parts = id.split(b"/")
            above = b"/".join(parts[:-1]) if kind is BLOCK else id
            assert above == b"" or tree.get(BLOCK, above) is not None
    tree.make_room(0, 0)
    assert (tree.used, len(tree)) == (0, 0)
