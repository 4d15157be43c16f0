"""The peers of `kvalet-bench peers`: how each is installed, started and ended, and how it tells what it read."""

import json
import socket
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from bench.environments import Environment
from bench.errors import Unreachable
from bench.scenarios import Ask
from bench.servers import Running, Setup, kvalet, started, stock

HEARTH = Environment("hearth-llm", ("hearth-llm==0.1.1",))
PYTHON_SERVER = Environment(
    "llama-cpp-python",
    ("fastapi", "uvicorn", "sse-starlette", "starlette-context", "pydantic-settings", "diskcache", "jinja2", "numpy"),
)
"""Its own server's needs; llama_cpp itself is the build that kvalet uses, so that both run the same kernels."""


class Peer(ABC):
    """One server under comparison, with a folder of its own for what it keeps on disk. Ended with close()."""

    name: str
    settle_seconds = 1.0  # between an answer and the end of the server, so that what a server writes behind it can be written

    def __init__(self, setup: Setup, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.setup, self.folder = setup, folder
        self._stack = ExitStack()
        # one client, but a connection for each request: making a client reads the system's certificates, for 20 ms
        self._client = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0), trust_env=False)
        self.url = ""
        self._running: list[Running] = []

    @abstractmethod
    def start(self) -> None:
        """Installs what is missing and starts it. Raises PeerMissing."""

    def end(self, *, kill: bool) -> None:
        if kill:
            for running in self._running:
                running.kill()
        self._running = []
        self._stack.close()

    def ask(self, ask: Ask, answer: int) -> dict[str, Any]:
        """The whole answer to a chat request. Raises Unreachable with what went wrong."""
        body: dict[str, Any] = {"messages": list(ask.messages), "max_tokens": answer, "temperature": 0}
        if ask.tools:
            body["tools"] = list(ask.tools)
        try:
            reply = self._client.post(f"{self.url}/v1/chat/completions", json=body, timeout=1800)
        except httpx.HTTPError as error:
            raise Unreachable(self.url, f"{self.name}: {type(error).__name__}") from None
        if reply.status_code != httpx.codes.OK:
            raise Unreachable(self.url, f"{self.name} answered {reply.status_code}: {' '.join(reply.text.split())[:160]}")
        value: dict[str, Any] = reply.json()
        return value

    def read(self, body: dict[str, Any]) -> int:
        """Prompt tokens that were decoded for this answer. Raises Unreachable when the server does not say."""
        try:
            return int(body["timings"]["prompt_n"])
        except (KeyError, TypeError):
            raise Unreachable(self.url, f"{self.name} does not say what it read") from None

    def _run(self, running: Running) -> None:
        self._running.append(running)
        self.url = running.url


class Kvalet(Peer):
    name = "kvalet"

    def start(self) -> None:
        self._run(self._stack.enter_context(kvalet(self.setup, cache_dir=self.folder)))


class Stock(Peer):
    name = "llama-server"

    def start(self) -> None:
        self._run(self._stack.enter_context(stock(self.setup)))


class Hearth(Peer):
    """The proxy hearth-llm over stock llama-server, which saves its slot after every reply."""

    name = "hearth-llm"

    def start(self) -> None:
        below = self._stack.enter_context(stock(self.setup, slots_folder=self.folder))
        self._running.append(below)
        given = ("--upstream", below.url, "--port", str(free_port()), "--cache-dir", str(self.folder))
        command = [str(HEARTH.ensure()), "-u", "-m", "hearth", "serve", *given]
        self._run(self._stack.enter_context(started(command, self.name, "listening on")))


class PythonServer(Peer):
    """llama-cpp-python's server with its disk cache. What it read is counted inside it (bench/python_server.py)."""

    name = "llama-cpp-python"

    def __init__(self, setup: Setup, folder: Path) -> None:
        super().__init__(setup, folder)
        self._seen = 0

    def start(self) -> None:
        python = PYTHON_SERVER.ensure()
        self._borrow(python)
        (self.folder / "read").write_text("0", "utf-8")
        self._seen = 0
        given = {
            "model": str(self.setup.model),
            "ctx": self.setup.ctx,
            "threads": self.setup.threads,
            "batch": self.setup.batch,
            "folder": str(self.folder),
            "port": free_port(),
        }
        command = [str(python), str(Path(__file__).with_name("python_server.py")), json.dumps(given)]
        self._run(self._stack.enter_context(started(command, self.name, "Uvicorn running", "/v1/models")))

    def read(self, body: dict[str, Any]) -> int:
        total = int((self.folder / "read").read_text("utf-8"))
        read, self._seen = total - self._seen, total
        return read

    @staticmethod
    def _borrow(python: Path) -> None:
        """Lets the peer's environment find our llama_cpp, behind all packages of its own."""
        (site,) = python.parent.parent.glob("lib/python*/site-packages")
        (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")


PEERS: tuple[type[Peer], ...] = (Kvalet, Stock, Hearth, PythonServer)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def known_peers(names: Sequence[str]) -> list[type[Peer]]:
    """Our own server first, then those named (all where none is)."""
    return [peer for peer in PEERS if peer is Kvalet or not names or peer.name in names]
