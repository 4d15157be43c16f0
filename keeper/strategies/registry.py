"""Which strategies there are, by name."""

from collections.abc import Callable

from keeper.errors import UnknownStrategy
from keeper.strategies.base import Strategy
from keeper.strategies.compact import Compact
from keeper.strategies.drop import Drop
from keeper.strategies.in_place import InPlace
from keeper.strategies.pass_through import PassThrough
from keeper.strategies.retrieval import InPlaceRetrieval, Retrieval
from keeper.strategies.rewrite import Rewrite
from keeper.strategies.summarise import Summarise
from keeper.strategies.tope import Tope
from keeper.strategies.tope_notes import TopeNotes


def makers() -> dict[str, Callable[[], Strategy]]:
    """How to make each strategy. A new one is imported and named here."""
    return {
        "compact": Compact,
        "drop": Drop,
        "in_place": InPlace,
        "in_place_retrieval": InPlaceRetrieval,
        "pass_through": PassThrough,
        "retrieval": Retrieval,
        "rewrite": Rewrite,
        "summarise": Summarise,
        "tope": Tope,
        "tope_notes": TopeNotes,
    }


def names() -> tuple[str, ...]:
    return tuple(sorted(makers()))


def make(name: str) -> Strategy:
    """The strategy called `name` (dashes and underscores are the same); UnknownStrategy lists what there is."""
    found = makers().get(name.replace("-", "_").replace("+", "_"))
    if found is None:
        raise UnknownStrategy(name, names())
    return found()
