"""BM25 over a bounded number of candidate sentences. Pure.

SQLite's own bm25() counts every row of the whole index that holds a word before it scores the first, which takes longer the more
is archived. Here the caller hands in the candidates and how often each word occurs (counted up to a bound).

    score = sum over words of idf(word) * tf * (K + 1) / (tf + K * (1 - B + B * length / MEAN))
    idf   = ln(1 + (rows - df + 0.5) / (df + 0.5))              Robertson and Zaragoza, 2009, with Lucene's 1 +
"""

import math
import re
from collections.abc import Mapping, Sequence

K, B = 1.2, 0.75
MEAN = 14  # words of a sentence; a fixed mean keeps a score the same while the archive grows
WORD = re.compile(r"\w+")


def scores(words: Sequence[str], texts: Sequence[str], occurs: Mapping[str, int], rows: int) -> list[float]:
    """The score of each text; words in lower case, `occurs` how many of `rows` sentences hold each."""
    weights = {word: math.log(1 + (max(rows, occurs[word]) - occurs[word] + 0.5) / (occurs[word] + 0.5)) for word in words}
    return [_score(weights, WORD.findall(text.lower())) for text in texts]


def _score(weights: Mapping[str, float], found: Sequence[str]) -> float:
    norm = K * (1 - B + B * len(found) / MEAN)
    times = ((weight, found.count(word)) for word, weight in weights.items())
    return sum(weight * tf * (K + 1) / (tf + norm) for weight, tf in times if tf)
