"""What a live server records is what the simulator, with no model, says it must have done: token for token."""

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest

from bench.errors import TraceError
from bench.hitrate import STANDARD
from bench.recording import Exchange, Started, read_recording
from bench.replay import Opened, Plan, Runner, replay
from bench.talk import Conversation
from bench.traces import Reading
from kvcache.budgeted import Sizes
from kvcache.served import Replayed, Request
from tests.e2e.serving import Server, serving

pytestmark = [pytest.mark.e2e, pytest.mark.model]
REQUESTS = 216
STARTS = 3
MODEL = "synthetic:tiny"  # its vocabulary holds the token ids below


def never(error: TraceError) -> None:
    raise error


def speak(server: Server, talk: Conversation, rng: random.Random, tokens: list[int], count: int) -> None:
    """Chats with edits, branches and repeats, and completions by token ids that go on exactly where the last one ended, or
    leave it somewhere."""
    for _ in range(count):
        if rng.random() < 0.6:
            talk.step()
            server.chat(talk.messages, max_tokens=rng.randrange(1, 90) if rng.random() < 0.2 else 3)
            continue
        if rng.random() < 0.3:
            del tokens[rng.randrange(len(tokens)) :]
        tokens += [rng.randrange(320, 1300) for _ in range(rng.choice([1, 30, 64, 128, 300]))]
        del tokens[3000:]
        answer = server.complete(tokens, max_tokens=rng.choice([0, 1, 20, 70]), ignore_eos=True)
        if rng.random() < 0.7:
            said = server.post("/tokenize", content=answer["choices"][0]["text"]).json()["tokens"]
            tokens += said if rng.random() < 0.9 else said[:-1]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of REQUESTS requests over STARTS starts of a server that keeps everything."""
    folder = tmp_path_factory.mktemp("replay")
    talk, rng, tokens = Conversation(random.Random(11), words=30), random.Random(12), list(range(320, 1000))
    for _ in range(STARTS):
        options = (MODEL, "--record", str(folder / "r.jsonl"), "--park-min-tokens", "0", "--threads", "1")
        with serving(*options, state=folder / "state") as server:
            speak(server, talk, rng, tokens, REQUESTS // STARTS)
            assert server.stop() == 0
    return folder / "r.jsonl"


def test_the_simulator_agrees_with_the_live_server_token_for_token(recording: Path) -> None:
    replayed: Replayed | None = None
    told, found = [], []
    for item in read_recording(recording, never):
        if isinstance(item, Started):
            if replayed is None:
                replayed = Replayed(item.placement, item.interval, item.grid)
            replayed.restart()
            ctx = item.ctx
            continue
        assert replayed is not None
        limit = ctx - item.prompt if item.limit < 0 else min(item.limit, ctx - item.prompt)
        served = replayed.serve(Request(item.tokens[: item.prompt], item.tokens[: item.resident], item.anchors, limit, item.fill))
        told.append((item.position, item.reread))
        found.append((served.position, served.reread))
    wrong = [(number, *pair) for number, pair in enumerate(zip(told, found, strict=True)) if pair[0] != pair[1]]
    assert len(told) == REQUESTS
    assert not wrong, f"(request, (position, re-read) told, simulated): {wrong[:10]} of {len(wrong)}"


def test_the_recording_has_every_kind_of_resumption_and_restarts(recording: Path) -> None:
    items = list(read_recording(recording, never))
    exchanges = [item for item in items if isinstance(item, Exchange)]
    assert sum(isinstance(item, Started) for item in items) == STARTS
    assert {exchange.source for exchange in exchanges} >= {"live", "ram", "disk", "none"}
    assert any(exchange.position % 64 for exchange in exchanges)
    assert any(b.tokens[: len(a.tokens)] != a.tokens and b.position for a, b in pairwise(exchanges))


def test_the_recording_replays_under_any_policy(recording: Path) -> None:
    runners = [
        Runner(Plan(placement.replace("classic", "interval+newest"), evict, 8, None, "online"), 512, Sizes(1, 1))
        for placement, evict in STANDARD
    ]
    replay(Opened([recording], False, 1, 0, Reading()), runners)
    assert all(runner.tally.all.requests == REQUESTS for runner in runners)


def test_a_recording_with_hashes_says_nothing_of_the_tokens_but_keeps_their_prefixes(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    prompt = list(range(400, 600))
    with serving(MODEL, "--record", str(path), "--record-hashes", "--threads", "1") as server:
        for tail in ([700], [800], [700, 701]):
            server.complete(prompt + tail, max_tokens=0)
    first, second, third = (item for item in read_recording(path, never) if isinstance(item, Exchange))
    assert first.tokens[:200] == second.tokens[:200] == third.tokens[:200]
    assert first.tokens[200] == third.tokens[200] != second.tokens[200]
    assert not set(prompt) & set(first.tokens)
    assert path.with_name("h.jsonl.key").stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text("utf-8").splitlines()[0])["hidden"] is True
