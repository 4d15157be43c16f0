"""A trace of chained ids run against placement x eviction x budget, with no model: the policies are those that serve.

Attention KV is assumed kept and a block without a checkpoint at its end is no hit, as on a hybrid model. Counts are tokens
where a name says so and grid steps elsewhere. Memory is bounded: what is remembered of ids and conversations has a limit.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from kvcache.adaptive import Curve, Rollbacks
from kvcache.kept import Change, Kept
from kvcache.placement import PlacementFacts, positions
from kvcache.watch import Ids, Watch, common_steps

KNOWN_IDS = 4_000_000
CONVERSATIONS = 512
LEFT = 8
"""Branches of a conversation that are watched for a return, the latest ones."""
RETURN_PRIOR, RETURN_WEIGHT = 0.3, 3.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a trace. `ids[i]` names the tokens [0, (i+1)*grid): whole grid steps only, unique in the whole trace.

    `marks`: anchors as (kind, position in tokens). `time`: seconds, ascending. `generated`: tokens of the answer.
    """

    conversation: str
    length: int
    ids: Ids
    time: float = 0.0
    generated: int = 0
    marks: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one turn cost, in tokens. `known`: leading tokens that an infinite cache would hold (the ceiling)."""

    length: int
    known: int
    resumed: int
    rollback: int | None  # tokens between the end of the conversation's last prompt and where this one left it; None: first

    @property
    def reread(self) -> int:
        """Extra tokens decoded although an earlier turn had decoded them."""
        return self.known - self.resumed

    @property
    def unavoidable(self) -> int:
        """Tokens that no cache could have saved."""
        return self.length - self.known


@dataclass(frozen=True, slots=True)
class Policy:
    """`keep`: checkpoints a conversation may hold. `evict`: a thinning rule, `exact` or an eviction order by name."""

    placement: str
    evict: str
    keep: int
    grid: int
    interval: int = 0

    @property
    def learns(self) -> bool:
        return not {"adaptive", "exact"}.isdisjoint({*self.placement.split("+"), self.evict})


class Known:
    """Which ids were ever seen: an infinite cache's content, of the last KNOWN_IDS ids at least. Two generations, so that
    the memory is bounded and the ids of one chain leave together."""

    def __init__(self, limit: int = KNOWN_IDS) -> None:
        self._limit = limit
        self._new: set[Hashable] = set()
        self._old: set[Hashable] = set()

    @property
    def size(self) -> int:
        return len(self._new) + len(self._old)

    def __call__(self, ids: Ids) -> int:
        """Leading ids known before this call; afterwards all are."""
        fresh = bisect_left(range(len(ids)), True, key=lambda i: ids[i] not in self._new)
        known = bisect_left(range(fresh, len(ids)), True, key=lambda i: ids[i] not in self._old) + fresh if self._old else fresh
        self._new.update(ids[fresh:])
        if len(self._new) > self._limit:
            self._old, self._new = self._new, set()
        return known


class Returns:
    """How likely a prompt goes back to a branch that its conversation left so many turns before: counted by age in octaves.

    Most that come back do so at once (a side question, a title, a summary of the whole), so one rate for all ages keeps
    branches too long or drops them too soon.
    """

    def __init__(self) -> None:
        self._counts: dict[int, tuple[float, float]] = {}

    def note(self, age: int, returned: bool) -> None:
        hits, seen = self._counts.get(age.bit_length(), (0.0, 0.0))
        self._counts[age.bit_length()] = (hits + returned, seen + 1)

    def __call__(self, age: int) -> float:
        """As if RETURN_WEIGHT turns had been seen before, of which RETURN_PRIOR / age returned."""
        hits, seen = self._counts.get(age.bit_length(), (0.0, 0.0))
        return (hits + RETURN_WEIGHT * RETURN_PRIOR / age) / (seen + RETURN_WEIGHT)


@dataclass(slots=True)
class _Conversation:
    """What the simulator holds of a conversation: its last chain, where its prompts ended and branched, its checkpoints."""

    kept: Kept
    ids: Ids = ()
    length: int = 0
    branches: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()  # in steps, ascending: every place once, or they would grow with the trace
    turns: int = 0
    left: tuple[tuple[int, Ids], ...] = ()  # the turns that left branches, and the chains that they left


class Simulator:
    """Replays turns one conversation's checkpoints at a time, `policy.keep` of them each."""

    def __init__(
        self,
        policy: Policy,
        rollbacks: Rollbacks | None = None,
        known: Known | None = None,
        remember: int = CONVERSATIONS,
    ) -> None:
        """`remember`: conversations that are held at once. Raises UnknownPolicy."""
        Kept(policy.evict, policy.keep)
        positions(policy.placement, PlacementFacts(1, 0, policy.grid, 0))
        self.policy = policy
        self._known = known or Known()
        self._remember = remember
        self._watch = Watch(policy.grid, rollbacks or Rollbacks(), remember)
        self._conversations: OrderedDict[str, _Conversation] = OrderedDict()
        self._returns = Returns()

    @property
    def held(self) -> int:
        """Checkpoints held now, over all conversations."""
        return sum(len(conversation.kept.points) for conversation in self._conversations.values())

    def turn(self, turn: Turn) -> Outcome:
        """Serves one request and keeps what the policy wants of it."""
        grid = self.policy.grid
        known = self._known(turn.ids)
        conversation = self._conversation(turn.conversation)
        common, rollback = self._follow(conversation, turn)
        now = conversation.turns
        usable = min(known, (turn.length - 1) // grid)
        resumed = conversation.kept.resume(turn.ids, usable, now)
        curve = self._watch.note(turn.ids, turn.length, turn.marks) if self.policy.learns else None
        placed = self._positions(conversation, turn, resumed, curve)
        conversation.kept.add(turn.ids, placed, now, Change(common, curve, self._returns))
        return Outcome(turn.length, known * grid, resumed * grid, rollback)

    def _conversation(self, name: str) -> _Conversation:
        if name not in self._conversations:
            self._conversations[name] = _Conversation(Kept(self.policy.evict, self.policy.keep))
        self._conversations.move_to_end(name)
        if len(self._conversations) > self._remember:
            self._conversations.popitem(last=False)
        return self._conversations[name]

    def _follow(self, conversation: _Conversation, turn: Turn) -> tuple[int, int | None]:
        """Notes where this prompt left the conversation's last one; returns the steps in common and the tokens left behind."""
        grid, last = self.policy.grid, conversation
        common = common_steps(last.ids, turn.ids)
        rollback = (len(last.ids) - common) * grid if last.length else None
        if rollback:
            last.branches = (*(b for b in last.branches if b < common * grid), common * grid)
        self._watch_left(last, turn.ids, common)
        last.ends = last.ends[: bisect_right(last.ends, common)]
        if last.length // grid in range(1, common + 1) and last.length // grid not in last.ends:
            last.ends = tuple(sorted((*last.ends, last.length // grid)))
        last.ids, last.length = turn.ids, turn.length
        return common, rollback

    def _watch_left(self, conversation: _Conversation, ids: Ids, common: int) -> None:
        """Notes which of the branches left before the prompt goes back to, and the one that it leaves now."""
        conversation.turns += 1
        now, last = conversation.turns, conversation.ids
        shared = [common_steps(chain, ids) for _, chain in conversation.left]
        back = max(shared, default=0)
        for (left, _), steps in zip(conversation.left, shared, strict=True):
            self._returns.note(now - left, steps == back > common)
        stays = [one for one, steps in zip(conversation.left, shared, strict=True) if not steps == back > common]
        if common < len(last):
            stays.append((now, last))
        conversation.left = tuple(stays[-LEFT:])

    def _positions(self, conversation: _Conversation, turn: Turn, resumed: int, curve: Curve | None) -> list[int]:
        grid, policy = self.policy.grid, self.policy
        facts = PlacementFacts(
            length=turn.length,
            start=resumed * grid,
            grid=grid,
            interval=policy.interval,
            anchors=(
                *((p, kind, False) for kind, p in turn.marks),
                *((end * grid, "user_end", False) for end in conversation.ends),
            ),
            branches=conversation.branches,
            curve=curve,
            kept=tuple(step * grid for step in conversation.kept.on(turn.ids)) if policy.learns else (),
            limit=policy.keep,
            least=0,
        )
        return [position // grid for position in positions(policy.placement, facts)]
