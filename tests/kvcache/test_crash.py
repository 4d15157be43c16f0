"""The process dies at any moment of parking: what is there afterwards is whole, and the next start sweeps the rest.

Children are forked by a helper process of their own (this file run as a script), which has no threads and has everything
imported, so that a death costs milliseconds.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvcache import files, index
from tests.kvcache.material import GRID, MIB, blocks_of, checkpoint_at, disk_store, entry_files, park, tokens

PROMPTS = [tokens(4 * GRID), tokens(2 * GRID) + tokens(2 * GRID, seed=1), tokens(3 * GRID, seed=2)]
FITTING = 10
"""Of the 15 entries: deaths happen in evictions too."""
TIGHT = MIB + FITTING * 4736


def load_everything(folder: Path, disk: int = TIGHT) -> int:
    """Opens the folder as the next server would and proves all of it; returns how many tokens can be restored."""
    store = disk_store(folder, disk=disk)
    restored = 0
    for prompt in PROMPTS:
        match = store.match(prompt)
        assert list(store.restore(match, match.stored)) == blocks_of(prompt)[: match.stored // GRID]
        for ref in match.checkpoints:
            assert store.load_checkpoint(ref) == checkpoint_at(prompt, ref.position)
        restored += match.stored
    stats = store.stats()
    assert stats.damaged == 0
    assert stats.disk.used <= disk
    report = store.check()
    assert report.ok, report.problems
    store.close()
    assert not list(folder.rglob(".tmp-*"))
    assert [path.name for path in (folder / "owners").iterdir()] == [".lock"]
    return restored


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder on a tmpfs where there is one: a killed process does not lose what it wrote there, and fsync costs nothing."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


def test_death_at_every_single_step_of_parking_leaves_a_sound_folder(in_memory: Path) -> None:
    deaths = helper("steps", in_memory)
    assert deaths > 50
    restored = [load_everything(in_memory / str(at)) for at in range(deaths)]
    assert restored[0] < restored[-1]


def test_two_hundred_random_kills_during_parking_never_leave_wrong_or_leaking_files(in_memory: Path) -> None:
    """Row 44. One folder through all deaths; each start must work, and what it finds must be whole."""
    assert helper("kills", in_memory) == 200
    load_everything(in_memory / "cache")
    assert len(entry_files(in_memory / "cache")) <= FITTING


def helper(what: str, folder: Path) -> int:
    command = [sys.executable, "-m", "tests.kvcache.test_crash", what, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent.parent)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout))


def _die_at_every_step(root: Path) -> int:
    """Forks a child for each step, until one gets through the whole load alive."""
    at = 0
    while True:
        status = _in_child(lambda at=at: _park_all(root / str(at), _Countdown(at)))
        if status == 0:
            return at
        assert os.WIFSIGNALED(status), status
        at += 1


def _kill_at_random(root: Path) -> int:
    draw, kills = random.Random(7), 0
    while kills < 200:
        child = os.fork()
        if child == 0:
            _park_for_ever(root / "cache", draw.randrange(10**6))
        time.sleep(draw.uniform(0.0, 0.06))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, f"it ended by itself: {status}"
        kills += 1
        if kills % 10 == 0:
            assert _in_child(lambda: load_everything(root / "cache")) == 0
    return kills


class _Countdown:
    """Kills this process at the n-th call that changes the disk."""

    def __init__(self, left: int) -> None:
        self.left = left
        for module, name in ((files.os, "writev"), (files.os, "fsync"), (os, "rename"), (os, "unlink"), (os, "mkdir")):
            setattr(module, name, self.wrapped(getattr(module, name)))
        for name in ("put", "delete", "reserve", "count_written"):
            setattr(index.Transaction, name, self.wrapped(getattr(index.Transaction, name)))

    def wrapped(self, call: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object, **kwargs: object) -> object:
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return step


def _park_all(folder: Path, countdown: object) -> None:
    store = disk_store(folder, disk=TIGHT)
    for prompt in PROMPTS:
        park(store, prompt, 2 * GRID, len(prompt))
    store.close()


def _park_for_ever(folder: Path, seed: int) -> None:
    draw = random.Random(seed)
    store = disk_store(folder, disk=TIGHT)
    while True:
        prompt = draw.choice(PROMPTS)
        park(store, prompt[: draw.randrange(GRID, len(prompt) + 1)], draw.randrange(1, 2) * GRID)
        store.remove() if draw.random() < 0.2 else store.match(prompt)


def _in_child(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            sys.stderr.write(repr(error))
            os._exit(3)
        os._exit(0)
    return os.waitpid(child, 0)[1]


if __name__ == "__main__":
    work = {"steps": _die_at_every_step, "kills": _kill_at_random}[sys.argv[1]]
    sys.stdout.write(json.dumps(work(Path(sys.argv[2]))))
