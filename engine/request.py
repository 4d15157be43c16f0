"""What crosses the engine's thread boundary: a Request in, events out. All frozen."""

from dataclasses import dataclass, field
from enum import StrEnum

from engine.sampling import SamplingParams


class Exact(StrEnum):
    """append: go on from the live state; strict: logits never depend on the cache (docs/guarantees.md)."""

    APPEND = "append"
    STRICT = "strict"


class AnchorKind(StrEnum):
    """Places in a prompt after which a later prompt is likely to differ (docs/architecture.md)."""

    TOOLS_END = "tools_end"
    SYSTEM_END = "system_end"
    USER_END = "user_end"
    LAST_USER_END = "last_user_end"
    TOOL_RESULTS_END = "tool_results_end"
    ASSISTANT_START = "assistant_start"
    CLIENT = "client"  # a breakpoint the client asked for (cache_control)


@dataclass(frozen=True, slots=True)
class Anchor:
    """A token position (count of tokens before it) worth a checkpoint; pinned ones are evicted last."""

    position: int
    kind: AnchorKind
    pinned: bool = False


class Source(StrEnum):
    """Where a request resumed from."""

    LIVE = "live"
    RAM = "ram"
    DISK = "disk"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to read and continue. `tokens` is the whole prompt, at least one token."""

    id: str
    tokens: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    stop: tuple[str, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    exact: Exact = Exact.APPEND
    logprobs: int | None = None  # None: none; k: the k most likely beside the chosen one
    session: str | None = None
    ignore_eos: bool = False
    background: bool = False  # nobody waits for it: it is read in short batches, counted apart, and rests while others are served
    cold: bool = False  # read the whole prompt, whatever is held: the baseline that reuse is compared with


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its raw bytes, and its natural-log probability."""

    token: int
    text: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Prefill has reached `position` of `total` prompt tokens."""

    request: str
    position: int
    total: int


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token; `text` are the bytes safe to show now (stop strings and cut characters are held back)."""

    request: str
    token: int
    text: bytes
    logprob: TokenLogprob | None = None
    top: tuple[TokenLogprob, ...] = ()


class Finish(StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a request resumed. `restored` tokens came from a tier, `reread` had been decoded by an earlier request.

    `common` is how many prompt tokens equal the best earlier sequence known, so diverged = common when common < its length.
    `fill`: tokens that a batch of the rest had to have before a checkpoint cut it off (placement.PlacementFacts).
    """

    source: Source
    position: int
    restored: int
    reread: int
    common: int
    diverged: bool
    reason: str
    fill: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds and token counts, as llama-server names them."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    queued_ms: float
    restore_ms: float


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a request that worked; `text` are bytes that were held back and are safe now."""

    request: str
    finish: Finish
    stop: str | None
    text: bytes
    prompt_tokens: int
    completion_tokens: int
    resume: Resume
    timings: Timings
    generated: tuple[int, ...] = field(repr=False, default=())


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a request that did not; the error is one of engine.errors."""

    request: str
    error: Exception


Event = Progress | Token | Done | Failed
