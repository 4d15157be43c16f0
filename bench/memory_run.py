"""One ledger stream through one window with one strategy: a real model reads, answers, takes notes and forgets."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.ledger.audit import Version, audit
from bench.ledger.stream import SYSTEM, TASK, Event, LedgerStream, Question
from bench.local_model import LocalModel, Spent
from keeper.config import KeeperConfig
from keeper.errors import KeeperError
from keeper.keeper import Keeper
from keeper.message import History
from keeper.model import Complete, CountTokens
from keeper.noting import MARK
from keeper.past import Past
from keeper.turn import Turn
from keeper.window import ACKNOWLEDGED, cut_from_json

FULL = "pass_through"
REPLY = 64  # tokens of a reply; a search, the longest right one, takes 30


@dataclass(frozen=True)
class Settings:
    """What all runs of a comparison share. Sizes are tokens."""

    model: Path
    tokens: int
    window: int
    threads: int = 0

    def keeper(self, strategy: str) -> KeeperConfig:
        """Small sizes for a small window. No re-asks: this model was never taught to mend a line that is in question."""
        return KeeperConfig(
            window=self.window,
            strategy=strategy,
            notes_every_batches=5,
            notes_reply_tokens=128,
            re_asks=0,
            search_room=96,
            search_limit=5,
            searches_a_turn=2,
            retrieved_a_question=4,
        )


@dataclass(frozen=True)
class Answer:
    """A question, what the model said, and whether the view it saw held the rule (of a rule question)."""

    question: Question
    said: str
    rule_in_view: bool

    @property
    def right(self) -> bool:
        return self.said.strip() == self.question.answer


@dataclass
class Outcome:
    """What a run gave. `own` are the keeper's own calls (notes, summaries), `failed` requests that got no answer at all."""

    strategy: str
    seed: int
    answers: list[Answer] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    spent: Spent = field(default_factory=Spent)
    counters: dict[str, int] = field(default_factory=dict)
    batches: int = 0
    largest_view: int = 0
    failed: int = 0
    seconds: float = 0.0


async def run(settings: Settings, strategy: str, seed: int) -> Outcome:
    """The whole stream of `seed`, then its last questions. Full context gets a context that holds it all."""
    ctx = settings.tokens * 3 // 2 + 1024 if strategy == FULL else settings.window
    outcome = Outcome(strategy, seed)
    with LocalModel(settings.model, ctx, settings.threads, outcome.spent) as model:
        keeper = Keeper(settings.keeper(strategy), model.complete, model.count_tokens)
        try:
            started = time.monotonic()
            events = _events(seed, settings.tokens, model)
            await converse(keeper, model.complete, model.count_tokens, events, outcome)
            outcome.seconds = time.monotonic() - started
            outcome.counters = dict(keeper.counters)
        finally:
            keeper.close()
    return outcome


def _events(seed: int, tokens: int, model: LocalModel) -> list[Event]:
    def size(event: Event) -> int:
        said = event.question.answer if event.question else ACKNOWLEDGED
        return model.count_tokens([{"role": "user", "content": event.text}, {"role": "assistant", "content": said}], ())

    return LedgerStream(seed).events(tokens, size)


async def converse(
    keeper: Keeper, complete: Complete, count_tokens: CountTokens, events: Sequence[Event], outcome: Outcome
) -> None:
    """Tells and asks all `events` through the keeper; answers, failures and the audit of the notes go into `outcome`."""
    await _Conversation(keeper, complete, count_tokens, outcome).hold(events)


class _Conversation:
    """The agent: it sends its whole history every time and manages nothing."""

    def __init__(self, keeper: Keeper, complete: Complete, count_tokens: CountTokens, outcome: Outcome) -> None:
        self._keeper, self._complete, self._count, self._outcome = keeper, complete, count_tokens, outcome
        self._history: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
        self._told: list[Event | None] = [None]  # beside each message of the history, the event it tells

    async def hold(self, events: Sequence[Event]) -> None:
        await self._say(TASK, None)
        for event in events:
            said, turn = await self._say(event.text, event)
            self._outcome.batches = event.batch
            if event.question:
                self._outcome.answers.append(Answer(event.question, said, _rule_in_view(event.question, turn)))

    async def _say(self, text: str, event: Event | None) -> tuple[str, Turn | None]:
        """One message of the user and the reply to it; a request that fails is answered by nobody, and the agent goes on."""
        self._history.append({"role": "user", "content": text})
        self._told.append(event)
        said, turn = "", None
        try:
            turn = await self._keeper.prepare(self._body())
            self._audit(turn)
            while not turn.finished:
                turn.take(await self._complete(turn.body))
            said = turn.reply.message.text
        except KeeperError:
            self._outcome.failed += 1
        self._history.append({"role": "assistant", "content": said})
        self._told.append(None)
        return said, turn

    def _body(self) -> dict[str, Any]:
        # Thinking off: its block is empty in all that this model was taught.
        return {"messages": list(self._history), "max_tokens": REPLY, "chat_template_kwargs": {"enable_thinking": False}}

    def _audit(self, turn: Turn) -> None:
        """Notes that were just saved, against what the noted messages told."""
        view = self._count(turn.body["messages"], turn.body.get("tools") or ())
        self._outcome.largest_view = max(self._outcome.largest_view, view)
        if not turn.view.cut:
            return
        archive = self._keeper.archive
        mark = Past(archive, archive.enter(History(self._history), None)).latest(MARK)
        if mark is not None:
            cut = cut_from_json(mark.body)
            told = [event for event in self._told[: cut.noted] if event is not None]
            self._outcome.versions.append(audit(cut.notes, told))


def _rule_in_view(question: Question, turn: Turn | None) -> bool:
    if turn is None or question.kind != "rule":
        return False
    return any(f"{question.name} is confidential" in message.text for message in turn.view.messages)
