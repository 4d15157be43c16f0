"""`kvalet serve --record FILE`: what was asked and where it resumed, one JSON line a request, so that policies can be replayed.

The first line, and one more at every later start, is a header:
    {"kvalet_recording": 1, "grid", "interval", "placement", "slots", "kind", "ctx", "hidden", "time"}
Each request that ended well is:
    {"t": seconds since the header, "session": text or null, "keep": k, "tail": [...], "prompt": n,
     "resident": r, "anchors": [[position, kind, pinned], ...], "exact": "append" | "strict", "limit": most tokens to generate,
     "resume": {"source", "position", "restored", "reread", "fill"}}
Its tokens (prompt and answer) are the first k of the request before it and then `tail`; the first n of them are the prompt, the
first r were in the slot at the end (the token that was sampled last is not read). A limit of -1 is what the context leaves.

With --record-hashes a token is replaced by a keyed hash over it and the one before, so that equal prefixes stay equal and nothing
else can be told. The key lies in FILE.key, readable by its owner alone; deleting it makes the recording irreversible.
"""

import json
import os
import secrets
import threading
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.context import Context
from engine.pair import Serves
from engine.request import Done, Event, Finish, Request
from engine.slots import common_prefix
from engine.turn import Sink
from server.config import ConfigError

VERSION = 1
KEY_BYTES = 32


class Recorder:
    """Appends to one file. Thread-safe; a disk that fails stops the recording, never a request."""

    def __init__(self, path: Path, header: dict[str, Any], *, hashes: bool) -> None:
        """Raises OSError when the file cannot be opened."""
        self._file = path.open("a", encoding="utf-8")
        path.chmod(0o600)
        self._key = _key(path.with_name(path.name + ".key")) if hashes else b""
        self._lock = threading.Lock()
        self._last: list[int] = []
        self._plain: list[int] = []
        self._started = time.monotonic()
        self._write({"kvalet_recording": VERSION, **header, "hidden": hashes, "time": time.time()})

    def tap(self, request: Request, sink: Sink) -> Sink:
        """A sink that also writes the request down when it is done."""

        def watched(event: Event) -> None:
            if isinstance(event, Done):
                self.note(request, event)
            sink(event)

        return watched

    def note(self, request: Request, done: Done) -> None:
        plain = [*request.tokens, *done.generated]
        with self._lock:
            keep = common_prefix(self._plain, plain)
            tail = self._hidden(self._last[keep - 1] if keep else 0, plain[keep:]) if self._key else plain[keep:]
            self._plain, self._last = plain, [*self._last[:keep], *tail]
            self._write(
                {
                    "t": round(time.monotonic() - self._started, 3),
                    "session": request.session,
                    "keep": keep,
                    "tail": tail,
                    "prompt": len(request.tokens),
                    "resident": len(plain) - _unread(done),
                    "anchors": [[a.position, a.kind.value, a.pinned] for a in request.anchors],
                    "exact": request.exact.value,
                    "limit": request.max_tokens,
                    "resume": {
                        "source": done.resume.source.value,
                        "position": done.resume.position,
                        "restored": done.resume.restored,
                        "reread": done.resume.reread,
                        "fill": done.resume.fill,
                    },
                }
            )

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _hidden(self, before: int, tokens: Sequence[int]) -> list[int]:
        """31-bit keyed hashes, each over the one before it and the token."""
        hidden = []
        for token in tokens:
            packed = before.to_bytes(4, "little") + token.to_bytes(4, "little")
            before = int.from_bytes(blake2b(packed, key=self._key, digest_size=4).digest(), "little") & 0x7FFFFFFF
            hidden.append(before)
        return hidden

    def _write(self, record: dict[str, Any]) -> None:
        if not self._file.closed:
            try:
                self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
                self._file.flush()
            except OSError:
                self._file.close()


class Recorded:
    """An engine, or several, whose requests are written down as they end."""

    def __init__(self, engine: Serves, recorder: Recorder) -> None:
        self._engine, self._recorder = engine, recorder
        self.start, self.cancel, self.resident = engine.start, engine.cancel, engine.resident
        self.slots, self.stats = engine.slots, engine.stats

    def submit(self, request: Request, sink: Sink) -> None:
        self._engine.submit(request, self._recorder.tap(request, sink))

    def close(self, drain_seconds: float = 0.0) -> None:
        self._engine.close(drain_seconds)
        self._recorder.close()


def recorded(engine: Serves, path: Path, hashes: bool, context: Context, config: EngineConfig) -> Recorded:
    """The engine, recorded to `path`. Raises ConfigError when that cannot be written."""
    header = {
        "grid": config.grid,
        "interval": engine.stats().checkpoint_interval,
        "placement": config.placement,
        "slots": context.n_slots,
        "kind": context.kind.value,
        "ctx": context.n_ctx,
    }
    try:
        return Recorded(engine, Recorder(path, header, hashes=hashes))
    except OSError as error:
        raise ConfigError(f"--record {path}: {error.strerror or error}") from error


def _unread(done: Done) -> int:
    """1 when the last token of the answer was sampled but not decoded: always, but after an end token, which is no part of it."""
    ended = done.finish is Finish.STOP and done.stop is None
    return 1 if done.generated and not ended else 0


def _key(path: Path) -> bytes:
    """The recording's key, made on first use."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
    return path.read_bytes()
