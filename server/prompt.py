"""From a request's body to what the model reads: the template applied, the text as tokens, anchors at tokens."""

from dataclasses import dataclass
from typing import Any

from engine.chat import Rendered
from engine.errors import BadRequest
from engine.request import Anchor
from server.offsets import Offsets, offsets
from server.report import Place
from server.runtime import Runtime
from server.schemas import ChatTemplateFields


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads. `rendered` is None where no template was applied, `places` where tokens were given."""

    tokens: tuple[int, ...]
    anchors: tuple[Anchor, ...] = ()
    places: Offsets | None = None
    rendered: Rendered | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done to the messages to make them fit the template."""
        return self.rendered.notes if self.rendered else ()

    def locate(self, token: int) -> Place:
        """Token number `token` as a place in the client's messages; without messages, a character of the prompt."""
        if self.places is None:
            return Place(None, token, token)
        char = self.places.char(token)
        if self.rendered is None:
            return Place(None, char, token)
        found = self.rendered.locate(char)
        return Place(found.message, found.char, token)


def render(runtime: Runtime, body: ChatTemplateFields, *, forced: bool = False) -> Rendered:
    """The messages as the model's template writes them. `forced`: the answer must follow a grammar, so thinking is off unless
    the client asked for it. Raises BadRequest where the template refuses."""
    variables = template_variables(body, forced)
    continues = bool(variables.pop("continue_final_message", body.continues()))
    generates = bool(variables.pop("add_generation_prompt", body.add_generation_prompt is not False))
    flags = {"add_generation_prompt": generates, "continue_final_message": continues}
    return runtime.template.render(body.raw_messages(), body.raw_tools(), **flags, **variables)


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


def chat_prompt(runtime: Runtime, rendered: Rendered) -> Prompt:
    """A rendered conversation as tokens, with its anchors."""
    tokens = text_tokens(runtime, rendered.text)
    places = offsets(rendered.text, tokens, runtime.tokenizer.piece)
    anchors = tuple(Anchor(places.token(a.position), a.kind, a.pinned) for a in rendered.anchors)
    return Prompt(tokens, anchors, places, rendered)


def plain_prompt(runtime: Runtime, given: str | list[int]) -> Prompt:
    """A prompt without messages. Raises BadRequest for an empty one and for tokens outside the vocabulary."""
    if isinstance(given, str):
        tokens = text_tokens(runtime, given)
        places = offsets(given, tokens, runtime.tokenizer.piece)
    else:
        tokens, places = tuple(given), None
        for token in given:
            runtime.tokenizer.piece(token)
    if not tokens:
        raise BadRequest("the prompt is empty", "prompt")
    return Prompt(tokens, places=places)


def text_tokens(runtime: Runtime, text: str) -> tuple[int, ...]:
    """The tokens of a prompt; a BOS that the model wants is put in front unless the text starts with it."""
    tokenizer = runtime.tokenizer
    bos = b"" if tokenizer.bos is None else tokenizer.piece(tokenizer.bos)
    add = tokenizer.adds_bos and not (bos and text.encode("utf-8", "replace").startswith(bos))
    return tuple(tokenizer.tokenize(text, special=True, add_bos=add))
