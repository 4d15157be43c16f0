"""What was read before it was asked for, and what became of it: every token of it ends as used or as wasted."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.foresight import Kind

_MOST_UNITS = 8192  # grid steps in wait of their fate; beyond that the oldest count as wasted


@dataclass(frozen=True, slots=True)
class Unit:
    """Tokens that were read to have the state behind them, at `end`. `owner` names the conversation they were read for; a
    checkpoint that was made for its own sake (`alone`) serves only a prompt that goes on from exactly there."""

    kind: Kind
    tokens: int
    owner: int
    end: int
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Fate:
    """Tokens by kind. Those that were read and are neither used nor wasted wait for their prompt."""

    read: Mapping[Kind, int]
    used: Mapping[Kind, int]
    wasted: Mapping[Kind, int]

    def share_wasted(self) -> float:
        """Of the tokens whose fate is known."""
        wasted, known = sum(self.wasted.values()), sum(self.wasted.values()) + sum(self.used.values())
        return wasted / known if known else 0.0


class Ledger:
    """Pre-read grid steps by chain id. Not thread-safe: whoever plans the reads guards it."""

    def __init__(self, grid: int) -> None:
        self._grid = grid
        self._units: OrderedDict[bytes, Unit] = OrderedDict()
        self._read: Counter[Kind] = Counter()
        self._used: Counter[Kind] = Counter()
        self._wasted: Counter[Kind] = Counter()

    def note(self, kind: Kind, owner: int, ids: Sequence[bytes], start: int, end: int) -> None:
        """Tokens [start, end) of the chain `ids` were read, `start` a grid multiple; what lies beyond the last whole grid step is
        in the slot that read it and nowhere else."""
        grid, whole = self._grid, end // self._grid
        self._read[kind] += end - start
        if kind is Kind.DENSIFY:
            self._add(ids[whole - 1], Unit(kind, end - start, owner, end, alone=True))
            return
        for step in range(start // grid, whole):
            self._add(ids[step], Unit(kind, grid, owner, (step + 1) * grid))
        if rest := end - max(start, whole * grid):
            self._add(_behind(ids[whole - 1]), Unit(kind, rest, owner, end))

    def served(self, ids: Sequence[bytes], position: int) -> None:
        """A request went on from `position` of the chain `ids`, by state that was read before."""
        for id in ids[: position // self._grid]:
            for key in (id, _behind(id)):
                unit = self._units.get(key)
                if unit is not None and (unit.end == position if unit.alone else unit.end <= position):
                    del self._units[key]
                    self._used[unit.kind] += unit.tokens

    def gone(self, owner: int, kinds: Iterable[Kind]) -> None:
        """The conversation has moved on: what it has not used of these kinds was wasted."""
        dropped = [id for id, unit in self._units.items() if unit.owner == owner and unit.kind in kinds]
        for id in dropped:
            self._waste(id)

    def fate(self) -> Fate:
        return Fate(dict(self._read), dict(self._used), dict(self._wasted))

    def _add(self, id: bytes, unit: Unit) -> None:
        if id in self._units:
            self._waste(id)  # read a second time: the first was not kept, or not exact
        self._units[id] = unit
        if len(self._units) > _MOST_UNITS:
            self._waste(next(iter(self._units)))

    def _waste(self, id: bytes) -> None:
        unit = self._units.pop(id)
        self._wasted[unit.kind] += unit.tokens


def _behind(id: bytes) -> bytes:
    """The key of the tokens that follow a grid step and do not fill one."""
    return id + b"+"
