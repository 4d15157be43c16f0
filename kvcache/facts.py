"""What an eviction policy may know of an entry. Policies (eviction.py) are pure functions of these facts alone."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class EntryKind(StrEnum):
    """A block saves reading attention state; a checkpoint saves computing what came before it."""

    BLOCK = "block"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class EvictionFacts:
    """One entry that a tier could drop now.

    The tier itself keeps what must hold under every policy, so that no policy can break it: a block with a stored child
    or checkpoint is never a candidate, the ancestors of the entry that room is made for are never candidates, and
    pinned entries go only after every unpinned one.
    """

    kind: EntryKind
    nbytes: int  # bytes that dropping it frees in this tier, bookkeeping included; > 0
    last_used: float  # logical clock of the last load or park; only the order means something
    uses: int  # loads since it was parked
    position: int  # tokens from 0 to its end
    pinned: bool
    children: int  # stored blocks that continue from its end
    saved_tokens: int  # tokens decoded again if it is lost (a checkpoint: back to the one before it on its chain)
    backed: bool  # another tier holds the same bytes: losing it here costs a read, not a decode
    chance: float = 1.0  # below 1: its conversation can spare it, the lower the sooner (thinning.worths)


class Evictable(Protocol):
    """EvictionFacts as a policy reads them. A tier hands out views that find out only what is asked for: tokens saved take a
    walk to the checkpoint before, which most policies never look at."""

    @property
    def kind(self) -> EntryKind: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def last_used(self) -> float: ...
    @property
    def uses(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def pinned(self) -> bool: ...
    @property
    def children(self) -> int: ...
    @property
    def saved_tokens(self) -> int: ...
    @property
    def backed(self) -> bool: ...
    @property
    def chance(self) -> float: ...


EvictionKey = Callable[[Evictable], float | tuple[float, ...]]
"""Sort key: the entry with the smallest key is dropped first. A key must not fall when an entry is used again."""
