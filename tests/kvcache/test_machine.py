"""A state machine drives a Store beside a dict: what it names it gives back exactly, and its budgets are never exceeded."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvcache.chain import chain_ids
from kvcache.config import CacheConfig
from kvcache.entry import Block, Checkpoint
from kvcache.errors import EntryGone
from kvcache.facts import EntryKind
from kvcache.store import Store
from tests.kvcache.material import FINGERPRINT, GRID, MIB, ROOT, blocks_of, checkpoint_at, disk_use

AMPLE = 64 * MIB
PROMPTS = st.lists(st.integers(0, 1), min_size=GRID, max_size=6 * GRID).map(
    lambda bits: tuple(b for b in bits for _ in range(GRID))
)
"""Prompts whose blocks are all zeros or all ones: many share a beginning, and some are another's prefix."""


class StoreBesideADict(RuleBasedStateMachine):
    """`model` holds every entry parked and not removed; a store may lose some under a tight budget, never change one."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kvalet-machine-"))
        self.model: dict[tuple[EntryKind, bytes], Block | Checkpoint] = {}
        self.store: Store | None = None

    @initialize(
        ram=st.sampled_from([0, 9000, AMPLE]),
        disk=st.sampled_from([0, MIB + 8 * 4736, AMPLE]),
        policy=st.sampled_from(["lru", "lfu", "cost"]),
    )
    def open(self, ram: int, disk: int, policy: str) -> None:
        self.config = CacheConfig(
            ram_bytes=ram, disk_bytes=disk, dir=self.folder, grid=GRID, park_min_tokens=2 * GRID, eviction=policy
        )
        self.reopen()

    def reopen(self) -> None:
        self.store = Store(self.config, ROOT, needs_checkpoint=True)
        self.store.identify(FINGERPRINT)

    @property
    def on(self) -> Store:
        assert self.store is not None
        return self.store

    def remember(self, kind: EntryKind, entry: Block | Checkpoint) -> None:
        old = self.model.get((kind, entry.id))
        if old is None or entry.canonical:
            self.model[kind, entry.id] = entry

    @rule(prompt=PROMPTS, canonical=st.booleans())
    def park_blocks(self, prompt: tuple[int, ...], canonical: bool) -> None:
        for block in blocks_of(prompt, 100, canonical):
            if not self.on.park_block(block, session="s"):
                break
            self.remember(EntryKind.BLOCK, block)

    @rule(prompt=PROMPTS, canonical=st.booleans(), pinned=st.booleans())
    def park_checkpoint(self, prompt: tuple[int, ...], canonical: bool, pinned: bool) -> None:
        checkpoint = checkpoint_at(prompt, len(prompt) // GRID * GRID, 200, canonical)
        if self.on.park_checkpoint(checkpoint, pinned=pinned, kind="x"):
            self.remember(EntryKind.CHECKPOINT, checkpoint)

    @rule(prompt=PROMPTS, strict=st.booleans())
    def look_up(self, prompt: tuple[int, ...], strict: bool) -> None:
        match = self.on.match(prompt, canonical_only=strict)
        try:
            blocks = list(self.on.restore(match, match.stored))
            checkpoints = [self.on.load_checkpoint(ref) for ref in match.checkpoints]
        except EntryGone:
            return  # the writer thread evicted between the two; the state machine of one thread cannot avoid that
        assert [block.start for block in blocks] == list(range(0, match.stored, GRID))
        for entry, kind in [(b, EntryKind.BLOCK) for b in blocks] + [(c, EntryKind.CHECKPOINT) for c in checkpoints]:
            assert entry.canonical or not strict
            parked = self.model[kind, entry.id]
            assert entry == parked or not entry.canonical  # the disk may still hold the version before
            assert len(entry.payload) == len(parked.payload)

    @precondition(lambda self: AMPLE in (self.config.ram_bytes, self.config.disk_bytes) and not self.is_tight)
    @rule(prompt=PROMPTS)
    def with_room_for_all_nothing_is_lost(self, prompt: tuple[int, ...]) -> None:
        match = self.on.match(prompt)
        stored = 0
        for id in chain_ids(ROOT, prompt, GRID):
            if (EntryKind.BLOCK, id) not in self.model:
                break
            stored += GRID
        assert match.stored == stored

    @property
    def is_tight(self) -> bool:
        return self.config.ram_bytes == 9000 or (self.config.ram_bytes == 0 and self.config.disk_bytes < AMPLE)

    @rule(prompt=PROMPTS, pinned=st.booleans())
    def pin(self, prompt: tuple[int, ...], pinned: bool) -> None:
        id = chain_ids(ROOT, prompt, GRID)[-1]
        known = self.on.has_checkpoint(id)
        assert (self.on.pin(id) if pinned else self.on.unpin(id)) == known

    @rule(prompt=PROMPTS)
    def remove(self, prompt: tuple[int, ...]) -> None:
        self.on.flush()
        id = chain_ids(ROOT, prompt, GRID)[0]
        self.on.remove(id)
        assert self.on.match(prompt).stored == 0
        gone = self._under(id)
        self.model = {key: entry for key, entry in self.model.items() if key[1] not in gone}

    @precondition(lambda self: self.config.disk_bytes == AMPLE)
    @rule()
    def restart(self) -> None:
        """What is long enough survives, and what was in RAM alone is forgotten by the model."""
        self.on.flush()
        on_disk = {(e.kind, e.id) for e in self.on.entries() if e.tier.value == "disk"}
        self.on.close()
        self.reopen()
        self.model = {key: entry for key, entry in self.model.items() if key in on_disk}

    @precondition(lambda self: self.store is not None)
    @invariant()
    def budgets_hold(self) -> None:
        stats = self.on.stats()
        assert stats.ram.used <= stats.ram.budget
        assert stats.disk.used <= max(stats.disk.budget, MIB)
        if self.config.disk_bytes:
            assert disk_use(self.folder) <= self.config.disk_bytes

    def _under(self, id: bytes) -> set[bytes]:
        found = {id}
        for _ in range(8):
            found |= {e.id for e in self.model.values() if isinstance(e, Block) and e.parent in found}
        return found

    def teardown(self) -> None:
        if self.store is not None:
            self.store.flush()
            report = self.store.check()
            assert report.ok, report.problems
            self.store.close()
        shutil.rmtree(self.folder)


TestStoreBesideADict = StoreBesideADict.TestCase
TestStoreBesideADict.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
