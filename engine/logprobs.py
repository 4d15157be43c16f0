"""Log-probabilities of a draw, from the model's raw logits (before temperature and penalties), as OpenAI reports them."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from engine.request import TokenLogprob


def top_logprobs(
    logits: NDArray[np.float32], token: int, count: int, piece: Callable[[int], bytes]
) -> tuple[TokenLogprob, tuple[TokenLogprob, ...]]:
    """The chosen token's and the `count` largest natural-log probabilities, ascending ids among equals.

    log softmax is taken in float64 with the maximum subtracted, so equal logits give equal bits.
    """
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    count = min(count, len(wide))
    best = np.argpartition(-wide, count - 1)[:count] if count else np.empty(0, np.int64)
    ranked = sorted((int(i) for i in best), key=lambda i: (-wide[i], i))
    return _entry(token, wide, piece), tuple(_entry(i, wide, piece) for i in ranked)


def _entry(token: int, logprobs: NDArray[np.float64], piece: Callable[[int], bytes]) -> TokenLogprob:
    return TokenLogprob(token, piece(token), float(logprobs[token]))
