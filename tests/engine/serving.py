"""An engine core on the fake context, driven step by step: what the engine's tests share."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from engine.config import EngineConfig
from engine.context import StateKind
from engine.core import Core
from engine.fake import FakeContext, FakeSamplers, FakeTokenizer
from engine.request import Anchor, AnchorKind, Done, Event, Exact, Failed, Request, Token
from engine.sampling import SamplingParams
from kvcache.chain import root_id
from kvcache.config import CacheConfig
from kvcache.store import Store

MIB = 1 << 20
GREEDY = SamplingParams(temperature=0.0)
ROOT = root_id(b"tests")


@dataclass
class Served:
    """The events of one request."""

    events: list[Event] = field(default_factory=list)

    @property
    def done(self) -> Done:
        assert isinstance(self.events[-1], Done), self.events[-1]
        return self.events[-1]

    @property
    def error(self) -> Exception:
        assert isinstance(self.events[-1], Failed), self.events[-1]
        return self.events[-1].error

    @property
    def ended(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], Done | Failed)

    @property
    def tokens(self) -> list[int]:
        return [event.token for event in self.events if isinstance(event, Token)]

    @property
    def reread(self) -> int:
        """Prompt tokens that were decoded for this request."""
        return self.done.timings.prompt_n


class Desk:
    """A core with a fake context and a store in RAM; requests are numbered."""

    def __init__(
        self,
        kind: StateKind = StateKind.HYBRID,
        *,
        slots: int = 1,
        ctx: int = 8192,
        ram: int = 64 * MIB,
        config: EngineConfig | None = None,
        store: Store | None = None,
        **fake: object,
    ) -> None:
        self.context = FakeContext(kind, n_slots=slots, n_ctx=ctx, **fake)  # type: ignore[arg-type]
        self.store = store or Store(CacheConfig(ram_bytes=ram), ROOT, needs_checkpoint=kind is not StateKind.ATTENTION)
        self.config = config or EngineConfig()
        self.core = Core(self.context, self.store, self.config, FakeTokenizer(), FakeSamplers(self.context), self.now)
        self._ids = count()
        self._seen = self._decoded = 0

    def submit(
        self,
        tokens: Sequence[int],
        most: int = 8,
        *,
        exact: Exact = Exact.APPEND,
        anchors: tuple[Anchor, ...] = (),
        session: str | None = None,
        **fields: object,
    ) -> Served:
        served = Served()
        request = Request(
            f"r{next(self._ids)}", tuple(tokens), GREEDY, most, anchors=anchors, exact=exact, session=session, ignore_eos=True
        )
        self.core.add(replace(request, **fields), served.events.append)  # type: ignore[arg-type]
        return served

    def run(self) -> None:
        """Until nothing is left to do."""
        while self.core.step():
            pass

    def ask(self, tokens: Sequence[int], most: int = 8, **fields: object) -> Served:
        served = self.submit(tokens, most, **fields)  # type: ignore[arg-type]
        self.run()
        assert served.ended
        return served

    def decoded(self) -> int:
        """Tokens that went through the context so far."""
        self._decoded += sum(len(run.tokens) for batch in self.context.batches[self._seen :] for run in batch)
        self._seen = len(self.context.batches)
        return self._decoded

    def now(self) -> float:
        """A clock by which a token takes 10 ms to decode and nothing else takes any time, so that every choice is the same
        on every machine."""
        return 0.01 * self.decoded()


def text(length: int, seed: int = 1) -> list[int]:
    """Pseudo-random byte tokens, the same for the same seed."""
    value, tokens = seed * 2654435761 % 2**32, []
    for _ in range(length):
        value = (value * 1103515245 + 12345) % 2**31
        tokens.append((value >> 16) % 251)
    return tokens


@dataclass(frozen=True)
class Message:
    role: str
    body: tuple[int, ...]


TOKENIZER = FakeTokenizer()
START, END, THINK = (TOKENIZER.tokenize(text, special=True)[0] for text in ("<|im_start|>", "<|im_end|>", "<think>"))
AFTER = {
    "tools": AnchorKind.TOOLS_END,
    "system": AnchorKind.SYSTEM_END,
    "user": AnchorKind.USER_END,
    "tool": AnchorKind.TOOL_RESULTS_END,
}


def render(messages: Sequence[Message]) -> tuple[list[int], tuple[Anchor, ...]]:
    """As a thinking template does: bodies between marks, then `<|im_start|>assistant` and `<think>` for the answer to come.
    Assistant bodies are shown as they are given, so what the model said comes back without its thinking mark."""
    tokens: list[int] = []
    anchors: list[Anchor] = []
    users = [number for number, message in enumerate(messages) if message.role == "user"]
    for number, message in enumerate(messages):
        if message.role == "assistant":
            anchors.append(Anchor(len(tokens), AnchorKind.ASSISTANT_START))
        tokens += [START, *message.role.encode(), 10, *message.body, END, 10]
        if users and number == users[-1]:
            anchors.append(Anchor(len(tokens), AnchorKind.LAST_USER_END, pinned=True))
        elif message.role in AFTER:
            anchors.append(Anchor(len(tokens), AFTER[message.role]))
    anchors.append(Anchor(len(tokens), AnchorKind.ASSISTANT_START))
    return [*tokens, START, *b"assistant", 10, THINK, 10], tuple(anchors)


def message(role: str, length: int, seed: int) -> Message:
    return Message(role, tuple(text(length, seed)))
