"""What a served engine has measured reaches the plans of `tope`."""

from types import SimpleNamespace
from typing import Any

from engine.stats import Counters
from keeper.strategies.tope import Prices
from server.keeper_local import prices


def after(**counters: Any) -> Prices:
    """The prices of a runtime whose engine counted this much."""
    engine = SimpleNamespace(stats=lambda: SimpleNamespace(counters=Counters(**counters)))
    return prices(SimpleNamespace(engine=engine))  # type: ignore[arg-type]


def test_until_something_was_read_the_assumptions_of_a_proxy_hold() -> None:
    assert after() == Prices()


def test_what_was_read_and_restored_gives_ms_a_token() -> None:
    found = after(read_tokens=1_000, read_ms=8_000.0, restored_tokens=4_000, restore_ms=200.0)
    assert (found.reread_ms_a_token, found.restore_ms_a_token) == (8.0, 0.05)
