"""GBNF for JSON numbers, with bounds. Bounds are whole numbers; fractions as bounds would need a rule for each digit."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.gbnf import either

_MOST_DIGITS = 16
_FRACTION = f'("." [0-9]{{1,{_MOST_DIGITS}}})?'
_ZEROS = f'("." "0"{{1,{_MOST_DIGITS}}})?'
_SOME_FRACTION = f'"." [0-9]{{0,{_MOST_DIGITS - 1}}} [1-9]'

INTEGER = f'"-"? ("0" | [1-9] [0-9]{{0,{_MOST_DIGITS - 1}}})'
NUMBER = INTEGER + f" {_FRACTION} ([eE] [-+]? [0-9]{{1,2}})?"


@dataclass(frozen=True, slots=True)
class Bounds:
    """From `low` to `high` (None: no bound); an open end leaves the bound itself out."""

    low: int | None = None
    high: int | None = None
    low_open: bool = False
    high_open: bool = False


def integer(bounds: Bounds) -> str | None:
    """A whole number within bounds; None when there is none."""
    return INTEGER if bounds == Bounds() else _signed(bounds, _whole)


def number(bounds: Bounds) -> str | None:
    """A number within bounds, None when there is none; a bounded one is written without an exponent."""
    return NUMBER if bounds == Bounds() else _signed(bounds, _decimal)


def _signed(bounds: Bounds, write: Callable[[Bounds], list[str]]) -> str | None:
    """Splits at zero, which counts as not negative; `write` gets magnitudes."""
    below, above = _below_zero(bounds), _from_zero(bounds)
    found = [f'"-" {text}' for text in write(below)] if below else []
    found += write(above) if above else []
    return either(found) if found else None


def _below_zero(bounds: Bounds) -> Bounds | None:
    """The magnitudes of the negative numbers within."""
    if bounds.low is not None and bounds.low >= 0:
        return None
    high = None if bounds.low is None else -bounds.low
    if bounds.high is None or bounds.high >= 0:
        return Bounds(0, high, True, bounds.low_open)
    return Bounds(-bounds.high, high, bounds.high_open, bounds.low_open)


def _from_zero(bounds: Bounds) -> Bounds | None:
    if bounds.high is not None and bounds.high < 0:
        return None
    if bounds.low is None or bounds.low < 0:
        return Bounds(0, bounds.high, False, bounds.high_open)
    return bounds


def _whole(bounds: Bounds) -> list[str]:
    low = (bounds.low or 0) + bounds.low_open
    high = None if bounds.high is None else bounds.high - bounds.high_open
    return _digits(low, high)


def _decimal(bounds: Bounds) -> list[str]:
    """Whole parts strictly below the bound take any fraction; the bounds themselves take what their openness leaves."""
    low, high = bounds.low or 0, bounds.high
    found = []
    if bounds.low_open and (high is None or high > low):
        found.append(f'"{low}" {_SOME_FRACTION}')
    first = low + bounds.low_open
    found += [f"{text} {_FRACTION}" for text in _digits(first, None if high is None else high - 1)]
    if high is not None and first <= high and not bounds.high_open:
        found.append(f'"{high}" {_ZEROS}')
    return found


def _digits(low: int, high: int | None) -> list[str]:
    """Whole numbers from low >= 0 to high, without leading zeros: an alternative for each length."""
    if high is None:
        length = len(str(low))
        longer = f"[1-9] [0-9]{{{length},{max(length, _MOST_DIGITS - 1)}}}"
        return [*_digits(low, 10**length - 1), longer]
    if low > high:
        return []
    found = []
    for length in range(len(str(low)), len(str(high)) + 1):
        least = max(low, 10 ** (length - 1) if length > 1 else 0)
        found.append(_between(str(least), str(min(high, 10**length - 1))))
    return [either(found)]


def _between(low: str, high: str) -> str:
    """Digit strings of one length, from low to high."""
    if low == high:
        return f'"{low}"' if low else ""
    if low == "0" * len(low) and high == "9" * len(high):
        return f"[0-9]{{{len(low)}}}"
    if low[0] == high[0]:
        return f'"{low[0]}" {_between(low[1:], high[1:])}'
    rest = len(low) - 1
    first, last = int(low[0]), int(high[0])
    found = []
    if low[1:] != "0" * rest:
        found.append(f'"{first}" {_between(low[1:], "9" * rest)}')
        first += 1
    if high[1:] != "9" * rest:
        last -= 1
    if first <= last:
        found.append(f"[{first}-{last}]" + (f" [0-9]{{{rest}}}" if rest else ""))
    if high[1:] != "9" * rest:
        found.append(f'"{high[0]}" {_between("0" * rest, high[1:])}')
    return either(found)
