"""Reads what `kvalet serve --record` wrote; the format is described at the top of server/record.py."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import TraceError
from kvcache.chain import chain_ids
from kvcache.placement import Mark
from kvcache.simulate import Turn

VERSION = 1


@dataclass(frozen=True, slots=True)
class Started:
    """A server start: what it was told. Everything it held in slots before is gone."""

    grid: int
    interval: int
    placement: str
    slots: int
    kind: str
    ctx: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request: the first `prompt` of `tokens` were asked, the rest was answered, the first `resident` were in the slot at
    the end. `source`, `position`, `reread` and `fill` are what the server said of it."""

    time: float
    session: str | None
    tokens: tuple[int, ...]
    prompt: int
    resident: int
    anchors: tuple[Mark, ...]
    exact: str
    limit: int
    source: str
    position: int
    reread: int
    fill: int = 0


def is_header(record: dict[str, Any]) -> bool:
    return "kvalet_recording" in record


def read_recording(path: Path, note: Callable[[TraceError], None]) -> Iterator[Started | Exchange]:
    """Everything in the file, in order; a bad line goes to `note`, and so do those that build on it."""
    before: tuple[int, ...] | None = ()
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                read = _parse(json.loads(line), before)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                before = None
                note(TraceError(path, number, f"no line of a recording: {error}"))
                continue
            before = () if isinstance(read, Started) else read.tokens
            yield read


def _parse(record: dict[str, Any], before: tuple[int, ...] | None) -> Started | Exchange:
    if is_header(record):
        if record["kvalet_recording"] != VERSION:
            raise ValueError(f"version {record['kvalet_recording']!r}, this bench reads {VERSION}")
        return Started(record["grid"], record["interval"], record["placement"], record["slots"], record["kind"], record["ctx"])
    keep, prompt = int(record["keep"]), int(record["prompt"])
    if keep and (before is None or keep > len(before)):
        raise ValueError("it continues a line that could not be read")
    tokens = (*(before or ())[:keep], *(int(token) for token in record["tail"]))
    if not 0 < prompt <= len(tokens):
        raise ValueError(f"a prompt of {prompt} in {len(tokens)} tokens")
    resume = record["resume"]
    anchors = tuple((int(position), str(kind), bool(pinned)) for position, kind, pinned in record["anchors"])
    return Exchange(
        float(record["t"]),
        record["session"],
        tokens,
        prompt,
        int(record["resident"]),
        anchors,
        record["exact"],
        int(record["limit"]),
        resume["source"],
        int(resume["position"]),
        int(resume["reread"]),
        int(resume.get("fill", 0)),
    )


def recorded_turns(path: Path, number: int, note: Callable[[TraceError], None]) -> Iterator[Turn]:
    """The recording as turns; a conversation is a session, or the whole file where none is named."""
    root, grid, base = number.to_bytes(8, "little"), 64, 0.0
    last = 0.0
    for item in read_recording(path, note):
        if isinstance(item, Started):
            grid, base = item.grid, last
            continue
        last = base + item.time
        ids = chain_ids(root, item.tokens[: item.prompt], grid)
        marks = tuple((kind, position) for position, kind, _ in item.anchors)
        yield Turn(item.session or path.stem, item.prompt, ids, last, len(item.tokens) - item.prompt, marks)
