"""summarise: what most production agents do. At 75 % of the window the model writes a summary, which replaces the older turns.

Lossy, and one bad summary ends everything before it: it is kept as it is, whatever it says, so that the baseline is the method.
"""

from keeper.errors import UpstreamFailed
from keeper.exchanges import next_start, shown, systems
from keeper.message import History, Message, assistant, user
from keeper.strategies.base import Situation, View
from keeper.window import ACKNOWLEDGED, newest_exchange

MARK = "summary"
REQUEST = (
    "SUMMARY REQUEST. Do not go on with the work. Write a summary of this whole conversation that can take its place: what was "
    "asked, what holds now, what was found out, standing instructions, what is still to do."
)
LEAST = 64  # tokens of a reply without which a summary is not asked for
HEADING = "SUMMARY OF THE CONVERSATION SO FAR\n"


class Summarise:
    """The summary stands where the turns before `start` stood. A call that fails or says nothing leaves them to be dropped."""

    name = "summarise"
    recalls = False

    async def view(self, situation: Situation) -> View:
        history = situation.history
        mark = situation.past.latest(MARK)
        text, start = (str(mark.body["text"]), int(mark.body["start"])) if mark else ("", 0)
        size = situation.count(summarised(history, start, text))
        border = newest_exchange(history)
        limit = min(
            situation.limit - situation.count((user(REQUEST),)), int(situation.config.window * situation.config.summarise_at)
        )
        if size <= limit or (border <= start and size <= situation.limit):
            return View(summarised(history, start, text), start, reason=f"from message {start}")
        fresh = await self._summary(situation, start, text, border) if border > start else ""
        text, start = (fresh, border) if fresh else (text, start)
        if situation.count(summarised(history, start, text)) > situation.limit:
            start = next_start(situation, start, lambda place: summarised(history, place, text))
        situation.past.put(MARK, len(history), {"text": text, "start": start})
        situation.add("cuts")
        return View(summarised(history, start, text), start, True, f"summary of what came before message {start}")

    async def _summary(self, situation: Situation, start: int, text: str, border: int) -> str:
        """The new summary, from the old one and the turns since; '' where the model could not be asked or said nothing."""
        asked = (*summarised(situation.history, start, text, border), user(REQUEST))
        tokens = min(situation.config.reserve(None), situation.config.window - situation.count(asked))
        if tokens < LEAST:
            return ""
        try:
            reply = await situation.ask(asked, tokens)
        except UpstreamFailed:
            return ""
        situation.add("summaries")
        return reply.message.text.strip()


def summarised(history: History, start: int, text: str, end: int | None = None) -> tuple[Message, ...]:
    """System, summary, then history[start:end]."""
    rest = shown(history, start)
    rest = rest if end is None else rest[: len(rest) - (len(history) - end)]
    if not text:
        return (*systems(history), *rest)
    bridge = (assistant(ACKNOWLEDGED),) if rest and rest[0].role == "user" else ()
    return (*systems(history), user(HEADING + text), *bridge, *rest)
