"""Where to keep a checkpoint of a prompt that is about to be read: pure functions, chosen by name.

A placement only says where states are worth copying out; what stays afterwards under the byte budget is eviction's
business (eviction.py). Positions are counts of tokens before the checkpoint and always multiples of the grid.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvcache.adaptive import Curve
from kvcache.thinning import CORE, LEAST_TOKENS, SPREAD, spread, thin

Mark = tuple[int, str, bool]
"""(position in tokens, kind, pinned): a place after which a later prompt is likely to differ."""

TURN_KINDS = frozenset({"user_end", "last_user_end", "tool_results_end", "assistant_start"})
FIRM_KINDS = frozenset({"tools_end", "system_end", "client"})
"""Where many prompts may come back to, or where a client has asked for it: kept whatever a cut costs, as pinned ones are."""

END_OFFSET = 512
FINEST_INTERVAL = 256
HEADER_TOKENS = 3
"""`<|im_start|>assistant` and a line break; no template's header is shorter, and what follows may be taken back (thinking)."""


@dataclass(frozen=True, slots=True)
class PlacementFacts:
    """What is known of a prompt when its reading starts.

    `length`: tokens of the prompt. `start`: tokens already resident, where reading goes on. `grid`: tokens; positions are
    multiples of it. `interval`: tokens between regular checkpoints, 0 for none. `anchors`: in any order, off the grid or
    beyond the prompt as they come. `branches`: positions where earlier prompts left this one's chain, as far as known.
    `fill`: a batch of fewer tokens is cut off by a checkpoint only where that matters; 0: cuts cost nothing. `tip`: where the
    slot is going to keep a state of its own off the grid, 0 for nowhere.
    For `adaptive`: `curve` is what watch.Watch.note returned for this prompt, `kept` are the stored checkpoints on its
    chain, `limit` is how many checkpoints of one conversation are worth their bytes, and `least` how many tokens one must
    be expected to save; without a curve it is `anchors`.
    """

    length: int
    start: int
    grid: int
    interval: int
    anchors: tuple[Mark, ...] = ()
    branches: tuple[int, ...] = ()
    curve: Curve | None = field(default=None, compare=False)
    kept: tuple[int, ...] = ()
    limit: int = CORE
    least: int = LEAST_TOKENS
    fill: int = 0
    tip: int = 0


