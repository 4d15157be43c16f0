"""The thread of a device: it gives rounds to the engines that live there, those with a waiting client before the others.

Two engines on one device share its thread and not only its lock: OpenMP keeps a pool of workers for every thread that decodes,
and two pools on one set of cores cost each token a third more (server/loading.aside has the measurement).
"""

import threading
from collections.abc import Iterable
from typing import Protocol


class Member(Protocol):
    """An engine as its loop sees it; all of this is called on the loop's thread."""

    @property
    def urgent(self) -> bool:
        """Whether a client waits for it; what is not urgent rests as long as another member is."""
        ...

    def take(self) -> bool:
        """Takes what came in from other threads; whether there was anything."""
        ...

    def work(self) -> bool:
        """One step; False when there was nothing to do."""
        ...

    def pending(self) -> bool:
        """Whether something came in that was not taken. Called with the loop's lock held."""
        ...

    def patience(self) -> float | None:
        """Seconds it may be left alone at most; None: until it is woken."""
        ...

    def leave(self) -> bool:
        """Whether it is to stop and, if so, parks what it holds: it is not called again. Called without the lock."""
        ...

    def died(self, error: BaseException) -> None:
        """The loop cannot go on."""
        ...

    def abandon(self) -> None:
        """The last call, however it ended: nobody is left without a last event."""
        ...


class Loop:
    """See the module. `wake` guards what members share with other threads, and wakes the thread."""

    def __init__(self) -> None:
        self.wake = threading.Condition()
        self._members: list[Member] = []
        self._thread = threading.Thread(target=self._run, name="kvalet-engine", daemon=True)
        self._started = False

    def add(self, member: Member) -> None:
        """To be called before start."""
        self._members.append(member)

    def start(self) -> None:
        """The first member that starts starts them all."""
        with self.wake:
            if not self._started:
                self._started = True
                self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        members = list(self._members)
        try:
            while members:
                self._round(members)
                for member in [member for member in members if member.leave()]:
                    members.remove(member)
                    member.abandon()
        except BaseException as error:
            for member in members:
                member.died(error)
            raise
        finally:
            for member in members:
                member.abandon()

    def _round(self, members: list[Member]) -> None:
        """Everybody's messages, then one step of whoever has a client waiting, else of everybody."""
        taken = [member.take() for member in members]
        worked = [member.work() for member in ([one for one in members if one.urgent] or members)]
        with self.wake:
            if not any(taken) and not any(worked) and not any(member.pending() for member in members):
                self.wake.wait(_least(member.patience() for member in members))


def _least(patiences: Iterable[float | None]) -> float | None:
    return min((one for one in patiences if one is not None), default=None)
