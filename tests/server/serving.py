"""A server over the fake context, in this process: what the server's tests share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi.testclient import TestClient

import engine.chat
from engine.chat import ChatTemplate
from engine.context import StateKind
from engine.fake import FakeContext, FakeSamplers, FakeTokenizer
from engine.loop import Loop
from engine.selfcheck import Promise, SelfCheck
from kvcache.chain import root_id
from server.app import create_app
from server.config import Settings, load
from server.loading import Seat
from server.runtime import Card, Runtime, assemble

MODEL = "fake"
TEMPLATE = Path(engine.chat.__file__).with_name("qwen35.jinja").read_text(encoding="utf-8")
IM_END = 258  # FakeTokenizer's id of <|im_end|>


class Answers:
    """A script for the fake: what the model says after a prompt, ended by <|im_end|>.

    `by_word` gives another answer to prompts that hold a word. Where the answer starts is behind the last opening of an
    assistant turn (and its think block), or behind the word PROMPT in a prompt without a template.
    """

    def __init__(self, answer: str, by_word: dict[str, str] | None = None) -> None:
        self._answer = answer
        self._by_word = by_word or {}
        self._tokenizer = FakeTokenizer()

    def __call__(self, tokens: tuple[int, ...]) -> int:
        text = self._tokenizer.detokenize(tokens)
        at = max(text.rfind(opening) + len(opening) for opening in (b"<|im_start|>assistant\n", b"PROMPT") if opening in text)
        full, said = self._full(text[:at].decode("utf-8", "ignore")).encode(), text[at:]
        for opening in (b"<think>\n\n</think>\n\n", b"<think>\n"):
            if said.startswith(opening) and not full.startswith(opening):
                said = said.removeprefix(opening)
                break
        rest = full.removeprefix(said)
        return self._tokenizer.tokenize(rest, special=True)[0] if rest else IM_END

    def _full(self, prompt: str) -> str:
        return next((answer for word, answer in self._by_word.items() if word in prompt), self._answer)


def runtime(
    *,
    script: Any = None,
    kind: StateKind = StateKind.HYBRID,
    ctx: int = 4096,
    check: SelfCheck | None = None,
    template: str = TEMPLATE,
    seconds_per_token: float = 0.0,
    **given: Any,
) -> Runtime:
    """A Runtime over a fake context; `given` are settings."""
    settings: Settings = load({"cache_ram": "64MiB", "cache_disk": 0, **given})
    context = FakeContext(
        kind, n_slots=settings.parallel, n_ctx=ctx, script=script, seconds_per_token=seconds_per_token, exact=False
    )
    tokenizer = FakeTokenizer()
    card = Card(MODEL, "/models/fake.gguf", "a model for tests", {"n_vocab": tokenizer.n_vocab})
    chat = ChatTemplate(template, "", "<|im_end|>")
    checked = check or SelfCheck(True, Promise.BITS, (), None)
    seats = [Seat(context, FakeSamplers(context), Loop())]
    return assemble(settings, card, tokenizer, seats, chat, checked, root=root_id(b"tests"))


@contextmanager
def serving(**given: Any) -> Iterator[TestClient]:
    """A client of a server with these settings (see runtime)."""
    made = runtime(**given)
    try:
        with TestClient(create_app(made), raise_server_exceptions=False) as client:
            yield client
    finally:
        made.close()


def events(response: httpx.Response) -> list[str]:
    """The data lines of a stream."""
    return [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]


def metric(client: TestClient, name: str) -> float:
    """The value of a metric without labels."""
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))
