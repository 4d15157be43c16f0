"""Which devices a server uses, and how much may be read ahead: what is understood and what is refused by name."""

import pytest

from engine.config import Budget
from server.config import ConfigError, load
from server.devices import Layout, budget, layout


@pytest.mark.parametrize(
    ("devices", "slots", "expected", "shared", "threads"),
    [
        ("", 0, Layout(("",)), False, 1),
        ("", 1, Layout(("", ""), hosted=True), True, 1),
        ("cpu, cpu", 0, Layout(("cpu", "cpu")), True, 2),
        ("0,1", 0, Layout(("0", "1")), False, 2),
        ("1", 1, Layout(("1", "1"), hosted=True), True, 1),
    ],
)
def test_devices_are_laid_out_as_they_were_named(devices: str, slots: int, expected: Layout, shared: bool, threads: int) -> None:
    found = layout(devices, slots)
    assert found == expected
    assert (found.shared, found.threads) == (shared, threads)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"devices": "cpu,0"}, "--devices cpu,0: .*other bits"),
        ({"devices": "gpu"}, "--devices gpu: .*is no device"),
        ({"devices": "0,,1"}, "--devices 0,,1: '' is no device"),
        ({"devices": "0,1", "background_slots": 1}, "--devices 0,1: .*for one device"),
        ({"background_budget": "0"}, "--background-budget 0: .*number of tokens"),
        ({"background_budget": "1.5"}, "--background-budget 1.5"),
        ({"background_budget": "soon"}, "--background-budget soon"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name_and_reason(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(given)


def test_a_budget_is_tokens_or_seconds_of_the_engine_that_reads() -> None:
    assert budget("8192") == Budget(tokens=8192)
    assert budget("1.5s") == Budget(seconds=1.5)
    assert budget("2s").left(spent=300, token_ms=5.0) == 100
