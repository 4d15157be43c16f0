"""Where will the next prompt of a conversation leave the present one? Learned from the traffic, used to place and to thin.

The model is a mixture. Each part says "near this kind of landmark": the tip (the end of what is resident), every kind of
anchor that prompts bring (end of tools, end of system, turn ends), earlier branch points, and a flat rest. A part is a
histogram over signed distances in grid steps, exact up to 8 and then in half octaves, above a heavy-tailed prior of one
observation. Every observed divergence is shared out over the parts by how likely each had made it (online EM), which
moves their weights and their histograms. Real traffic is bimodal (docs/benchmarks.md): most prompts leave within a step
of the tip, the costly rest returns to the end of the system text or to a branch, which no fixed spacing can know.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]
TIP, FLAT = "tip", "flat"
EXACT_STEPS = 8
PRIOR_EXPONENT = 1.5
DECAY = 0.9995
TIP_PRIOR = 20.0
"""Weight of the tip before anything is observed: most prompts of any agent or chat only append (docs/benchmarks.md)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A conversation as it stands: `length` tokens, and landmarks by kind, each kind's positions ascending in tokens."""

    length: int
    grid: int
    landmarks: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def steps(self) -> int:
        return self.length // self.grid


def shape_of(length: int, grid: int, marks: Iterable[tuple[str, int]]) -> Shape:
    """A Shape from (kind, position in tokens) pairs in any order; those beyond the length are left out."""
    kinds: dict[str, set[int]] = defaultdict(set)
    for kind, position in marks:
        if 0 <= position <= length:
            kinds[kind].add(position)
    return Shape(length, grid, tuple((kind, tuple(sorted(kinds[kind]))) for kind in sorted(kinds)))


class _Histogram:
    """Counts over distances >= 0 in steps, read as a density a step. `total` counts what was added, decayed."""

    def __init__(self) -> None:
        self.total = 0.0
        self._counts = np.zeros(1)
        self._sizes = np.ones(1)
        self._bucket = np.zeros(1, dtype=np.int64)
        self._prior = np.ones(1)
        self._grow(64)

    def add(self, distance: int, amount: float) -> None:
        self._grow(distance + 1)
        self._counts[self._bucket[distance]] += amount
        self.total += amount

    def decay(self, factor: float) -> None:
        self._counts *= factor
        self.total *= factor

    def mass(self, steps: int) -> Curve:
        """Observations a step at the distances 0 .. steps - 1, prior included."""
        self._grow(steps)
        spread: Curve = (self._counts / self._sizes)[self._bucket[:steps]]
        spread += self._prior[:steps]
        return spread

    def at(self, distance: int) -> float:
        self._grow(distance + 1)
        bucket = self._bucket[distance]
        return float(self._counts[bucket] / self._sizes[bucket] + self._prior[distance])

    def _grow(self, steps: int) -> None:
        if steps <= len(self._bucket):
            return
        edges = _edges(2 * steps)
        self._sizes = np.diff(edges).astype(np.float64)
        self._bucket = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        self._counts = np.concatenate([self._counts, np.zeros(len(edges) - 1 - len(self._counts))])
        prior = (1.0 + np.arange(len(self._bucket))) ** -PRIOR_EXPONENT
        self._prior = prior / prior.sum()


def _edges(steps: int) -> NDArray[np.int64]:
    """Bucket borders: every step up to EXACT_STEPS, then half octaves beyond `steps`. A prefix of those for more steps."""
    edges = list(range(EXACT_STEPS + 1))
    octave = 1
    while edges[-1] < steps:
        edges.append(round(EXACT_STEPS * 2 ** (octave / 2)))
        octave += 1
    return np.array(edges)


