"""Settings of the keeper: plain values, checked here because the library is used without a server as well."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Thinking(StrEnum):
    """as_sent: the client's setting stands; questions: off on ordinary turns, on from a question until it is answered."""

    AS_SENT = "as_sent"
    QUESTIONS = "questions"


@dataclass(frozen=True, slots=True)
class KeeperConfig:
    """How a keeper manages one window. Sizes are tokens; 0 means derived from the window (the properties say how)."""

    window: int = 32768
    strategy: str = "in_place"
    root: Path | None = None  # the archive's folder; None: in memory, lost at exit
    reply_reserve: int = 0  # room left for a reply: a quarter of the window, or max_tokens where that is less
    notes_every_tokens: int = 0  # take notes when this much is not noted yet: half the window
    notes_every_batches: int = 0  # or when this many user and tool messages are not noted yet; 0: tokens alone
    notes_reply_tokens: int = 0  # max_tokens of a notes call, thinking included: an eighth of the window, at least 1,024
    re_asks: int = 2  # how often one notes request is asked again before the first reply stands
    summarise_at: float = 0.75  # share of the window at which `summarise` does
    task_share: float = 0.5  # of the view: a first user message beyond this is shown as an excerpt, the rest by search
    kept_share: float = 0.25  # of the view: the exchange before the cut, and open questions, stay whole up to this
    search_room: int = 0  # room that a view with the search tool leaves for results: a sixth of the window
    search_limit: int = 20  # matches a search shows when the model names no number
    searches_a_turn: int = 24
    retrieved_a_question: int = 8  # sentences shown at a question by the strategies that retrieve
    tool_tree: bool = False  # show a large tool catalogue as groups that the model opens (keeper/tooltree.py)
    openings_a_turn: int = 8
    tools_share: float = 0.5  # of the view: open groups take no more
    keep_reasoning: bool = False
    thinking: Thinking = Thinking.AS_SENT
    thinking_effort: str = ""  # sent as reasoning_effort with every call that passes; "": the client's

    def __post_init__(self) -> None:
        if self.window < 256:
            raise ValueError(f"a window of {self.window} tokens holds no conversation; 256 is the least")
        for name in ("task_share", "kept_share", "tools_share", "summarise_at"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} is a share between 0 and 1, not {getattr(self, name)}")

    def reserve(self, max_tokens: int | None) -> int:
        """Tokens of the window that a view leaves for the reply."""
        most = self.reply_reserve or self.window // 4
        return min(most, max_tokens) if max_tokens and max_tokens > 0 else most

    @property
    def notes_reply(self) -> int:
        return self.notes_reply_tokens or min(self.reserve(None), max(1024, self.window // 8))

    @property
    def room_for_searches(self) -> int:
        return self.search_room or self.window // 6

    @property
    def notes_due_at(self) -> int:
        return self.notes_every_tokens or self.window // 2
