"""Chat messages to prompt text and generated text back to a message, by the model's own template.

template = load_template(source, has_token, bos, eos)
rendered = template.render(messages, tools, enable_thinking=False)
parser = template.parser(tools, rendered, seed=request_id)
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from engine.anchors import CharAnchor, MessageSpan, find_anchors, message_spans
from engine.errors import BadRequest, ModelError
from engine.template import MARK, Template, TemplateFailed, Trace
from engine.toolparse import END_THINK, THINK, Dialect, OutputParser, ParserConfig, dialect_of
from engine.tooltext import tools_as_text
from engine.turns import Turn, adaptations, to_turns

log = logging.getLogger(__name__)
OURS = frozenset({"messages", "tools", "bos_token", "eos_token", MARK})
FALLBACKS = {"<start_of_turn>": "gemma", "<|im_start|>": "chatml", "<|start_header_id|>": "llama3"}  # by a token of theirs
LAST_FALLBACK = "chatml"
LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can hold one; UTF-8, and so a tokenizer, cannot


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a prompt in the client's terms: character `char` of message `message`'s content.

    `message` is None before any message (tools, a default system text); char is 0 in a message's markup or thinking.
    """

    message: int | None
    char: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt. `spans` and `anchors` are character ranges of `text`; `notes` say how messages were made to fit the template.

    `generation_prompt` is the end of `text` that opens the answer; `thinking`: the answer starts inside a think block;
    `continued`: it goes on with the last message. A span of index -1 is a system message of ours (tools shown as text).
    """

    text: str
    spans: tuple[MessageSpan, ...] = field(repr=False)
    anchors: tuple[CharAnchor, ...] = field(repr=False)
    generation_prompt: str
    thinking: bool
    notes: tuple[str, ...] = ()
    continued: bool = False

    def locate(self, char: int) -> Place:
        """The message that character `char` of the text belongs to, for saying where a prompt diverges from an earlier one."""
        for span in self.spans:
            if span.start <= char < span.end and span.index >= 0:
                return Place(span.index, max(char - span.content, 0))
        return Place(None, char)


class ChatTemplate:
    """One model's template in both directions. Rendering has no state and no randomness: the same input, the same bytes."""

    def __init__(
        self,
        source: str,
        bos: str = "",
        eos: str = "",
        *,
        clock: Callable[[], datetime] = datetime.now,
        note: str | None = None,
    ) -> None:
        """`note` says why this is not the model's own template. Raises ModelError where the source is no Jinja."""
        self.source = source
        self.note = note
        self.thinks = END_THINK in source
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._template = Template(source, clock)
        self.takes_tools = "tools" in self._template.variables
        self.dialect = dialect_of(source) if self.takes_tools else Dialect.HERMES

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> Rendered:
        """The prompt for OpenAI messages; `variables` are the request's chat_template_kwargs (enable_thinking, …).

        With `continue_final_message` the text ends inside the last message, an assistant's, so that the model goes on with
        it. Messages that the template refuses are adapted (engine/turns.py) and tried again. Raises BadRequest, with the
        template's own words where it raised.
        """
        if taken := OURS & variables.keys():
            raise BadRequest(f"chat_template_kwargs must not set {', '.join(sorted(taken))}", "chat_template_kwargs")
        turns = to_turns(messages)
        if continue_final_message:
            add_generation_prompt = not _text_to_continue(turns).strip()
            turns = turns[:-1] if add_generation_prompt else turns
        if not self.takes_tools:
            turns = tools_as_text(turns, tools)
        given = {**variables, **self._tokens, "tools": list(tools) if tools else None}
        trace, turns, notes = self._fitted(turns, {**given, "add_generation_prompt": add_generation_prompt})
        rendered = _rendered(trace, turns, notes, add_generation_prompt)
        return _continued(rendered, turns[-1]) if continue_final_message and not add_generation_prompt else rendered

    def _fitted(self, turns: tuple[Turn, ...], variables: dict[str, Any]) -> tuple[Trace, tuple[Turn, ...], tuple[str, ...]]:
        """The first adaptation that the template takes; where it takes none, what it said of the messages as they came."""
        refusal: TemplateFailed | None = None
        for adapted, notes in adaptations(turns):
            messages = [turn.message for turn in adapted]
            try:
                trace = self._template.render({**variables, "messages": messages}, [*messages, *(variables["tools"] or ())])
            except TemplateFailed as error:
                refusal = refusal or error
            else:
                return replace(trace, text=LONE_SURROGATE.sub("\ufffd", trace.text)), adapted, notes
        raise BadRequest(f"the model's chat template refused the messages: {refusal}", "messages") from refusal

    def parser(
        self,
        tools: Sequence[Mapping[str, Any]] | None,
        rendered: Rendered,
        *,
        seed: str = "",
        stream_calls: bool = True,
    ) -> OutputParser:
        """A fresh parser for what the model writes after `rendered`. `seed` (the request's id) makes its call ids unique."""
        may_think = self.thinks and not rendered.thinking and not rendered.continued
        given = tuple(tools or ()) if self.dialect is not Dialect.NONE else ()
        return OutputParser(ParserConfig(rendered.thinking, may_think, bool(given), stream_calls, seed, given))


