"""Made-up sessions for --quick and tests: seeded, shaped as real agents' (mostly appends, last-step changes, deep returns)."""

import random
from collections.abc import Iterator

from kvcache.simulate import Turn

GRID = 64
HEAD_STEPS = 230
"""Tools and system text of a coding agent: about 15,000 tokens."""


def sessions(count: int, requests: int, seed: int) -> Iterator[Turn]:
    """`count` conversations of `requests` turns; ids are unique in the whole."""
    fresh = iter(range(seed << 40, 1 << 62))
    for number in range(count):
        yield from _session(f"made-up-{seed}-{number}", requests, random.Random(seed * 1_000_003 + number), fresh)


def _session(name: str, requests: int, rng: random.Random, fresh: Iterator[int]) -> Iterator[Turn]:
    """6 % of the prompts leave inside the history: two thirds of them one step before the end, a quarter at the head."""
    path = [next(fresh) for _ in range(HEAD_STEPS + rng.randrange(40))]
    marks = (("tools_end", (HEAD_STEPS - 45) * GRID), ("system_end", HEAD_STEPS * GRID))
    for turn in range(requests):
        draw = rng.random()
        if draw < 0.040:
            path = path[:-1]
        elif draw < 0.055:
            path = path[: HEAD_STEPS - rng.randrange(8)]
        elif draw < 0.060:
            path = path[: rng.randrange(1, len(path))]
        path = [*path, *(next(fresh) for _ in range(min(400, int(rng.paretovariate(0.9)))))]
        yield Turn(name, len(path) * GRID + rng.randrange(1, GRID), path, 20.0 * turn, 100, marks)
