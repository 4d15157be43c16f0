"""Virtual environments of the bench's own, so that a peer's packages never come into ours."""

import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError
from engine.catalog import models_folder


class PeerMissing(BenchError):
    """A peer that cannot be installed or started here; its rows are left out and this reason is printed."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"{peer} is skipped: {reason}")
        self.peer, self.reason = peer, reason


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment under the user's cache folder, named for what is in it."""

    name: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return models_folder().parent / "bench" / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def ensure(self) -> Path:
        """The environment's python, after installing what is missing. Raises PeerMissing with pip's last line."""
        done = self.folder / "installed.txt"
        if done.exists() and done.read_text("utf-8").splitlines() == list(self.packages):
            return self.python
        if not self.python.exists():
            venv.create(self.folder, with_pip=True)
        self._pip(["install", "--quiet", "--disable-pip-version-check", *self.packages])
        done.write_text("\n".join(self.packages), "utf-8")
        return self.python

    def _pip(self, arguments: Sequence[str]) -> None:
        result = subprocess.run([self.python, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
        if result.returncode:
            lines = [line for line in result.stderr.splitlines() if line.strip()]
            raise PeerMissing(self.name, lines[-1] if lines else "pip failed and said nothing")


STOCK = Environment("llama-server", ("xllamacpp==2026.10.11549",))
"""Stock llama-server as a wheel: its C++ server behind a thin binding."""


def own_python() -> Path:
    """The python that runs this bench, which has kvalet installed."""
    return Path(sys.executable)
