"""Which strategies there are, by name."""

from collections.abc import Callable

from keeper.errors import UnknownStrategy
from keeper.strategies.base import Strategy


def makers() -> dict[str, Callable[[], Strategy]]:
    """How to make each strategy. A new one is imported and named here."""
    from keeper.strategies.pass_through import PassThrough

    return {
        "pass_through": PassThrough,
    }


def names() -> tuple[str, ...]:
    return tuple(sorted(makers()))


def make(name: str) -> Strategy:
    """The strategy called `name` (dashes and underscores are the same); UnknownStrategy lists what there is."""
    found = makers().get(name.replace("-", "_"))
    if found is None:
        raise UnknownStrategy(name, names())
    return found()
