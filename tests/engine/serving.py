"""An engine core on the fake context, driven step by step: what the engine's tests share."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from engine.config import EngineConfig
from engine.context import StateKind
from engine.core import Core
from engine.fake import FakeContext, FakeSamplers, FakeTokenizer
from engine.request import Anchor, Done, Event, Exact, Failed, Request, Token
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
        self.core = Core(self.context, self.store, self.config, FakeTokenizer(), FakeSamplers(self.context))
        self._ids = count()

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
        return sum(len(run.tokens) for batch in self.context.batches for run in batch)


def text(length: int, seed: int = 1) -> list[int]:
    """Pseudo-random byte tokens, the same for the same seed."""
    value, tokens = seed * 2654435761 % 2**32, []
    for _ in range(length):
        value = (value * 1103515245 + 12345) % 2**31
        tokens.append((value >> 16) % 251)
    return tokens
