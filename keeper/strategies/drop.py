"""drop: when the window is full the oldest turns go, and nothing of them is kept. The simplest baseline; lossy and honest."""

from keeper.exchanges import next_start, shown, systems
from keeper.message import Message
from keeper.strategies.base import Situation, View

MARK = "drop"


class Drop:
    """System messages stay, the rest slides. A mark holds where the view begins, so it begins there until it is full again."""

    name = "drop"
    recalls = False

    async def view(self, situation: Situation) -> View:
        def render(start: int) -> tuple[Message, ...]:
            return (*systems(situation.history), *shown(situation.history, start))

        mark = situation.past.latest(MARK)
        start = int(mark.body) if mark else 0
        if situation.count(render(start)) <= situation.limit:
            return View(render(start), start, reason=f"from message {start}")
        start = next_start(situation, start, render)
        situation.past.put(MARK, len(situation.history), start)
        situation.add("cuts")
        return View(render(start), start, True, f"dropped what came before message {start}")
