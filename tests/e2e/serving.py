"""A real `kvalet serve` process on a free port, and small ways to talk to it: what the end-to-end tests share."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from engine.vocabulary import WORDS

READY_SECONDS = 120
STOP_SECONDS = 30
KVALET = Path(sys.executable).with_name("kvalet")
GREEDY: dict[str, Any] = {"temperature": 0}
Message = dict[str, Any]


class Server:
    """A running server. `log` is what it wrote to stderr so far."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: list[str]) -> None:
        self.process = process
        self.url = url
        self._log = log
        self.http = httpx.Client(base_url=url, timeout=300)

    @property
    def log(self) -> str:
        return "".join(self._log)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def chat(self, messages: Sequence[Message], max_tokens: int = 8, **fields: Any) -> dict[str, Any]:
        """The whole answer to a conversation; greedy."""
        answer = self.post("/v1/chat/completions", messages=list(messages), max_tokens=max_tokens, **{**GREEDY, **fields})
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def complete(self, prompt: str | list[int], max_tokens: int = 8, **fields: Any) -> dict[str, Any]:
        answer = self.post("/v1/completions", prompt=prompt, max_tokens=max_tokens, **{**GREEDY, **fields})
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def prompt(self, messages: Sequence[Message], **fields: Any) -> str:
        """The text that a chat request reads."""
        answer = self.post("/apply-template", messages=list(messages), **fields)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["prompt"])

    def count(self, text: str) -> int:
        """Tokens of a text, by the server's tokenizer."""
        return len(self.post("/tokenize", content=text).json()["tokens"])

    def metric(self, name: str, labels: str = "") -> float:
        found = re.search(rf"^{re.escape(name + labels)} (\S+)$", self.http.get("/metrics").text, re.MULTILINE)
        assert found, name
        return float(found[1])

    def rss(self) -> int:
        """Bytes of memory the process has in RAM."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code after a signal."""
        self.http.close()
        self.process.send_signal(sig)
        return self.process.wait(STOP_SECONDS)


@contextmanager
def serving(*options: str, state: Path | None = None, **environment: str) -> Iterator[Server]:
    """Starts `kvalet serve` with these options; `state` is the folder for parked state, none: nothing goes to disk."""
    disk = ["--cache-dir", str(state)] if state else ["--cache-disk", "0"]
    process = subprocess.Popen(
        [KVALET, "serve", *options, *disk, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield started(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(STOP_SECONDS)


def started(process: subprocess.Popen[str]) -> Server:
    """Waits for the banner, then keeps reading what the process writes, so that it never blocks on a full pipe."""
    assert process.stdout and process.stderr
    log: list[str] = []
    threading.Thread(target=lambda: log.extend(iter(process.stderr.readline, "")), daemon=True).start()
    watchdog = threading.Timer(READY_SECONDS, process.kill)
    watchdog.start()
    for line in process.stdout:
        if found := re.search(r"http://[\w.\[\]:]+:\d+", line):
            watchdog.cancel()
            threading.Thread(target=lambda: list(process.stdout or ()), daemon=True).start()
            return Server(process, found[0], log)
    raise AssertionError(f"the server did not start: {''.join(log)}")


def words(count: int, seed: int) -> str:
    """Text of so many words, the same for the same seed; the default model reads about one token a word."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def common_text(a: str, b: str) -> str:
    """The beginning that two texts share."""
    return a[: next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def assistant(text: str, **fields: Any) -> Message:
    return {"role": "assistant", "content": text, **fields}


def said(body: dict[str, Any]) -> Message:
    """The message of a chat answer, as a client sends it back."""
    message: Message = body["choices"][0]["message"]
    return message


def read(body: dict[str, Any]) -> int:
    """Prompt tokens that were read for an answer."""
    usage = body["usage"]
    return int(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])


def logprobs(body: dict[str, Any]) -> list[tuple[int, float, tuple[tuple[int, float], ...]]]:
    """Token, logprob and the most likely ones, for each token of a chat answer: equal only if the logits were."""
    entries = body["choices"][0]["logprobs"]["content"]
    return [(e["id"], e["logprob"], tuple((t["id"], t["logprob"]) for t in e["top_logprobs"])) for e in entries]
