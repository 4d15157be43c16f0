"""A measure of texts that remembers its results without holding the texts: keyed by their digest, bounded in number."""

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Generic, TypeVar

T = TypeVar("T")


class Remembered(Generic[T]):
    """Calls `measure` once for each text among the last `most` different ones. Belongs to one event loop."""

    def __init__(self, measure: Callable[[str], T], most: int = 16384) -> None:
        self._measure = measure
        self._most = most
        self._results: OrderedDict[bytes, T] = OrderedDict()

    def __call__(self, text: str) -> T:
        key = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if key in self._results:
            self._results.move_to_end(key)
            return self._results[key]
        result = self._results[key] = self._measure(text)
        if len(self._results) > self._most:
            self._results.popitem(last=False)
        return result
