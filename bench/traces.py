"""Reads request traces into turns, one at a time: three public formats and our own recording.

| format | a file | grid | ids |
|---|---|---|---|
| kv-cache-tester | one JSON object a session {block_size, tool_tokens, system_tokens, requests} | block_size | of the file |
| mooncake | JSON lines {timestamp ms, input_length, output_length, hash_ids} | 512 | of the whole file |
| lmcache | JSON lines {timestamp us, input, output, session_id}, full text | 64 | hashed here |
| kvalet | JSON lines that `kvalet serve --record` wrote (server/record.py) | in its header | hashed here |

No tokenizer is asked for full text: four UTF-8 bytes count as one token. Blocks that are not whole are left out.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from bench.errors import TraceError
from bench.recording import is_header, recorded_turns
from kvcache.simulate import Turn

MOONCAKE_GRID = 512
TEXT_GRID = 64
BYTES_A_TOKEN = 4
FILE_BITS = 32
Record = dict[str, Any]


@dataclass(slots=True)
class Reading:
    """How far the files are read (`nbytes`), and what was left out under --skip-bad (`allowed`), and why."""

    allowed: bool = False
    nbytes: int = 0
    count: int = 0
    first: list[str] = field(default_factory=list)

    def again(self) -> None:
        """A new pass over the files begins."""
        self.nbytes, self.count, self.first = 0, 0, []

    def note(self, error: TraceError) -> None:
        """Counts a bad line. Raises it where skipping is not allowed."""
        if not self.allowed:
            raise error
        self.count += 1
        self.first = [*self.first, str(error)][:5]


@dataclass(frozen=True, slots=True)
class Trace:
    """One file: its format, its grid in tokens, and its turns, read when they are asked for."""

    path: Path
    format: str
    grid: int
    turns: Iterator[Turn]


def trace_files(paths: list[Path]) -> list[Path]:
    """The files named, and those with a trace's suffix in the folders named. Raises TraceError for what is not there."""
    files: list[Path] = []
    for path in paths:
        found = sorted(p for p in path.rglob("*") if p.suffix in (".json", ".jsonl")) if path.is_dir() else [path]
        if not found or not path.exists():
            raise TraceError(path, 0, "no trace is there (*.json or *.jsonl)")
        files += found
    return files


def open_trace(path: Path, number: int, reading: Reading) -> Trace:
    """Finds out a file's format. `number` makes the local ids of this file differ from another's. Raises TraceError."""
    try:
        with path.open(encoding="utf-8") as file:
            line = next((text for text in file if text.strip()), "")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(path, 0, str(error)) from None
    if not line:
        raise TraceError(path, 0, "the trace is empty")
    first = _json(path, 1, line) if path.suffix == ".jsonl" else _session(path, reading)
    if not first:
        return Trace(path, "unreadable", TEXT_GRID, iter(()))
    if "requests" in first:
        return Trace(path, "kv-cache-tester", _grid(path, first), _session_turns(path, first, number, reading))
    if is_header(first):
        return Trace(path, "kvalet", _grid(path, first, "grid"), recorded_turns(path, number, reading.note))
    if "hash_ids" in first and "input_length" in first:
        return Trace(path, "mooncake", MOONCAKE_GRID, _lines(path, reading, lambda record: _mooncake(record, number)))
    if "session_id" in first and "input" in first:
        return Trace(path, "lmcache", TEXT_GRID, _lines(path, reading, _full_text))
    raise TraceError(path, 1, f"no known trace format; its first record has {', '.join(sorted(first)[:6]) or 'nothing'}")


def _session(path: Path, reading: Reading) -> Record:
    """A whole JSON file; {} when it is bad and may be skipped."""
    try:
        return _object(json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        reading.note(TraceError(path, getattr(error, "lineno", 0), f"no JSON object: {error}"))
        return {}


def _json(path: Path, number: int, line: str) -> Record:
    try:
        return _object(json.loads(line))
    except (ValueError, TypeError) as error:
        raise TraceError(path, number, f"no JSON object: {error}") from None


def _object(value: object) -> Record:
    if not isinstance(value, dict):
        raise TypeError(f"a {type(value).__name__} instead")
    return value


def _grid(path: Path, record: Record, name: str = "block_size") -> int:
    grid = record.get(name)
    if not isinstance(grid, int) or grid < 1:
        raise TraceError(path, 1, f"{name} must be a positive number, not {grid!r}")
    return grid


def _lines(path: Path, reading: Reading, turn: Callable[[Record], Turn]) -> Iterator[Turn]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            reading.nbytes += len(line)
            if line.strip():
                try:
                    yield turn(_json(path, number, line))
                except TraceError as error:
                    reading.note(error)
                except (ValueError, TypeError, KeyError) as error:
                    reading.note(TraceError(path, number, _reason(error)))


def _reason(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)


def _session_turns(path: Path, session: Record, number: int, reading: Reading) -> Iterator[Turn]:
    """The turns of one session, and of its sub-agents as conversations of their own, each where it starts."""
    try:
        marks = (("tools_end", session["tool_tokens"]), ("system_end", session["tool_tokens"] + session["system_tokens"]))
        requests = list(session["requests"])
    except (KeyError, TypeError) as error:
        return reading.note(TraceError(path, 0, _reason(error)))
    reading.nbytes += path.stat().st_size
    yield from _requests(path, str(session.get("id", path.stem)), requests, (number, session["block_size"], marks), reading)


def _requests(path: Path, name: str, requests: list[Any], about: tuple[int, int, Any], reading: Reading) -> Iterator[Turn]:
    number, grid, marks = about
    for index, request in enumerate(requests):
        try:
            if "requests" in request:
                yield from _requests(path, f"{name}/{index}", request["requests"], (number, grid, ()), reading)
                continue
            length = _count(request, "in")
            ids = _ids(request, number)[: length // grid]
            yield Turn(name, length, ids, float(request["t"]), _count(request, "out"), marks)
        except (ValueError, TypeError, KeyError) as error:
            reading.note(TraceError(path, 0, f"request {index} of {name}: {_reason(error)}"))


def _mooncake(record: Record, number: int) -> Turn:
    """All requests are one conversation here: ids alone say what continues what."""
    length = _count(record, "input_length")
    ids = _ids(record, number)[: length // MOONCAKE_GRID]
    return Turn("", length, ids, _count(record, "timestamp") / 1000, _count(record, "output_length"))


def _full_text(record: Record) -> Turn:
    text, answer = str(record["input"]).encode(), str(record["output"]).encode()
    step = TEXT_GRID * BYTES_A_TOKEN
    ids, parent = [], b""
    for start in range(0, len(text) // step * step, step):
        parent = blake2b(parent + text[start : start + step], digest_size=16).digest()
        ids.append(parent)
    length, generated = max(1, len(text) // BYTES_A_TOKEN), len(answer) // BYTES_A_TOKEN
    return Turn(str(record["session_id"]), length, ids, _count(record, "timestamp") / 1e6, generated)


def _count(record: Record, name: str) -> int:
    value = record[name]
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a count, not {value!r}")
    return value


def _ids(record: Record, number: int) -> list[int]:
    """Numbers that no other file of this run uses."""
    base = number << FILE_BITS
    try:
        return [base | id for id in record["hash_ids"]]
    except TypeError:
        raise ValueError("hash_ids must be a list of numbers") from None
