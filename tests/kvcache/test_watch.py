"""Following conversations by ids: leaving out the search for heirs where there can be none changes nothing."""

import random

import numpy as np

from kvcache.adaptive import Rollbacks
from kvcache.watch import Watch, _Chain


class Searching(Watch):
    """Looks for heirs whenever a chain is forgotten."""

    def _forget(self, number: int, chain: _Chain) -> None:
        chain.shared = len(chain.ids)
        super()._forget(number, chain)


def test_a_chain_that_has_nothing_to_leave_to_others_is_forgotten_without_a_search() -> None:
    rng = random.Random(7)
    chats = [[0, *range(100 * number, 100 * number + 9)] for number in range(1, 25)]
    quick, searching = Watch(16, Rollbacks(), 16), Searching(16, Rollbacks(), 16)
    for fresh in range(10_000, 13_000):
        at = rng.randrange(len(chats))
        if rng.random() < 0.4:
            chats[at] = chats[rng.randrange(len(chats))][: rng.randrange(1, 9)]
        chats[at] = [*chats[at], fresh][:40]
        ids = list(chats[at])
        one, other = (watch.note(ids, len(ids) * 16 + 1) for watch in (quick, searching))
        assert np.array_equal(one, other)
        assert quick._owner == searching._owner
