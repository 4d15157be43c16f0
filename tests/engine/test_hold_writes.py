"""Writing to disk waits while a prompt is read that somebody waits for, and only then."""

from collections.abc import Hashable
from pathlib import Path

from engine.context import StateKind
from kvcache.config import CacheConfig
from kvcache.store import Store
from tests.engine.serving import MIB, ROOT, Desk, text


class Watched(Store):
    """A store that notes whether writing is held."""

    held = False

    def hold_writes(self, who: Hashable, on: bool) -> None:
        self.held = on
        super().hold_writes(who, on)


def test_writing_is_held_from_the_first_batch_of_a_prompt_to_its_first_token() -> None:
    store = Watched(CacheConfig(ram_bytes=64 * MIB), ROOT, needs_checkpoint=True)
    desk = Desk(store=store)
    served = desk.submit(text(2000), most=8)
    seen = []
    while desk.core.step():
        seen.append((store.held, bool(served.tokens)))
    assert (True, False) in seen
    assert all(held or told for held, told in seen)
    assert seen[-1] == (False, True)
    assert not store.held


def test_nothing_is_held_for_a_prompt_that_nobody_waits_for() -> None:
    store = Watched(CacheConfig(ram_bytes=64 * MIB), ROOT, needs_checkpoint=True)
    desk = Desk(store=store)
    desk.submit(text(2000), most=1, background=True)
    while desk.core.step():
        assert not store.held


def test_what_waited_is_written_after_the_answer(tmp_path: Path) -> None:
    config = CacheConfig(ram_bytes=64 * MIB, disk_bytes=64 * MIB, dir=tmp_path, park_min_tokens=64)
    store = Store(config, ROOT, needs_checkpoint=True)
    store.identify(bytes(16))
    desk = Desk(StateKind.HYBRID, store=store)
    desk.ask(text(2000))
    store.flush()
    stored = store.stats().disk.blocks
    store.close()
    assert stored == (2000 + 7) // 64
