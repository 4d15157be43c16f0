"""Servers under test: started on loopback with the same GGUF, threads and batch, stopped by their own process id."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory

import httpx

from bench.environments import STOCK, PeerMissing, own_python
from bench.errors import Unreachable
from engine.probe import SPIN

START_SECONDS = 120.0
STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What every server of a comparison gets. `ctx` tokens a slot."""

    model: Path
    ctx: int = 4096
    parallel: int = 1
    threads: int = 2
    batch: int = 512


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers."""

    name: str
    url: str
    process: Popen[str]

    def kill(self) -> None:
        """SIGKILL, as a crash would end it."""
        self.process.kill()
        self.process.wait()


@contextmanager
def kvalet(setup: Setup, options: Sequence[str] = (), name: str = "kvalet", cache_dir: Path | None = None) -> Iterator[Running]:
    """`kvalet serve` with the setup and further options; without `cache_dir` its disk tier is off."""
    disk = ["--cache-dir", str(cache_dir)] if cache_dir else ["--cache-disk", "0"]
    command = [
        *(str(own_python().with_name("kvalet")), "serve", str(setup.model), "--port", "0", "--log-level", "warning"),
        *("--ctx", str(setup.ctx), "--parallel", str(setup.parallel)),
        *("--threads", str(setup.threads), "--batch", str(setup.batch), "--no-repack", *disk, *options),
    ]
    with started(command, name, "address") as running:
        yield running


@contextmanager
def stock(setup: Setup, cache_ram_mib: int | None = None, slots_folder: Path | None = None) -> Iterator[Running]:
    """Stock llama-server with the setup. Raises PeerMissing where it cannot be installed."""
    asked = {
        "model": str(setup.model),
        "ctx": setup.ctx,
        "parallel": setup.parallel,
        "threads": setup.threads,
        "batch": setup.batch,
        "cache_ram_mib": cache_ram_mib,
        "slots_folder": str(slots_folder or ""),
    }
    script = Path(__file__).with_name("stock_server.py")
    with started([str(STOCK.ensure()), str(script), json.dumps(asked)], "llama-server", "url") as running:
        yield running


@contextmanager
def started(command: Sequence[str], name: str, marker: str, health: str = "/health") -> Iterator[Running]:
    """Runs the command until its output has a line with `marker` and an http address and `health` answers; ends it afterwards."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": SPIN}
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as sink:
            process = Popen(command, stdin=subprocess.PIPE, stdout=sink, stderr=subprocess.STDOUT, text=True, env=environment)
        try:
            url = address(process, log, name, marker)
            wait_until_ready(url, process, name, health)
            yield Running(name, url, process)
        finally:
            stop(process)


def address(process: "Popen[str]", log: Path, name: str, marker: str) -> str:
    """The http address in the first line with `marker`."""
    limit = time.monotonic() + START_SECONDS
    while time.monotonic() < limit:
        for line in log.read_text("utf-8", "replace").splitlines():
            if marker in line and "http" in line:
                return "http" + line.split("http", 1)[1].split()[0].rstrip('"}/').removesuffix("/v1")
        if process.poll() is not None:
            break
        time.sleep(0.1)
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    raise PeerMissing(name, lines[-1] if lines else f"it ended with code {process.poll()} and said nothing")


def wait_until_ready(url: str, process: "Popen[str]", name: str, health: str) -> None:
    """Until `health` answers 200. Raises Unreachable when it does not in time."""
    limit = time.monotonic() + START_SECONDS
    while time.monotonic() < limit and process.poll() is None:
        try:
            if httpx.get(f"{url}{health}", timeout=5).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise Unreachable(url, f"{name} did not become ready")


def stop(process: "Popen[str]") -> None:
    """SIGTERM and a closed input, then SIGKILL for what does not end."""
    if process.stdin:
        process.stdin.close()
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
