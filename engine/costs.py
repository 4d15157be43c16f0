"""What reading and restoring cost on this machine, measured while serving; the resume choice is made in these units."""

from dataclasses import dataclass

from kvcache.entry import Tier

SMOOTHING = 0.2  # weight of a new sample
FORGET = 0.98  # what a batch still weighs in the line when the next has come
LEAST_BATCHES = 6  # before a line is drawn
LEAST_SPREAD = 0.05  # of their lengths, variance over squared mean: equally long batches say nothing of what a batch costs
LEAST_TOKENS = 32  # smaller batches measure overhead rather than reading


@dataclass(frozen=True, slots=True)
class Costs:
    """Estimated milliseconds: `prefill` a prompt token read, `ram` and `disk` a byte put back from that tier, `decode` a batch
    in which running turns get one token each. `batch` is what a batch costs beside its tokens, in tokens read.

    The defaults stand for a small model on a CPU (100 tokens/s, 2 GB/s, 0.8 GB/s) until something was measured.
    """

    prefill: float = 10.0
    ram: float = 5e-7
    disk: float = 1.25e-6
    decode: float = 0.0
    batch: float = 0.0

    def load(self, tier: Tier, nbytes: int) -> float:
        return nbytes * (self.ram if tier is Tier.RAM else self.disk)


class CostMeter:
    """Exponentially smoothed measurements; `costs` is a snapshot that pure functions can take."""

    def __init__(self) -> None:
        self._prefill: float | None = None
        self._decode: float | None = None
        self._load: dict[Tier, float] = {}
        self._line = _Line()

    @property
    def costs(self) -> Costs:
        known = Costs()
        return Costs(
            known.prefill if self._prefill is None else self._prefill,
            self._load.get(Tier.RAM, known.ram),
            self._load.get(Tier.DISK, known.disk),
            self._decode or 0.0,
            self._line.offset(),
        )

    def read(self, tokens: int, ms: float) -> None:
        """A prefill batch of `tokens` took `ms`; short ones are ignored."""
        if tokens >= LEAST_TOKENS:
            self._prefill = _smooth(self._prefill, ms / tokens)
            self._line.add(tokens, ms)

    def decoded(self, ms: float) -> None:
        """A batch of nothing but decodes took `ms`."""
        self._decode = _smooth(self._decode, ms)

    def loaded(self, tier: Tier, nbytes: int, ms: float) -> None:
        """`nbytes` came back from `tier` in `ms`."""
        if nbytes > 0:
            self._load[tier] = _smooth(self._load.get(tier), ms / nbytes)


class _Line:
    """Least squares of ms = slope * (tokens + offset) over batches of different length, older ones forgotten."""

    def __init__(self) -> None:
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)  # weight, x, y, x * x, x * y

    def add(self, tokens: int, ms: float) -> None:
        new = (1.0, tokens, ms, tokens * tokens, tokens * ms)
        self._sums = tuple(FORGET * old + one for old, one in zip(self._sums, new, strict=True))  # type: ignore[assignment]

    def offset(self) -> float:
        """Tokens; 0 before a line can be drawn, and where the batches say that there is none."""
        weight, x, y, xx, xy = self._sums
        spread = weight * xx - x * x
        if weight < LEAST_BATCHES or spread < LEAST_SPREAD * x * x:
            return 0.0
        slope = (weight * xy - x * y) / spread
        return max(0.0, (y - slope * x) / weight / slope) if slope > 0 else 0.0


def _smooth(old: float | None, new: float) -> float:
    return new if old is None else old + SMOOTHING * (new - old)
