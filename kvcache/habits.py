"""What a server does with what it learns of its own traffic: one call for each prompt, before it is read."""

from collections.abc import Iterable

from kvcache.adaptive import Curve, Rollbacks
from kvcache.entry import Match
from kvcache.store import Store
from kvcache.thinning import LEAST_TOKENS, worths
from kvcache.watch import Watch


class Habits:
    """Learns where prompts leave the conversations they continue, and tells the store what each of them can spare.

    One owner, one thread (the engine's); the store has its own lock. What was learned lasts as long as the process: starting
    from nothing costs little (docs/benchmarks.md), and a file of habits would be one more thing to go stale.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._grid = store.config.grid
        self._watch = Watch(self._grid, Rollbacks())

    def expect(self, match: Match, length: int, marks: Iterable[tuple[str, int]]) -> Curve | None:
        """A prompt of `length` tokens starts, of which `match` is stored; where the one after it will leave it, in grid steps.

        `marks`: anchors as (kind, position in tokens). None when nothing is stored by ids (every tier is off).
        """
        if not match.ids:
            return None
        curve = self._watch.note(match.ids, length, marks)
        steps = [ref.position // self._grid for ref in match.checkpoints]
        found = worths(curve, steps, least=LEAST_TOKENS / self._grid)
        self._store.judge({ref.id: worth for ref, worth in zip(match.checkpoints, found, strict=True)})
        return curve
