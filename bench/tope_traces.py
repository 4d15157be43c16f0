"""What stays in view at a cut, on real agent traces: 4tope against last-k results, the recent tail and random results.

At a cut behind round c the history is the task and c rounds of step and result. What the agent needs later is known: the
distinctive tokens of its later steps that also stood in a result before the cut (tokens of the task are always in view and do
not count). Each way of choosing makes a text of at most the allowance; its score is the share of those tokens that the text
holds. Cuts after which nothing from before is used have no score.

Confidence intervals are two-stage bootstraps with a fixed seed: sessions are drawn with replacement, then cuts within each,
because cuts of one session resemble each other.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from keeper.distance import distances
from keeper.distinctive import tokens
from keeper.edit import Budget, Fate, assumed
from keeper.evidence import Policy
from keeper.excerpt import clip, size
from keeper.graph import Kind, build
from keeper.message import Message
from keeper.plan import plan_edit
from keeper.unfold import unfold

RESAMPLES = 2_000
BYTES_A_TOKEN = 4

Choice = Callable[[Sequence[Message], int], str]
"""(history up to the cut, allowance in bytes) -> the text that stays in view beside the task."""


class Cut(NamedTuple):
    """history[:end] is before the cut; `needed` are the tokens from its results that later steps use."""

    session: str
    history: Sequence[Message]
    needed: frozenset[str]


class Interval(NamedTuple):
    mean: float
    low: float
    high: float


def cuts(session: str, history: Sequence[Message]) -> list[Cut]:
    """Every possible cut of one session: behind each result that a step follows."""
    task = frozenset[str]().union(*(tokens(m.text) for m in history if m.role in ("user", "system")))
    words = [tokens(m.text) for m in history]
    found = []
    for end in range(1, len(history)):
        if history[end - 1].role != "tool" or history[end].role != "assistant":
            continue
        came = frozenset[str]().union(*(words[i] for i in range(end) if history[i].role == "tool")) - task
        used = frozenset[str]().union(*(words[i] for i in range(end, len(history)) if history[i].role == "assistant"))
        if came & used:
            found.append(Cut(session, history[:end], came & used))
    return found


def score(cut: Cut, choice: Choice, allowance: int) -> float:
    """The share of the needed tokens that stays in view."""
    text = choice(cut.history, allowance)
    if size(text) > allowance:
        raise ValueError(f"a choice took {size(text)} of {allowance} bytes")
    return len(cut.needed & tokens(text)) / len(cut.needed)


# --- ways to choose -----------------------------------------------------------------------------------------------------


def tope(history: Sequence[Message], allowance: int) -> str:
    return unfold(build(history), allowance).text


def by_recency(history: Sequence[Message], allowance: int) -> str:
    """Ablation: age in the place of graph distance."""
    return unfold(build(history), allowance, policy=Policy(by_distance=False)).text


def without_supersession(history: Sequence[Message], allowance: int) -> str:
    return unfold(build(history, supersession=False), allowance).text


def without_failures(history: Sequence[Message], allowance: int) -> str:
    return unfold(build(history, failures=False), allowance).text


def with_policy(policy: Policy) -> Choice:
    return lambda history, allowance: unfold(build(history), allowance, policy=policy).text


def last_results(history: Sequence[Message], allowance: int) -> str:
    """The newest results, whole, as many as fit; the next one clipped into what is left."""
    return _filled([m.text for m in reversed(history) if m.role == "tool"], allowance)


def recent_tail(history: Sequence[Message], allowance: int) -> str:
    """The end of the transcript, steps and results, to the byte."""
    text = "\n".join(m.text for m in history if m.role in ("tool", "assistant"))
    data = text.encode("utf-8", "surrogatepass")
    return data[max(0, len(data) - allowance) :].decode("utf-8", "ignore")


def random_results(history: Sequence[Message], allowance: int) -> str:
    """Results in an order that depends only on how many there are."""
    texts = [m.text for m in history if m.role == "tool"]
    random.Random(len(texts)).shuffle(texts)
    return _filled(texts, allowance)


def whole_results_by_chain(history: Sequence[Message], allowance: int) -> str:
    """Whole results, those of the critical chain first, then by distance: what pruning alone keeps."""
    return _whole(history, allowance, protection=True)


def whole_results_without_protection(history: Sequence[Message], allowance: int) -> str:
    return _whole(history, allowance, protection=False)


def _whole(history: Sequence[Message], allowance: int, *, protection: bool) -> str:
    graph = build(history)
    near, protected = distances(graph), graph.protected() if protection else frozenset[int]()
    live = [n.position for n in graph.nodes if n.kind is Kind.RESULT and graph.is_live(n.position)]
    order = sorted(live, key=lambda i: (i not in protected, near.get(i, len(history)), -i))
    return _filled([history[i].text for i in order], allowance)


def _filled(texts: Sequence[str], allowance: int) -> str:
    shown: list[str] = []
    left = allowance
    for text in texts:
        if size(text) + 1 > left:
            shown.append(clip(text, left))
            break
        shown.append(text)
        left -= size(text) + 1
    return "\n".join(shown)


BASELINES: Mapping[str, Choice] = {"last-k results": last_results, "recent tail": recent_tail, "random results": random_results}
ABLATIONS: Mapping[str, Choice] = {
    "recency for distance": by_recency,
    "no supersession": without_supersession,
    "no failed-route handling": without_failures,
    "whole results, chain protected": whole_results_by_chain,
    "whole results, no protection": whole_results_without_protection,
}
SENSITIVITY: Mapping[str, Choice] = {
    "fade 0.7": with_policy(Policy(fade=0.7)),
    "fade 1.0": with_policy(Policy(fade=1.0)),
    "floor 0.0": with_policy(Policy(floor=0.0)),
    "floor 0.5": with_policy(Policy(floor=0.5)),
    "novelty 0.005": with_policy(Policy(novelty=0.005)),
    "novelty 0.08": with_policy(Policy(novelty=0.08)),
    "opening 0.0": with_policy(Policy(opening=0.0)),
    "opening 0.2": with_policy(Policy(opening=0.2)),
    "unread 0.02": with_policy(Policy(unread=0.02)),
    "unread 0.4": with_policy(Policy(unread=0.4)),
    "decay 0.6": with_policy(Policy(decay=0.6)),
    "decay 0.95": with_policy(Policy(decay=0.95)),
}


UNREAD = (0.02, 0.05, 0.1, 0.2, 0.4)
"""What `unread`, the one constant that was set after looking at traces, is chosen from when it is held out."""


# --- statistics ---------------------------------------------------------------------------------------------------------


def scores(found: Sequence[Cut], choice: Choice, allowance: int) -> dict[str, list[float]]:
    """Session -> scores of its cuts."""
    by_session: dict[str, list[float]] = {}
    for cut in found:
        by_session.setdefault(cut.session, []).append(score(cut, choice, allowance))
    return by_session


def interval(by_session: Mapping[str, Sequence[float]], seed: int) -> Interval:
    """The mean over all cuts, with the 95 % interval of a two-stage bootstrap."""
    samples = [np.asarray(values) for values in by_session.values()]
    draw = np.random.default_rng(seed)
    means = [_resampled(samples, draw) for _ in range(RESAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(np.concatenate(samples).mean()), float(low), float(high))


def _resampled(samples: Sequence["np.ndarray[tuple[int], np.dtype[np.float64]]"], draw: np.random.Generator) -> float:
    chosen = [samples[i] for i in draw.integers(len(samples), size=len(samples))]
    return float(np.concatenate([draw.choice(values, size=len(values)) for values in chosen]).mean())


def difference(ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]], seed: int) -> Interval:
    """Paired: the difference at each cut is what is resampled."""
    return interval({name: [a - b for a, b in zip(ours[name], theirs[name], strict=True)] for name in ours}, seed)


def held_out(found: Sequence[Cut], allowance: int) -> dict[str, list[float]]:
    """Each session scored with the `unread` that is best on all the other sessions."""
    tried = [scores(found, with_policy(Policy(unread=value)), allowance) for value in UNREAD]
    return {session: max(tried, key=lambda by: _mean_without(by, session))[session] for session in tried[0]}


def _mean_without(by_session: Mapping[str, Sequence[float]], session: str) -> float:
    return float(np.mean([value for name, values in by_session.items() if name != session for value in values]))


# --- what choices cost --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edited:
    """A view after an edit: the share of needed tokens in it, its tokens, and those that must be read again (estimates)."""

    share: float
    tokens: float
    reread: float


def reread_of(found: Sequence[Cut], choice: Choice, allowance: int) -> float:
    """Mean tokens to read again where the text stands behind the task: all of it."""
    return float(np.mean([size(choice(cut.history, allowance)) / BYTES_A_TOKEN for cut in found]))


def planned(cut: Cut, share_of_history: float) -> Edited:
    """The edit that plan_edit chooses where the view may take that share of the history beyond the task."""
    counts = [max(1, size(m.text) // BYTES_A_TOKEN) for m in cut.history]
    limit = counts[0] + int(sum(counts[1:]) * share_of_history)
    carried = max(1, int(sum(counts[1:]) * share_of_history / 4))
    graph = build(cut.history)
    plan = plan_edit(cut.history, graph, assumed(counts), Budget(limit, limit, carried))
    beside = {d.position for d in plan.decisions if d.fate is Fate.KEEP}
    parts = [cut.history[i].text for i in beside if i] + list(plan.stubs().values())
    if plan.start:
        parts.append(unfold(graph, carried * BYTES_A_TOKEN, in_view=beside).text)
    return Edited(len(cut.needed & tokens("\n".join(parts))) / len(cut.needed), plan.after, plan.reread)


def dropped(cut: Cut, share_of_history: float) -> Edited:
    """The baseline at the same limit: the oldest exchanges go, nothing is carried; the newest exchange always stays."""
    counts = [max(1, size(m.text) // BYTES_A_TOKEN) for m in cut.history]
    room = int(sum(counts[1:]) * share_of_history)
    start = next((i for i in range(1, len(counts), 2) if sum(counts[i:]) <= room), len(counts) - 2)
    text = "\n".join(m.text for m in cut.history[start:])
    kept = sum(counts[start:])
    return Edited(len(cut.needed & tokens(text)) / len(cut.needed), counts[0] + kept, kept if start > 1 else 0)


def mean_of(edits: Sequence[Edited]) -> Edited:
    return Edited(*(float(np.mean([getattr(e, name) for e in edits])) for name in ("share", "tokens", "reread")))
