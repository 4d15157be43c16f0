"""pass_through: the client's history as it came. The baseline, and a proxy that only archives and counts."""

from keeper.strategies.base import Situation, View


class PassThrough:
    """Never cuts, so the view may exceed the window; the upstream says so then."""

    name = "pass_through"
    recalls = False

    async def view(self, situation: Situation) -> View:
        return View(situation.history[:], reason="pass-through")
