"""retrieval: no notes and no search tool; at each question the best-matching stored sentences are shown (what people call RAG).

in_place_retrieval: in-place notes, and at each question the same. On text that refers to things indirectly the two together beat
either alone; a rule that shares no word with a question is never found by retrieval.
"""

from dataclasses import replace

from keeper.noting import room
from keeper.retrieved import with_retrieved
from keeper.strategies.base import Situation, Strategy, View
from keeper.strategies.drop import Drop
from keeper.strategies.in_place import InPlace


class _Retrieving:
    """Another strategy in a window that leaves room for what is retrieved."""

    name = ""
    recalls = False

    def __init__(self, under: Strategy) -> None:
        self._under = under

    async def view(self, situation: Situation) -> View:
        kept = room(situation, situation.limit).kept
        narrower = replace(situation, limit=situation.limit - kept)
        view = await self._under.view(narrower)
        return replace(view, messages=with_retrieved(situation, view.messages, view.start, kept))


class Retrieval(_Retrieving):
    """Window-drop, and stored sentences at questions."""

    name = "retrieval"
    recalls = False

    def __init__(self) -> None:
        super().__init__(Drop())


class InPlaceRetrieval(_Retrieving):
    """In-place notes, the search tool, and stored sentences at questions."""

    name = "in_place_retrieval"
    recalls = True

    def __init__(self) -> None:
        super().__init__(InPlace())