class _Part:
    """One kind of landmark: its weight in observations, and where around the landmark prompts leave (before, at or after)."""

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight
        self.before, self.after = _Histogram(), _Histogram()

    @property
    def scale(self) -> float:
        """What turns observations into a share of all prompts, before the mixture is normalised."""
        return self.weight / (self.before.total + self.after.total + 2.0)

    def add(self, offset: int, amount: float) -> None:
        self.weight += amount
        (self.after if offset >= 0 else self.before).add(abs(offset), amount)

    def decay(self, factor: float) -> None:
        self.weight = max(self.weight * factor, 1.0)
        self.before.decay(factor)
        self.after.decay(factor)

    def at(self, offset: int) -> float:
        return self.scale * (self.after if offset >= 0 else self.before).at(abs(offset))

    def around(self, steps: int, landmarks: Sequence[int]) -> Curve:
        """Density at the positions 0 .. steps, each by its nearest landmark, all landmarks of the kind alike."""
        before, after = self.before.mass(steps + 1), self.after.mass(steps + 1)
        curve = np.empty(steps + 1)
        low = 0
        for number, landmark in enumerate(landmarks):
            high = (landmark + landmarks[number + 1] + 1) // 2 if number + 1 < len(landmarks) else steps + 1
            curve[low:landmark] = before[1 : landmark - low + 1][::-1]
            curve[landmark:high] = after[: high - landmark]
            low = high
        curve *= self.scale / len(landmarks)
        return curve


class Rollbacks:
    """Learns from every prompt where it left the conversation it continues. One owner; not thread-safe.

    Starting from nothing it knows only the prior: near a landmark is likelier than far, and the tip likelier than the rest.
    """

    def __init__(self, decay: float = DECAY) -> None:
        self._parts: dict[str, _Part] = defaultdict(_Part, {TIP: _Part(TIP_PRIOR)})
        self._flat = 1.0
        self._decay = decay
        self.learning = True  # False: what was learned stays as it is, to judge it on other traffic
        self.observed = 0

    @property
    def weights(self) -> dict[str, float]:
        """Observations by kind of landmark, decayed; FLAT is what no landmark explains."""
        return {FLAT: self._flat, **{kind: part.weight for kind, part in self._parts.items()}}

    def observe(self, shape: Shape, position: int) -> None:
        """A prompt continued `shape` and had its first `position` tokens in common with it (position <= length)."""
        if not self.learning:
            return
        step = min(position // shape.grid, shape.steps)
        shares = [(kind, offset, self._parts[kind].at(offset) / count) for kind, offset, count in _offsets(shape, step)]
        flat = self._flat / (shape.steps + 1)
        total = flat + sum(share for _, _, share in shares)
        self._fade()
        self._flat += flat / total
        for kind, offset, share in shares:
            self._parts[kind].add(offset, share / total)
        self.observed += 1

    def density(self, shape: Shape) -> Curve:
        """Probability that the next prompt has exactly i grid steps in common, i = 0 .. steps; sums to 1."""
        steps = shape.steps
        curve = np.full(steps + 1, self._flat / (steps + 1))
        for kind, landmarks in _steps_of(shape):
            curve += self._parts[kind].around(steps, landmarks)
        curve /= curve.sum()
        return curve

    def _fade(self) -> None:
        self._flat = max(self._flat * self._decay, 1.0)
        for part in self._parts.values():
            part.decay(self._decay)


def _steps_of(shape: Shape) -> list[tuple[str, list[int]]]:
    """Landmarks in grid steps, the tip among them."""
    kinds = [(kind, sorted({position // shape.grid for position in positions})) for kind, positions in shape.landmarks]
    return [*((kind, steps) for kind, steps in kinds if steps), (TIP, [shape.steps])]


def _offsets(shape: Shape, step: int) -> list[tuple[str, int, int]]:
    """(kind, signed distance of `step` from the nearest landmark of that kind, how many there are)."""
    found = []
    for kind, landmarks in _steps_of(shape):
        index = bisect_left(landmarks, step)
        nearest = min(landmarks[max(0, index - 1) : index + 1], key=lambda landmark: abs(step - landmark))
        found.append((kind, step - nearest, len(landmarks)))
    return found
