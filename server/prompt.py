"""From a request's body to what the model reads: the template applied, the text as tokens, anchors at tokens."""

from dataclasses import dataclass
from typing import Any

from engine.chat import Rendered
from engine.errors import BadRequest
from engine.request import Anchor, Exact, Resume
from engine.transcript import Reading
from engine.volatile import steady_messages
from server.offsets import Offsets, offsets
from server.report import Place
from server.runtime import Runtime
from server.schemas import ChatTemplateFields


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads. `rendered` is None where no template was applied. `differs` is where the text leaves what was read
    before; a prompt given as tokens has no `text`, and only the engine knows where it differs."""

    tokens: tuple[int, ...]
    text: str | None = None
    anchors: tuple[Anchor, ...] = ()
    rendered: Rendered | None = None
    differs: Place | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done to the messages to make them fit the template."""
        return self.rendered.notes if self.rendered else ()

    def diverged(self, resume: Resume) -> Place | None:
        """Where reuse had to stop because history is not what it was; None for new and for appended prompts."""
        if self.text is not None:
            return self.differs
        return Place(None, resume.common, resume.common) if resume.diverged else None


def render(runtime: Runtime, body: ChatTemplateFields, *, forced: bool = False) -> Rendered:
    """The messages as the model's template writes them. `forced`: the answer must follow a grammar, so thinking is off unless
    the client asked for it. Raises BadRequest where the template refuses."""
    variables = template_variables(body, forced)
    continues = bool(variables.pop("continue_final_message", body.continues()))
    generates = bool(variables.pop("add_generation_prompt", body.add_generation_prompt is not False))
    flags = {"add_generation_prompt": generates, "continue_final_message": continues}
    messages = steady_messages(body.raw_messages()) if runtime.settings.steady_headers else body.raw_messages()
    return runtime.template.render(messages, body.raw_tools(), **flags, **variables)


def template_variables(body: ChatTemplateFields, forced: bool) -> dict[str, Any]:
    """chat_template_kwargs, with what clients say in fields of their own beside them."""
    variables = dict(body.chat_template_kwargs or {})
    if body.enable_thinking is not None:
        variables.setdefault("enable_thinking", body.enable_thinking)
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    if forced or body.reasoning_effort == "none":
        variables.setdefault("enable_thinking", False)
    return variables


def chat_prompt(runtime: Runtime, rendered: Rendered, exact: Exact) -> Prompt:
    """A rendered conversation as tokens, with its anchors."""
    reading, places = read(runtime, rendered.text, exact)
    anchors = tuple(Anchor(places.token(a.position), a.kind, a.pinned) for a in rendered.anchors)
    return Prompt(reading.tokens, rendered.text, anchors, rendered, place_of(reading, rendered.text, rendered))


def plain_prompt(runtime: Runtime, given: str | list[int], exact: Exact) -> Prompt:
    """A prompt without messages. Raises BadRequest for an empty one and for tokens outside the vocabulary."""
    if isinstance(given, str):
        reading, _ = read(runtime, given, exact)
        prompt = Prompt(reading.tokens, given, differs=place_of(reading, given, None))
    else:
        for token in given:
            runtime.tokenizer.piece(token)
        prompt = Prompt(tuple(given))
    if not prompt.tokens:
        raise BadRequest("the prompt is empty", "prompt")
    return prompt


def read(runtime: Runtime, text: str, exact: Exact) -> tuple[Reading, Offsets]:
    """A text as tokens, those of an earlier sequence as far as its bytes agree. A BOS that the model wants is put in front
    unless the text starts with it."""
    tokenizer, engine = runtime.tokenizer, runtime.engine
    bos = b"" if tokenizer.bos is None else tokenizer.piece(tokenizer.bos)
    add_bos = tokenizer.adds_bos and not (bos and text.startswith(bos.decode("utf-8", "replace")))
    strict = exact is Exact.STRICT
    reading = runtime.transcript.read(text, engine.resident(), runtime.store, strict=strict, add_bos=add_bos)
    return reading, offsets(text, reading.tokens, tokenizer.piece)


def place_of(reading: Reading, text: str, rendered: Rendered | None) -> Place | None:
    """Where a text differs from what was read before, in the client's terms."""
    if reading.differs is None:
        return None
    byte, token = reading.differs.byte, reading.differs.token
    char = byte if text.isascii() else len(text.encode("utf-8", "replace")[:byte].decode("utf-8", "ignore"))
    found = rendered.locate(char) if rendered else None
    return Place(found.message, found.char, token) if found else Place(None, char, token)