class UnknownPolicy(ValueError):
    """A placement or eviction name that does not exist; `known` are those that do."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(sorted(known))
        super().__init__(f"unknown policy {name!r}; known: {', '.join(self.known)}")


def last_position(facts: PlacementFacts) -> int:
    """The last grid multiple that leaves at least one token to decode; 0 for a prompt of at most `grid` tokens."""
    return _floor(facts.length - 1, facts.grid)


def tip_position(anchors: Iterable[int], length: int) -> int:
    """Where a live slot keeps one state off the grid for itself: where the answer starts; 0 without an anchor in the prompt.

    That is behind the last anchor and the header of the answer: up to there the next prompt is equal, whether it is the same
    again or brings the answer back in other words. At least one token stays to be read.
    """
    last = max((position for position in anchors if position < length), default=0)
    return min(last + HEADER_TOKENS, length - 1) if last else 0


def positions(policy: str, facts: PlacementFacts) -> tuple[int, ...]:
    """Checkpoint positions by the named policy: grid multiples in (start, length - 1], ascending, no duplicates.

    Names joined by + are united. Raises UnknownPolicy. The default policy of the server is DEFAULT.
    """
    places = [_policy(name) for name in policy.split("+")]
    rounded = {_floor(position, facts.grid) for place in places for position in place(facts)}
    return tuple(sorted(p for p in rounded if facts.start < p < facts.length))


def derive_interval(budget_bytes: int, checkpoint_bytes: int, n_ctx: int, grid: int) -> int:
    """Tokens between regular checkpoints: the finest of 256, 512, 1024, ... (rounded up to the grid) at which one full
    context of `n_ctx` tokens keeps its checkpoints in half of the byte budget; the other half is for blocks and older
    conversations. Never beyond n_ctx rounded up to the grid.

    Doubling keeps the intervals nested, so another budget at the next start finds the old positions on its own grid.
    """
    coarsest = max(grid, _ceil(n_ctx, grid))
    interval = min(_ceil(FINEST_INTERVAL, grid), coarsest)
    while interval < coarsest and 2 * checkpoint_bytes * (n_ctx // interval) > budget_bytes:
        interval = min(2 * interval, coarsest)
    return interval


def _policy(name: str) -> "Place":
    try:
        return POLICIES[name]
    except KeyError:
        raise UnknownPolicy(name, POLICIES) from None


def _none(_: PlacementFacts) -> Iterable[int]:
    """The baseline: no checkpoint, so only live appends are reused."""
    return ()


def _newest(facts: PlacementFacts) -> Iterable[int]:
    """One at the end of the prompt, as a server does that saves each finished prompt."""
    return (last_position(facts),)


def _turn_ends(facts: PlacementFacts) -> Iterable[int]:
    """The end of every turn that the anchors name, and of the prompt (vLLM's semantic points, pull request 49574)."""
    return (*(position for position, kind, _ in facts.anchors if kind in TURN_KINDS), last_position(facts))


def _end_offset(facts: PlacementFacts) -> Iterable[int]:
    """The end and 512 tokens before it: llama-server's two points near the prompt's end."""
    return (last_position(facts), max(0, last_position(facts) - END_OFFSET))


def _before_end(facts: PlacementFacts) -> Iterable[int]:
    """One grid step before the end, where most prompts of real agents leave the one before (docs/benchmarks.md)."""
    return (last_position(facts) - facts.grid,)


def _branches(facts: PlacementFacts) -> Iterable[int]:
    """Where earlier prompts left this chain: the branch points of Marconi (MLSys 2025), found by reading across them."""
    return facts.branches


def _interval(facts: PlacementFacts) -> Iterable[int]:
    """Every `interval` tokens, counted from 0 so that every branch finds the same positions, and the end."""
    step = _ceil(facts.interval, facts.grid)
    regular = range(step, facts.length, step) if step > 0 else ()
    return (*regular, last_position(facts))


def _anchors(facts: PlacementFacts) -> Iterable[int]:
    """Anchors of the chat template, the regular interval between them, and the end; as many as `fill` lets."""
    firm = [position for position, kind, pinned in facts.anchors if pinned or kind in FIRM_KINDS]
    wanted = (*(position for position, _, _ in facts.anchors), *_interval(facts))
    places = _filled(facts, (*firm, *facts.branches, last_position(facts)), wanted)
    return (place for place in places if not _is_spared(facts, place))


def _is_spared(facts: PlacementFacts, place: int) -> bool:
    """Whether the tip does for a cut that is right before it: where the reading goes on from off the grid, so that the cut would
    give no canonical state, and a stored checkpoint is near enough for whoever has lost the slot."""
    near = facts.tip - max((position for position in facts.kept if position <= place), default=0) <= facts.fill
    return near and facts.start % facts.grid > 0 and place == _floor(facts.tip, facts.grid)


def _filled(facts: PlacementFacts, firm: Iterable[int], wanted: Iterable[int]) -> Iterable[int]:
    """All of `firm`, and one of `wanted` only where the next would lie beyond `fill` tokens from the cut before: so the last
    that a batch can still reach ends it, and the ones that it passes over are within that batch of it."""
    barriers = {_floor(position, facts.grid) for position in firm}
    places = sorted(p for p in {*barriers, *(_floor(position, facts.grid) for position in wanted)} if p < facts.length)
    at = facts.start
    for place, following in zip(places, [*places[1:], facts.length], strict=True):
        if place > at and (place in barriers or following > at + facts.fill):
            yield place
            at = place


def _geometric(facts: PlacementFacts) -> Iterable[int]:
    """At distances grid * 2^j before the end: a rollback of d tokens re-reads at most d more, with O(log n) checkpoints.

    Source: the ruler (Fenwick) schedule, elementary; the relative bound is derived in docs/benchmarks.md.
    """
    end = last_position(facts)
    distances = (0, *(facts.grid << j for j in range(max(0, end // facts.grid).bit_length())))
    return [end - d for d in distances]


def _adaptive(facts: PlacementFacts) -> Iterable[int]:
    """`anchors`, and the positions that the learned curve makes worth keeping beside those that are kept already.

    Source: adaptive.Rollbacks and thinning.thin; what it saves on real traces is in docs/benchmarks.md.
    """
    if facts.curve is None:
        return _anchors(facts)
    first, last = facts.start // facts.grid, last_position(facts) // facts.grid
    offered = spread(facts.curve, first, last, max(SPREAD, 4 * facts.limit))
    kept = [position // facts.grid for position in facts.kept]
    worth = thin(facts.curve, {*kept, *offered}, facts.limit, facts.least / facts.grid)
    return (*(step * facts.grid for step in worth if not _is_spared(facts, step * facts.grid)), *_anchors(facts))


def _grid(facts: PlacementFacts) -> Iterable[int]:
    """Every grid multiple: the most that any placement can give, the reference for the others."""
    return range(facts.grid, facts.length, facts.grid)


def _floor(position: int, grid: int) -> int:
    return position // grid * grid


def _ceil(position: int, grid: int) -> int:
    return -(-position // grid) * grid


Place = Callable[[PlacementFacts], Iterable[int]]
POLICIES: dict[str, Place] = {
    "none": _none,
    "newest": _newest,
    "turn-ends": _turn_ends,
    "end-512": _end_offset,
    "before-end": _before_end,
    "branches": _branches,
    "interval": _interval,
    "anchors": _anchors,
    "geometric": _geometric,
    "adaptive": _adaptive,
    "grid": _grid,
}
DEFAULT = "adaptive"
