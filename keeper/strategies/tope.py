"""tope: prune by the critical chain, and at cuts carry a continuation made of existing text (seeds/000). No call of its own.

While the history fits nothing is touched. When it does not, plan.py chooses one edit: stubs of results, or an archive cut whose
continuation (unfold.py) stands behind the task. The edit is remembered as a mark and stays as it is until the next one, so in
between a view only grows at its end and is read once. A view after an edit is

    system            as it was
    first user        the task, then WORK SO FAR with the continuation, then what still waits for an answer, word for word
    history[start:]   as it is, with the stubs

Where an archive cut is needed and no continuation can be made (a chat without tools, or no room), the summarise strategy takes
over for this history, as the paper's model hand-off does, and the view's reason says so.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from keeper.edit import GRID, Budget, Costs, EditPlan, assumed, render_plan
from keeper.excerpt import clip, size
from keeper.graph import Graph, build
from keeper.message import History, Message, assistant, user
from keeper.noting import too_large
from keeper.plan import plan_edit
from keeper.questions import still_open
from keeper.strategies.base import Situation, View
from keeper.strategies.summarise import Summarise
from keeper.unfold import allowance, unfold
from keeper.window import ACKNOWLEDGED, SYSTEM_ROLES, Cut, excerpt, leading_systems, merged, task_index

MARK = "tope"
HANDED_OVER = "tope_summarise"
CARRIED = "WORK SO FAR (copied from the record; the turns it comes from are in the archive)\n"
WAITING = "STILL OPEN, WORD FOR WORD\n"
TARGET_SHARE = 0.6
SQUEEZES = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)
WRAPPING_TOKENS = 24
PROMPT_TOKENS = 8
"""About what a template adds at the end of a prompt, where the reply begins; no part of what two views share."""


@dataclass(frozen=True)
class Prices:
    """What restoring and re-reading cost here, in ms; the defaults are what a proxy assumes of a server it cannot ask."""

    restore_ms: float = 0.0
    restore_ms_a_token: float = 0.0
    reread_ms_a_token: float = 1.0


@dataclass(frozen=True)
class Edit:
    """An edit in force. start: messages before it, other than the head, left the view (0: none did). stubs: message -> its
    stub. waiting: texts from before `start` that still wait, or still hold (a late system message). task: how many characters of
    the first user message are shown (None: all)."""

    start: int = 0
    stubs: Mapping[int, str] = field(default_factory=dict)
    continuation: str = ""
    waiting: tuple[str, ...] = ()
    task: int | None = None
    plan: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "start": self.start,
            "stubs": {str(position): text for position, text in self.stubs.items()},
            "continuation": self.continuation,
            "waiting": list(self.waiting),
            "task": self.task,
            "plan": self.plan,
        }

    def place(self) -> int:
        """How many messages of a history it needs to be the same."""
        return max(1, self.start, *(position + 1 for position in self.stubs))


def edit_from_json(found: Mapping[str, Any]) -> Edit:
    """What as_json() gave."""
    stubs = {int(position): str(text) for position, text in found["stubs"].items()}
    return Edit(found["start"], stubs, found["continuation"], tuple(found["waiting"]), found["task"], found["plan"])


class Tope:
    """See the top of this file. prices: asked at each edit, so that an engine's measurements can be handed in."""

    name = "tope"
    recalls = True

    def __init__(self, prices: Callable[[], Prices] = Prices) -> None:
        self._prices = prices
        self._summarise = Summarise()

    async def view(self, situation: Situation) -> View:
        if situation.past.latest(HANDED_OVER):
            return await self._handed_over(situation, "handed over to summarise earlier")
        mark = situation.past.latest(MARK)
        edit = edit_from_json(mark.body) if mark else None
        messages = layout(situation, edit)
        if situation.count(messages) <= situation.limit:
            return View(messages, edit.start if edit else 0, reason=_reason(edit))
        found = next_edit(situation, edit or Edit(), self._prices())
        if found is None:
            situation.past.put(HANDED_OVER, len(situation.history), {})
            return await self._handed_over(situation, "no continuation can be made of this history: summarise takes over")
        situation.past.put(MARK, found.place(), found.as_json())
        situation.add("cuts")
        return View(layout(situation, found), found.start, True, _reason(found))

    async def _handed_over(self, situation: Situation, why: str) -> View:
        view = await self._summarise.view(situation)
        return replace(view, reason=f"{why}; {view.reason}")


def _reason(edit: Edit | None) -> str:
    return edit.plan.splitlines()[0] if edit else "everything fits"


def layout(situation: Situation, edit: Edit | None) -> tuple[Message, ...]:
    """The view of the whole history under `edit`."""
    history = situation.history
    leading = leading_systems(history)
    systems = merged(history[:leading])
    if edit is None or not edit.start:
        return (*systems, *_body(situation, leading, edit or Edit()))
    rest = _body(situation, edit.start, edit)
    bridge = (assistant(ACKNOWLEDGED),) if rest and rest[0].role == "user" else ()
    return (*systems, _pinned(history, edit), *bridge, *rest)


def _pinned(history: History, edit: Edit) -> Message:
    blocks = [f"{CARRIED}{edit.continuation}"]
    if edit.waiting:
        blocks.append(WAITING + "\n\n".join(edit.waiting))
    text = "\n\n".join(blocks)
    index = task_index(history)
    if index is None:
        return user(text)
    task = history[index]
    shown = task if edit.task is None else task.with_text(excerpt(task.text, edit.task))
    return shown.adding(f"\n\n{text}")


def _body(situation: Situation, start: int, edit: Edit) -> tuple[Message, ...]:
    shown = enumerate(situation.history[start:], start)
    keep = situation.config.keep_reasoning
    return tuple(_shown(m, edit.stubs.get(position), keep) for position, m in shown)


