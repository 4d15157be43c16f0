"""What an engine knows after a restart: the disk tier under it, on the fake context."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.context import StateKind
from engine.request import Exact, Source
from engine.transcript import Transcript
from kvcache.config import CacheConfig
from kvcache.store import Store
from tests.engine.serving import MIB, ROOT, TOKENIZER, Desk, text

KINDS = list(StateKind)


class Folder:
    """Stores on one folder, one after the other, as a server that is started again opens them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: list[Store] = []

    def store(self, kind: StateKind, ram: int = 64 * MIB) -> Store:
        self.close()
        config = CacheConfig(ram_bytes=ram, disk_bytes=64 * MIB, dir=self._path, park_min_tokens=64)
        store = Store(config, ROOT, needs_checkpoint=kind is not StateKind.ATTENTION)
        assert store.identify(b"sixteen bytes id")
        self._open.append(store)
        return store

    def close(self) -> None:
        while self._open:
            self._open.pop().close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exact", list(Exact))
def test_the_same_request_after_a_restart_reads_at_most_one_grid_step(folder: Folder, kind: StateKind, exact: Exact) -> None:
    prompt = text(3000)
    first = Desk(kind, store=folder.store(kind), exact=False).ask(prompt, 60, exact=exact)
    again = Desk(kind, store=folder.store(kind), exact=False).ask(prompt, 60, exact=exact)
    assert (again.done.resume.source, again.reread <= 64) == (Source.DISK, True)
    assert exact is Exact.APPEND or again.tokens == first.tokens


@pytest.mark.parametrize("dropped", [0, 1, 40])
def test_an_answer_that_comes_back_trimmed_resumes_from_before_its_end(folder: Folder, dropped: int) -> None:
    prompt = text(1000)
    said = Desk(store=folder.store(StateKind.HYBRID)).ask(prompt, 100).tokens
    desk = Desk(store=folder.store(StateKind.HYBRID))
    again = desk.ask([*prompt, *said[: len(said) - dropped], *text(20, 9)])
    assert again.reread <= 100 + 20 + 64
    assert again.done.resume.source is Source.DISK


def test_after_a_restart_a_text_is_read_with_the_tokens_the_model_said(folder: Folder) -> None:
    prompt = [97] * 1000
    said = Desk(store=folder.store(StateKind.HYBRID)).ask(prompt, 200).tokens
    known = [*prompt, *said][: 1199 // 64 * 64]
    reading = Transcript(TOKENIZER).read(
        TOKENIZER.detokenize(known).decode("utf-8", "replace"), [], folder.store(StateKind.HYBRID)
    )
    assert reading.known >= 1000


def test_with_ram_off_conversations_live_on_disk_alone(folder: Folder) -> None:
    prompt = text(2000)
    desk = Desk(store=folder.store(StateKind.HYBRID, ram=0))
    first = desk.ask(prompt, 20)
    desk.ask(text(200, 2))
    desk.store.flush()
    again = desk.ask(prompt, 20)
    assert (again.done.resume.source, again.tokens) == (Source.DISK, first.tokens)


def test_a_prefill_cut_off_is_found_after_a_restart(folder: Folder) -> None:
    prompt = text(4000)
    desk = Desk(store=folder.store(StateKind.HYBRID))
    desk.submit(prompt)
    while desk.core.slots[0].length < 2500:
        desk.core.step()
    desk.core.park_all()
    assert Desk(store=folder.store(StateKind.HYBRID)).ask(prompt).done.resume.position >= 2500


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_prefill_is_parked_on_its_way(folder: Folder, kind: StateKind) -> None:
    prompt = text(6000)
    desk = Desk(kind, store=folder.store(kind))
    desk.submit(prompt)
    while desk.core.slots[0].length < 5000:
        desk.core.step()
    desk.store.flush()  # and then the process dies
    assert Desk(kind, store=folder.store(kind)).ask(prompt).done.resume.position >= 4096
