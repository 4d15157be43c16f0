"""What reading and restoring cost on this machine, measured while serving; the resume choice is made in these units."""

from dataclasses import dataclass

from kvcache.entry import Tier

SMOOTHING = 0.2  # weight of a new sample
LEAST_TOKENS = 32  # smaller batches measure overhead rather than reading


@dataclass(frozen=True, slots=True)
class Costs:
    """Estimated milliseconds: `prefill` a prompt token read, `ram` and `disk` a byte put back from that tier, `decode` a batch
    in which running turns get one token each.

    The defaults stand for a small model on a CPU (100 tokens/s, 2 GB/s, 0.8 GB/s) until something was measured.
    """

    prefill: float = 10.0
    ram: float = 5e-7
    disk: float = 1.25e-6
    decode: float = 0.0

    def load(self, tier: Tier, nbytes: int) -> float:
        return nbytes * (self.ram if tier is Tier.RAM else self.disk)


class CostMeter:
    """Exponentially smoothed measurements; `costs` is a snapshot that pure functions can take."""

    def __init__(self) -> None:
        self._prefill: float | None = None
        self._decode: float | None = None
        self._load: dict[Tier, float] = {}

    @property
    def costs(self) -> Costs:
        known = Costs()
        return Costs(
            known.prefill if self._prefill is None else self._prefill,
            self._load.get(Tier.RAM, known.ram),
            self._load.get(Tier.DISK, known.disk),
            self._decode or 0.0,
        )

    def read(self, tokens: int, ms: float) -> None:
        """A prefill batch of `tokens` took `ms`; short ones are ignored."""
        if tokens >= LEAST_TOKENS:
            self._prefill = _smooth(self._prefill, ms / tokens)

    def decoded(self, ms: float) -> None:
        """A batch of nothing but decodes took `ms`."""
        self._decode = _smooth(self._decode, ms)

    def loaded(self, tier: Tier, nbytes: int, ms: float) -> None:
        """`nbytes` came back from `tier` in `ms`."""
        if nbytes > 0:
            self._load[tier] = _smooth(self._load.get(tier), ms / nbytes)


def _smooth(old: float | None, new: float) -> float:
    return new if old is None else old + SMOOTHING * (new - old)