def _shown(message: Message, stub: str | None, keep_reasoning: bool) -> Message:
    if stub is not None:
        return message.with_text(stub)
    return message if keep_reasoning else message.without_reasoning()


def next_edit(situation: Situation, before: Edit, prices: Prices) -> Edit | None:
    """The edit that follows `before` and whose view fits; None where it needs a continuation and there is none.

    Token counts of single messages are estimates (bytes scaled to the view's true count), so each planned view is counted, and
    planned again with a lower target until it fits. Raises MessageTooLarge or WindowTooSmall where nothing does.
    """
    whole = build(situation.history)
    graph, costs = _as_shown(whole, before), _costs(situation, before, prices)
    bytes_a_token = sum(map(_bytes, layout(situation, before))) / max(1, sum(costs.tokens))
    room = allowance(int(situation.limit * bytes_a_token))
    for squeeze in SQUEEZES:
        carried = int(room * squeeze)
        budget = Budget(
            situation.limit, int(situation.limit * TARGET_SHARE * squeeze), math.ceil(carried / bytes_a_token) + WRAPPING_TOKENS
        )
        plan = plan_edit(situation.history, graph, costs, budget)
        edit = _edit(situation, whole, before, plan, carried, bytes_a_token)
        if edit.start and not edit.continuation:
            return None
        if situation.count(layout(situation, edit)) <= situation.limit:
            return replace(edit, plan=render_plan(_counted(situation, plan, before, edit, costs)))
    raise too_large(situation, Cut())


def _counted(situation: Situation, plan: EditPlan, before: Edit, edit: Edit, costs: Costs) -> EditPlan:
    """The plan with the view's true numbers in the place of estimates; only where checkpoints stand is still assumed."""
    was, now = layout(situation, before), layout(situation, edit)
    after = situation.count(now)
    same = next((place for place, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    shared = [*now[:same], now[same].with_text(_common(was[same].text, now[same].text))] if same < len(now) else now
    resume = max(0, situation.count(shared) - PROMPT_TOKENS) // GRID * GRID
    ms = costs.ms(resume, after - resume)
    return replace(plan, before=situation.count(was), after=after, resume=resume, reread=after - resume, ms=ms)


def _common(a: str, b: str) -> str:
    """The beginning that two texts share."""
    return a[: next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))]


def _as_shown(whole: Graph, edit: Edit) -> Graph:
    """The graph with the stubs that stand already, so that they are not planned again."""
    nodes = [node._replace(text=edit.stubs[node.position]) if node.position in edit.stubs else node for node in whole.nodes]
    return replace(whole, nodes=tuple(nodes))


def _costs(situation: Situation, edit: Edit, prices: Prices) -> Costs:
    """Of each message as the view shows it; one that left the view costs nothing, the continuation counts with the task."""
    history = situation.history
    overhead = max(0, situation.count((user("x"),)) - 1)
    sizes = [0 if _gone(history, edit, i) else _bytes(_shown(m, edit.stubs.get(i), False)) for i, m in enumerate(history)]
    task = task_index(history)
    if edit.start and task is not None:
        sizes[task] = _bytes(_pinned(history, edit))
    scale = max(0, situation.count(layout(situation, edit)) - overhead) / max(1, sum(sizes))
    costs = assumed([math.ceil(n * scale) for n in sizes], overhead)
    return replace(
        costs,
        restore_ms=prices.restore_ms,
        restore_ms_a_token=prices.restore_ms_a_token,
        reread_ms_a_token=prices.reread_ms_a_token,
    )


def _gone(history: History, edit: Edit, position: int) -> bool:
    return leading_systems(history) <= position < edit.start and position != task_index(history)


def _bytes(message: Message) -> int:
    """A message's share of a prompt; the constant stands for its role and the template's marks."""
    return size(message.text) + sum(size(call.name) + size(call.arguments) for call in message.tool_calls) + 24


def _edit(situation: Situation, whole: Graph, before: Edit, plan: EditPlan, room: int, bytes_a_token: float) -> Edit:
    start = max(plan.start, before.start)
    stubs = {position: text for position, text in {**before.stubs, **plan.stubs()}.items() if position >= start}
    if start == before.start:
        return replace(before, stubs=stubs)
    history = situation.history
    task, leading = task_index(history), leading_systems(history)
    beside = {*range(leading), *(position for position in range(start, len(history)) if position not in stubs)}
    found = unfold(whole, room, in_view=beside if task is None else {*beside, task})
    carried = found.text if found.shown else ""  # the frontier's words alone do not stand for what leaves the view
    most = int(situation.limit * bytes_a_token)
    shown = _task_shown(history, task, int(most * situation.config.task_share))
    waiting = _waiting(history, start, int(most * situation.config.kept_share))
    return Edit(start, stubs, carried, waiting, shown)


def _task_shown(history: History, task: int | None, most: int) -> int | None:
    """How many characters of the task are shown; None where it takes no more than its share of the view in bytes."""
    if task is None or (whole := size(history[task].text)) <= most:
        return None
    return len(history[task].text) * most // whole


def _waiting(history: History, start: int, most: int) -> tuple[str, ...]:
    """What left the view and still counts: late system messages, and what no reply has answered; clipped beyond `most` bytes."""
    passed = [i for i in range(leading_systems(history), start) if i != task_index(history)]
    late = [i for i in passed if history[i].role in SYSTEM_ROLES]
    texts = [history[i].text for i in sorted({*late, *still_open(history, passed, len(history))}) if history[i].text.strip()]
    return tuple(clip(text, max(most // len(texts), 80)) for text in texts)
