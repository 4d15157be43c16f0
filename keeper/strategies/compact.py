"""compact: what coding agents commonly do. Old tool output becomes a stub, old thinking goes, then the oldest turns go."""

from keeper.exchanges import next_start, shown, systems
from keeper.message import History, Message
from keeper.strategies.base import Situation, View
from keeper.window import leading_systems

MARK = "compact"
FRESH = 4  # the newest tool results, which keep their output
WORTH_STUBBING = 200  # characters; shorter output stays
STUB = "[{} characters of output removed]"


class Compact:
    """Stubs first, drops then. The mark holds up to where output is stubbed and where the view begins."""

    name = "compact"
    recalls = False

    async def view(self, situation: Situation) -> View:
        history = situation.history
        mark = situation.past.latest(MARK)
        stubbed, start = (int(mark.body["stubbed"]), int(mark.body["start"])) if mark else (0, 0)
        view = compacted(history, start, stubbed)
        if situation.count(view) <= situation.limit:
            return View(view, start, reason=f"from message {start}, output stubbed before {stubbed}")
        stubbed = old_results(history)
        if situation.count(compacted(history, start, stubbed)) > situation.limit:
            start = next_start(situation, start, lambda place: compacted(history, place, stubbed))
        situation.past.put(MARK, len(history), {"stubbed": stubbed, "start": start})
        situation.add("cuts")
        reason = f"stubbed output before message {stubbed}, dropped what came before {start}"
        return View(compacted(history, start, stubbed), start, True, reason)


def old_results(history: History) -> int:
    """Up to where tool output is old: the newest few results keep theirs."""
    results = [index for index in range(max(0, len(history) - 200), len(history)) if history[index].role == "tool"]
    return results[-FRESH] if len(results) >= FRESH else (results[0] if results else 0)


def compacted(history: History, start: int, stubbed: int) -> tuple[Message, ...]:
    """history[start:] with the tool output before `stubbed` as stubs."""
    first = max(start, leading_systems(history))
    rest = shown(history, start)
    return (*systems(history), *(_stub(m) if first + i < stubbed else m for i, m in enumerate(rest)))


def _stub(message: Message) -> Message:
    if message.role != "tool" or len(message.text) <= WORTH_STUBBING:
        return message
    return message.with_text(STUB.format(len(message.text)))
