"""A recording read back, and the simulator beside the engine itself on a weightless context: equal token for token."""

import json
import random
from pathlib import Path

import pytest

from bench.errors import TraceError
from bench.recording import Exchange, Started, read_recording, recorded_turns
from engine.config import EngineConfig
from engine.context import StateKind
from engine.request import Anchor, AnchorKind
from kvcache.served import Replayed, Request
from server.record import Recorder
from tests.engine.serving import Desk

GRID = 64


def never(error: TraceError) -> None:
    raise error


def anchors(length: int, rng: random.Random) -> tuple[Anchor, ...]:
    kinds = (AnchorKind.SYSTEM_END, AnchorKind.USER_END, AnchorKind.LAST_USER_END, AnchorKind.ASSISTANT_START)
    return tuple(Anchor(position, kind) for position, kind in zip(sorted(rng.sample(range(length), 4)), kinds, strict=True))


def record(path: Path, kind: StateKind, placement: str, seed: int, *, requests: int, restarts: int, hashes: bool = False) -> None:
    """Appends, edits, branches, repeats and restarts (a new core over the same store), by token ids."""
    rng = random.Random(seed)
    config = EngineConfig(placement=placement, checkpoint_interval=256)
    store = None
    tokens = [rng.randrange(250) for _ in range(300)]
    branches = [tokens]
    for _ in range(restarts):
        desk = Desk(kind, ram=1 << 30, config=config, store=store)
        store = desk.store
        header = {
            "grid": GRID,
            "interval": desk.core.placer.interval,
            "placement": placement,
            "slots": 1,
            "kind": kind.value,
            "ctx": 8192,
        }
        recorder = Recorder(path, header, hashes=hashes)
        for _ in range(requests // restarts):
            draw = rng.random()
            if draw < 0.2:
                tokens = tokens[: rng.randrange(2, len(tokens) + 1)]
            elif draw < 0.3:
                branches.append(tokens)
                tokens = list(rng.choice(branches))
            elif draw < 0.4:
                tokens = tokens[: len(tokens) // GRID * GRID] or tokens
            if draw < 0.9:
                tokens = [*tokens, *(rng.randrange(250) for _ in range(rng.choice([0, 1, 7, 63, 64, 65, 200])))][:4000]
            served = desk.submit(
                tokens, rng.choice([0, 1, 5, 64, 150]), anchors=anchors(len(tokens), rng), ignore_eos=rng.random() < 0.5
            )
            request = next(turn.request for turn in desk.core.waiting)
            desk.run()
            recorder.note(request, served.done)
            if rng.random() < 0.7:
                tokens = [*tokens, *served.done.generated[: rng.choice([None, None, -1])]]
        recorder.close()
        desk.core.park_all()


@pytest.mark.parametrize(
    ("kind", "placement"),
    [
        (StateKind.HYBRID, "adaptive"),
        (StateKind.HYBRID, "anchors"),
        (StateKind.HYBRID, "geometric"),
        (StateKind.RECURRENT, "newest"),
        (StateKind.ATTENTION, "anchors"),
    ],
)
def test_the_simulator_agrees_with_the_engine_token_for_token(tmp_path: Path, kind: StateKind, placement: str) -> None:
    path = tmp_path / "r.jsonl"
    record(path, kind, placement, 5, requests=210, restarts=3)
    replayed: Replayed | None = None
    told, found = [], []
    for item in read_recording(path, never):
        if isinstance(item, Started):
            replayed = replayed or Replayed(item.placement, item.interval, item.grid, checkpoints=item.kind != "attention")
            replayed.restart(ram=True)
            continue
        assert replayed is not None
        limit = min(item.limit, 8192 - item.prompt)
        served = replayed.serve(Request(item.tokens[: item.prompt], item.tokens[: item.resident], item.anchors, limit, item.fill))
        told.append((item.position, item.reread))
        found.append((served.position, served.reread))
    wrong = [(number, *pair) for number, pair in enumerate(zip(told, found, strict=True)) if pair[0] != pair[1]]
    assert len(told) == 210
    assert not wrong, wrong[:8]


def test_a_store_that_does_not_last_starts_empty_and_one_that_lasts_does_not() -> None:
    request = Request(tuple(range(200)), tuple(range(200)), (), 0)
    for durable, position in ((True, 192), (False, 0)):
        replayed = Replayed("newest", 256, GRID, durable=durable)
        replayed.serve(request)
        replayed.restart()
        assert replayed.serve(request).position == position


def test_hashed_recordings_keep_equal_prefixes_over_restarts_and_nothing_else(tmp_path: Path) -> None:
    plain, hashed = tmp_path / "p.jsonl", tmp_path / "h.jsonl"
    record(plain, StateKind.HYBRID, "anchors", 3, requests=30, restarts=3)
    record(hashed, StateKind.HYBRID, "anchors", 3, requests=30, restarts=3, hashes=True)
    one, other = ([e for e in read_recording(path, never) if isinstance(e, Exchange)] for path in (plain, hashed))
    assert [e.position for e in one] == [e.position for e in other]
    for first, second in ((0, 1), (3, 12), (9, 29), (15, 16)):
        same = [a == b for a, b in zip(one[first].tokens, one[second].tokens, strict=False)]
        prefix = same.index(False) if False in same else len(same)
        masked = [a == b for a, b in zip(other[first].tokens, other[second].tokens, strict=False)]
        assert masked == [position < prefix for position in range(len(masked))]
    assert max(one[0].tokens) < 300 < max(other[0].tokens)
    assert (tmp_path / "h.jsonl.key").stat().st_mode & 0o777 == 0o600


def test_a_bad_line_takes_with_it_what_builds_on_it_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    record(path, StateKind.HYBRID, "anchors", 1, requests=6, restarts=2)
    lines = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([*lines[:2], "{", *lines[3:]]) + "\n", "utf-8")
    told: list[TraceError] = []
    kept = list(read_recording(path, told.append))
    assert told[0].line == 3 and "no line of a recording" in told[0].reason
    assert sum(isinstance(item, Started) for item in kept) == 2
    assert sum(isinstance(item, Exchange) for item in kept) >= 4


def test_a_recording_becomes_turns_with_its_anchors_as_marks(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    record(path, StateKind.HYBRID, "anchors", 2, requests=4, restarts=1)
    first, *_ = recorded_turns(path, 0, never)
    header = json.loads(path.read_text("utf-8").splitlines()[0])
    assert len(first.ids) == first.length // header["grid"]
    assert {kind for kind, _ in first.marks} == {"system_end", "user_end", "last_user_end", "assistant_start"}


def test_a_version_of_tomorrow_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"kvalet_recording": 2, "grid": 64}\n', "utf-8")
    with pytest.raises(TraceError, match="version 2, this bench reads 1"):
        list(read_recording(path, never))