def _rendered(trace: Trace, turns: tuple[Turn, ...], notes: tuple[str, ...], answers: bool) -> Rendered:
    spans = message_spans(trace, turns)
    start = spans[-1].end if spans and answers else len(trace.text)
    anchors = find_anchors(trace, turns, spans, start if answers else None)
    # Some templates open the answer inside their loop, so what follows the last content is looked at, not the opening alone.
    tail = trace.text[min(spans[-1].content + len(turns[-1].content.strip()), start) :] if spans else trace.text
    thinking = answers and tail.rfind(THINK) > tail.rfind(END_THINK)
    return Rendered(trace.text, spans, anchors, trace.text[start:], thinking, notes)


def _text_to_continue(turns: tuple[Turn, ...]) -> str:
    """The end of what the last message says: its content, or its reasoning where it has got no further."""
    if not turns or turns[-1].role != "assistant" or turns[-1].message.get("tool_calls"):
        raise BadRequest("only a last message of the assistant, without tool calls, can be continued", "messages")
    return turns[-1].content if turns[-1].content.strip() else str(turns[-1].message.get("reasoning_content") or "")


def _continued(rendered: Rendered, last: Turn) -> Rendered:
    """Cut behind the last message's own text; blanks that the template trimmed from its edges come back, because the model
    wrote them (an answer of ours begins as it was sampled) and what is generated follows them.
    """
    span, said = rendered.spans[-1], _text_to_continue((last,))
    at = rendered.text.rfind(said.strip(), span.start, span.end)
    if at < 0:
        raise BadRequest("the model's chat template does not show the last message, so it cannot be continued", "messages")
    text = rendered.text[:at] + said
    anchors = tuple(anchor for anchor in rendered.anchors if anchor.position <= at)
    spans = (*rendered.spans[:-1], replace(span, end=len(text)))
    return replace(rendered, text=text, anchors=anchors, spans=spans, thinking=not last.content.strip(), continued=True)


def load_template(
    source: str | None,
    has_token: Callable[[str], bool],
    bos: str = "",
    eos: str = "",
    *,
    clock: Callable[[], datetime] = datetime.now,
) -> ChatTemplate:
    """The model's own template, else one for the markup whose tokens its vocabulary has, said in the log and in `note`."""
    reason = "the model has no chat template"
    if source:
        try:
            return ChatTemplate(source, bos, eos, clock=clock)
        except ModelError as error:
            reason = str(error)
    name = next((name for token, name in FALLBACKS.items() if has_token(token)), LAST_FALLBACK)
    note = f"{reason}; {name} markup is used"
    log.warning("%s", note)
    fallback = Path(__file__).with_name(f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(fallback, bos, eos, clock=clock, note=note)
