"""Settings of the engine: plain values, checked by whoever builds them (server/config.py)."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """How to load weights. `extra_buffers` is llama.cpp's weight repacking, which probe.py tries first (AMX)."""

    path: Path
    gpu_layers: int = 0
    use_mmap: bool = True
    extra_buffers: bool = True
    device: int | None = None  # the GPU that takes the layers; None: as llama.cpp spreads them


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """How to make a context. `ctx` is tokens a slot; the unified cache holds ctx * slots cells."""

    ctx: int = 8192
    slots: int = 1
    batch: int = 512
    threads: int = 0  # 0: cores / engines
    grid: int = 64
    flash_attn: bool = True
    type_k: str = "f16"
    type_v: str = "f16"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine schedules and keeps. Times are seconds."""

    grid: int = 64
    checkpoint_interval: int = 0  # tokens; 0: derived from the budget and the checkpoint's size
    placement: str = "anchors"  # a name of kvcache.placement
    max_queue: int = 256
    reuse: bool = True  # False: every prompt is read from its first token (the self-check failed)
    progress_every: float = 0.5  # between Progress events of one prefill
    decode_gap: float = 1.0  # prompts are read for about so long at most between two tokens of running turns
    background_gap: float = 0.1  # a batch that nobody waits for takes about so long at most: so long one that comes may wait
    restore_slice: float = 0.05  # blocks are loaded for about so long between two batches of other turns


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that is read for one conversation between two of its turns: tokens, or seconds of the engine that reads."""

    tokens: int = 0
    seconds: float = 0.0

    def left(self, spent: int, token_ms: float) -> int:
        """Tokens that may still be read after `spent`, where one takes `token_ms`."""
        most = self.tokens if self.tokens else int(1e3 * self.seconds / max(token_ms, 1e-6))
        return max(0, most - spent)
