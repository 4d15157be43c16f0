"""What the engine tells the outside about itself: snapshots, all frozen, and the counters they are taken from."""

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Counters:
    """Totals since the engine was made; the engine's thread adds, others only read. Times in milliseconds."""

    requests: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    diverged: int = 0
    prompt_tokens: int = 0
    cached_live: int = 0  # prompt tokens that needed no reading, by where they came from
    cached_ram: int = 0
    cached_disk: int = 0
    restored_tokens: int = 0
    reread_tokens: int = 0
    read_tokens: int = 0
    read_ms: float = 0.0
    generated_tokens: int = 0
    decode_ms: float = 0.0  # batches that only generate
    restore_ms: float = 0.0
    restores_failed: int = 0
    decodes_failed: int = 0


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot. `tokens`: resident; `position` of `total` prompt tokens read, and `generated`, of the request it serves."""

    index: int
    phase: str  # "idle" or a turn's phase
    tokens: int
    canonical: int
    request: str | None
    session: str | None
    position: int
    total: int
    generated: int
    prefill_per_second: float
    decode_per_second: float


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters and gauges. `alive`: the thread runs; `stalled`: seconds since it last came round while it had work."""

    counters: Counters
    waiting: int
    running: int
    slots: int
    reuse: bool
    alive: bool
    stalled: float
    last_error: str | None
    checkpoint_interval: int
    checkpoints_saved: int
    blocks_saved: int
    park_ms: float
    park_failures: int


def copied(counters: Counters) -> Counters:
    return Counters(*(getattr(counters, field.name) for field in fields(counters)))
