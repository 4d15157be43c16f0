"""The server itself, replayed from a recording with no model: where each request resumes and what it reads again, in tokens.

It knows what the engine does with one slot and budgets that hold everything: the live slot, blocks and checkpoints on the
grid, the placement by name, the newest checkpoint of an answer. That it agrees with the live server token for token is a
test (tests/e2e/test_replay.py), so a recording can be replayed under another placement and believed.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from kvcache.adaptive import Rollbacks
from kvcache.chain import chain_ids, child_id, pack_tokens
from kvcache.placement import Mark, PlacementFacts, positions, tip_position
from kvcache.watch import Watch

ROOT = b"served"


@dataclass(frozen=True, slots=True)
class Request:
    """One request: `prompt` tokens, the `resident` ones that the slot held at the end (the prompt and the decoded part of the
    answer), anchors, the most tokens that could have been generated, and what the server took for `PlacementFacts.fill`."""

    prompt: tuple[int, ...]
    resident: tuple[int, ...]
    anchors: tuple[Mark, ...]
    limit: int
    fill: int = 0

    def tip(self, start: int, grid: int) -> int:
        """Where the slot keeps a state of its own, off the grid (placement.tip_position); 0: nowhere."""
        at = tip_position([position for position, _, _ in self.anchors], len(self.prompt))
        return at if at > max(start, len(self.prompt) // grid * grid) else 0


@dataclass(frozen=True, slots=True)
class Served:
    """Where a request resumed, and how many tokens it read although an earlier one had decoded them."""

    position: int
    reread: int


class Replayed:
    """One slot over a store that drops nothing. `checkpoints`: the model needs them; where it does not, any cut is exact."""

    def __init__(self, placement: str, interval: int, grid: int, *, checkpoints: bool = True, durable: bool = True) -> None:
        self._placement, self._interval, self._grid = placement, interval, grid
        self._needs, self._durable = checkpoints, durable
        self._slot: tuple[int, ...] = ()
        self._tip = self._ending = 0
        self._watch = Watch(grid, Rollbacks())
        self._checkpoints: set[bytes] = set()
        self._following: dict[bytes, list[tuple[int, ...]]] = {}
        self._blocks: set[bytes] = set()
        self._tips: dict[bytes, set[tuple[int, ...]]] = {}  # parked ones: the tokens from the grid multiple before to the tip

    def restart(self, *, ram: bool = False) -> None:
        """The server was stopped and started again: slot and habits are empty; the store too, unless it is durable. `ram`: what
        lay in RAM alone is still there."""
        self._tips = self._tips if ram else {}
        self._slot, self._tip, self._ending = (), 0, 0
        self._watch = Watch(self._grid, Rollbacks())
        if not self._durable:
            self._checkpoints, self._following, self._blocks = set(), {}, set()

    def serve(self, request: Request) -> Served:
        ids = chain_ids(ROOT, request.prompt, self._grid)
        whole = bisect_left(range(len(ids)), True, key=lambda i: ids[i] not in self._blocks)
        live = _common(self._slot, request.prompt)
        position = self._resume(request, ids, live, whole * self._grid)
        known = max(live, self._stored(request.prompt, ids, whole))
        if position < len(request.prompt):
            self._move_tip(request, live, position)
        self._keep(request, ids, position)
        return Served(position, max(0, known - position))

    def _resume(self, request: Request, ids: Sequence[bytes], live: int, stored: int) -> int:
        """Stay where the slot is a prefix of the prompt; else the deepest checkpoint with cells or blocks before it."""
        last = len(request.prompt) - 1
        if live == len(request.prompt) == self._ending:
            return live
        if live == len(self._slot) <= last and live >= stored:
            return live
        reach = min(max(live, stored), last)
        if not self._needs:
            return reach if live >= stored else reach // self._grid * self._grid
        steps = [step for step in range(reach // self._grid, 0, -1) if ids[step - 1] in self._checkpoints]
        own = self._tip if self._tip <= min(live, last) else 0
        deepest = max(steps[0] * self._grid if steps else 0, own, self._parked_tip(request.prompt, ids))
        return live if live == len(self._slot) <= last and live >= deepest else deepest

    def _move_tip(self, request: Request, live: int, position: int) -> None:
        """A new tip and a new ending replace the old ones, which are lost when the slot is cut before them. Logits are kept of a
        prompt that was to be answered."""
        cut = position if position <= live else min(live, len(request.prompt) - 1) // self._grid * self._grid
        if self._tip > cut:
            self._park_tip()
        self._ending = len(request.prompt) if request.limit else self._ending if self._ending <= cut else 0
        kept = self._tip if self._tip <= cut else 0
        self._tip = (request.tip(position, self._grid) or kept) if self._needs and self._interval else 0

    def _park_tip(self) -> None:
        start = self._tip // self._grid * self._grid
        parent = ROOT
        for at in range(0, start, self._grid):
            parent = child_id(parent, pack_tokens(self._slot[at : at + self._grid]))
        self._tips.setdefault(parent, set()).add(self._slot[start : self._tip])

    def _parked_tip(self, prompt: tuple[int, ...], ids: Sequence[bytes]) -> int:
        """Where the deepest parked tip of this prompt stands, before its last token; 0: none."""
        found = 0
        for step, parent in enumerate((ROOT, *ids)):
            for tokens in self._tips.get(parent, ()):
                end = step * self._grid + len(tokens)
                if end < len(prompt) and prompt[end - len(tokens) : end] == tokens:
                    found = max(found, end)
        return found

    def _stored(self, prompt: tuple[int, ...], ids: Sequence[bytes], whole: int) -> int:
        """Leading tokens in stored blocks, the last of them perhaps in part."""
        at = whole * self._grid
        following = [*self._following.get(ids[whole - 1], []), *self._tips.get(ids[whole - 1], ())] if whole else []
        return at + max((_common(tokens, prompt[at : at + self._grid]) for tokens in following), default=0)

    def _keep(self, request: Request, ids: Sequence[bytes], position: int) -> None:
        grid, length, resident = self._grid, len(request.prompt), request.resident
        wanted = self._wanted(request, ids, position)
        answer = range((length // grid + 1) * grid, len(resident), grid)
        rolled = [at for at in answer if at not in wanted][-1:]
        ends = [len(resident)] if len(resident) % grid == 0 else []
        saved = {at for at in (*wanted, *rolled, *ends) if position < at <= len(resident)}
        parent = ROOT
        for start in range(0, len(resident) - grid + 1, grid):
            tokens = resident[start : start + grid]
            id = child_id(parent, pack_tokens(tokens))
            if id not in self._blocks:
                self._blocks.add(id)
                self._following.setdefault(parent, []).append(tokens)
            if start + grid in saved:
                self._checkpoints.add(id)
            parent = id
        self._slot = resident

    def _wanted(self, request: Request, ids: Sequence[bytes], position: int) -> set[int]:
        """As the engine does: positions in the prompt, in the answer, and the prompt's end where it is on the grid."""
        if self._interval == 0:
            return set()
        grid, length = self._grid, len(request.prompt)
        curve = self._watch.note(ids, length, [(kind, at) for at, kind, _ in request.anchors]) if ids else None
        kept = tuple((step + 1) * grid for step, id in enumerate(ids) if id in self._checkpoints)
        prompt = PlacementFacts(
            length,
            position,
            grid,
            self._interval,
            request.anchors,
            curve=curve,
            kept=kept,
            fill=request.fill,
            tip=request.tip(position, grid),
        )
        answer = PlacementFacts(length + request.limit + 1, length, grid, self._interval)
        wanted = {at for facts in (prompt, answer) for at in positions(self._placement, facts)}
        return wanted | {length} if length % grid == 0 else wanted


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Leading equal tokens, by halving over slices (which compare at C speed)."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
