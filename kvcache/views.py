"""What the Store tells the outside about itself: snapshots, all frozen."""

from dataclasses import dataclass

from kvcache.entry import Tier
from kvcache.facts import EntryKind


@dataclass(frozen=True, slots=True)
class TierStats:
    """One tier. `used` counts payload and bookkeeping and never exceeds `budget`; counters run since the store opened."""

    budget: int
    used: int
    blocks: int
    checkpoints: int
    loads: int
    loaded_bytes: int
    evictions: int
    refused: int  # entries that did not fit even after evicting


@dataclass(frozen=True, slots=True)
class DiskStats:
    """What only the disk tier has. `warning` says in words why parking stopped; None while it works."""

    dir: str
    written_bytes: int  # by this process since it opened, headers and index included
    written_today: int  # by all processes on this folder in the last 24 hours
    write_bytes_per_day: int
    queued_bytes: int
    quarantined: int
    codec: str
    warning: str | None


@dataclass(frozen=True, slots=True)
class SessionStats:
    """Bookkeeping of a conversation that a client named; never a condition for a hit."""

    name: str
    blocks: int
    checkpoints: int
    bytes: int
    position: int  # deepest token position parked under this name
    last_used: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class StoreStats:
    """`lookups` counts matches asked for, `hits` those that found anything to resume from; tokens likewise."""

    ram: TierStats
    disk: TierStats
    lookups: int
    hits: int
    asked_tokens: int
    matched_tokens: int
    damaged: int
    disk_detail: DiskStats | None
    sessions: tuple[SessionStats, ...]


@dataclass(frozen=True, slots=True)
class EntryView:
    """One stored entry in one tier, for listings."""

    id: bytes
    kind: EntryKind
    tier: Tier
    position: int
    nbytes: int
    canonical: bool
    pinned: bool
    uses: int
    last_used: float  # seconds since the epoch
    label: str = ""  # why the checkpoint was kept, "" for blocks
    session: str = ""  # the conversation that parked it first, as far as it was named


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that check() found; `fixed` says whether it was put right."""

    what: str
    reason: str
    fixed: bool


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Result of reading everything that is stored."""

    blocks: int
    checkpoints: int
    bytes: int
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        return not self.problems
