"""Long work at start, made visible: a line at each tenth, which reads well in a terminal and in a log file alike."""

import logging

LOG = logging.getLogger("kvalet.server")


class Tenths:
    """Logs each tenth of a piece of work once. Call it with what is done, units done, units in all."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        tenth = 10 * done // total if total else 10
        if tenth > self._last.get(what, -1):
            self._last[what] = tenth
            LOG.info("%s: %d %%", what, 10 * tenth)
