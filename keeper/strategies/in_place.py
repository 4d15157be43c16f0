"""in_place, the default: notes taken inside the conversation, changes alone, then the window emptied down to task and NOTES."""

from keeper.notetaker import take_notes
from keeper.noting import advance, latest_cut, view_of
from keeper.strategies.base import Situation, View


class InPlace:
    """Nothing is read twice, and no line of the notes is written twice: see keeper.noting and keeper.notetaker."""

    name = "in_place"
    recalls = True

    async def view(self, situation: Situation) -> View:
        before = latest_cut(situation)
        return view_of(situation, await advance(situation, take_notes), before)
