"""Episodes as the embedded model's chat template (ledger.jinja) renders them, cut at the answers."""

import json
import random
from dataclasses import dataclass

from bench.ledger.episodes import Episode, Kind
from keeper.recall import NAME as RECALL
from keeper.recall import tool_of

START, END = "<|im_start|>", "<|im_end|>"
PLAIN = f"{START}assistant\n"
TOOLS = "# Tools\n\n<tools>\n" + json.dumps(tool_of(RECALL), ensure_ascii=False) + "\n</tools>\n\n"


@dataclass(frozen=True)
class Segment:
    """A piece of rendered text; `kind` marks an answer to learn, `spoken` any other text the model has to write."""

    text: str
    kind: Kind | None = None
    spoken: bool = False


def render(episode: Episode, rng: random.Random, tools: str = TOOLS, plain: bool = False) -> list[Segment]:
    """The episode's text; `tools` stands in its system message where it has the search tool, `plain` draws no openings.

    A served chat shows an answer in three ways: in history without a thinking block, and at the end after a generation prompt
    that closes the block or leaves it open for the model to close; each answer is drawn in one of them.
    """
    out: list[Segment] = []
    for message in episode.messages:
        if message.role == "system":
            out.append(Segment(f"{START}system\n{tools if episode.tools else ''}{message.text}{END}\n"))
        elif message.role == "tool":
            out.append(Segment(f"{START}user\n<tool_response>\n{message.text}\n</tool_response>{END}\n"))
        elif message.role == "assistant":
            out += [Segment(PLAIN)] if plain else _opening(rng)
            out += [Segment(f"{message.text}{END}", message.kind, message.kind is None), Segment("\n")]
        else:
            out.append(Segment(f"{START}{message.role}\n{message.text}{END}\n"))
    return out


def _opening(rng: random.Random) -> list[Segment]:
    draw = rng.random()
    if draw < 0.5:
        return [Segment(PLAIN)]
    if draw < 0.75:
        return [Segment(PLAIN + "<think>\n\n</think>\n\n")]
    return [Segment(PLAIN + "<think>\n"), Segment("\n</think>\n\n", spoken=True)]
