"""What to drop first when the byte budget is full: pure sort keys by name over EvictionFacts, smallest dropped first.

`drop_order` sorts a whole set of candidates and also knows the orders that need to see all of them (marconi). What no
policy may break (pins, stored children) is the tier's business; pinned entries come last here all the same.
"""

from collections.abc import Sequence

from kvcache.facts import Evictable, EvictionKey
from kvcache.placement import UnknownPolicy

MARCONI_ALPHA = 1.0
BACKED_SHARE = 1 / 300
"""Loss when another tier still holds the bytes: a restore is at least 300 times faster than re-reading (issue 3's bound)."""


def by_name(policy: str) -> EvictionKey:
    """The sort key of a policy that judges each entry alone. Raises UnknownPolicy."""
    try:
        return KEYS[policy]
    except KeyError:
        raise UnknownPolicy(policy, KEYS) from None


def drop_order(policy: str, entries: Sequence[Evictable]) -> list[int]:
    """Indices of `entries`, first to drop first; ties go to the longest unused. Raises UnknownPolicy."""
    scores = _marconi(entries) if policy == "marconi" else [by_name(policy)(entry) for entry in entries]
    return sorted(range(len(entries)), key=lambda i: (entries[i].pinned, scores[i], entries[i].last_used))


def _saved(entry: Evictable) -> float:
    return entry.saved_tokens * (BACKED_SHARE if entry.backed else 1.0)


def _marconi(entries: Sequence[Evictable]) -> list[float | tuple[float, ...]]:
    """S(n) = recency(n) + alpha * (compute saved per byte), both scaled to [0, 1] over the candidates.

    Source: Marconi (MLSys 2025, arXiv:2411.19379, section 4.3), re-made from the paper. Tokens to the checkpoint before
    stand for its FLOPs: all entries belong to one model, so the constant cancels in the scaling.
    """
    recency = _scaled([entry.last_used for entry in entries])
    saved = _scaled([entry.saved_tokens / entry.nbytes for entry in entries])
    return [r + MARCONI_ALPHA * s for r, s in zip(recency, saved, strict=True)]


def _scaled(values: Sequence[float]) -> list[float]:
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


def _lru(entry: Evictable) -> float:
    """The least recently used first."""
    return entry.last_used


def _lfu(entry: Evictable) -> tuple[float, ...]:
    """The least often used first, the longest unused of those."""
    return (entry.uses, entry.last_used)


def _cost(entry: Evictable) -> tuple[float, ...]:
    """Uses * compute saved / bytes: GreedyDual-Size-Frequency without its ageing clock (Cherkasova, HPL-98-69)."""
    return ((entry.uses + 1) * _saved(entry) / entry.nbytes, entry.last_used)


def _adaptive(entry: Evictable) -> tuple[float, ...]:
    """What its own conversation can spare (thinning.worths) first, whosesoever it is, then the least recently used."""
    return (min(entry.chance, 1.0), entry.last_used)


KEYS: dict[str, EvictionKey] = {"lru": _lru, "lfu": _lfu, "cost": _cost, "adaptive": _adaptive}
POLICIES = frozenset({*KEYS, "marconi"})
DEFAULT = "adaptive"
