"""The values the cache keeps: blocks and checkpoints. Sizes are derived, never stored beside the bytes."""

from dataclasses import dataclass
from enum import StrEnum

Payload = bytes | memoryview


class Tier(StrEnum):
    """Where bytes lie; the order of preference when several tiers hold them."""

    RAM = "ram"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Block:
    """Attention KV of the tokens [start, end), end - start == grid (less under a tip); `id` is the chain id at `end`.

    `canonical` says that the bytes came from a canonical read of the whole prefix (docs/guarantees.md), so that a
    strict request may use them.
    """

    id: bytes
    parent: bytes
    start: int
    tokens: tuple[int, ...]
    payload: Payload
    canonical: bool

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def nbytes(self) -> int:
        return len(self.payload)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state that cannot be cut back, at exactly `position` tokens; `id` is the chain id of that prefix."""

    id: bytes
    position: int
    payload: Payload
    canonical: bool

    @property
    def nbytes(self) -> int:
        return len(self.payload)


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A checkpoint that a match found on the chain of the tokens asked for."""

    id: bytes
    position: int
    tier: Tier
    nbytes: int
    canonical: bool = False


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A block that a match found on the chain of the tokens asked for."""

    id: bytes
    start: int
    end: int
    tier: Tier
    nbytes: int
    canonical: bool = False


@dataclass(frozen=True, slots=True)
class TipRef:
    """A state off the grid and the part of a block that leads to it from the grid multiple before."""

    block: BlockRef
    checkpoint: CheckpointRef

    @property
    def position(self) -> int:
        return self.checkpoint.position


@dataclass(frozen=True, slots=True)
class Match:
    """What is stored of a token sequence.

    `blocks` are contiguous from token 0. `checkpoints` ascend by position and may lie beyond the last block: such a
    one serves the rollback of a live slot, never a restore from the store alone. `tip` stands on one of the blocks.
    """

    ids: tuple[bytes, ...]
    blocks: tuple[BlockRef, ...]
    checkpoints: tuple[CheckpointRef, ...]
    tip: TipRef | None = None

    @property
    def stored(self) -> int:
        """Tokens whose attention KV is stored without a gap from token 0."""
        return self.blocks[-1].end if self.blocks else 0
