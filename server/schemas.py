"""What the OpenAI routes accept: unknown fields are ignored, as clients send many; a wrong type is an error naming the field."""

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WrapValidator, model_validator

INT32 = 2**31 - 1
TEXT_PARTS = ("text", "input_text", "output_text")


def encodable(value: Any) -> Any:
    """Refuses lone surrogates inside raw JSON values: they cannot be written as UTF-8, so no tokenizer can read them."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise ValueError("holds text that is not valid Unicode, or nests too deep") from error
    return value


def keep_raw(value: Any, check: Callable[[Any], Any]) -> Any:
    """Validates but keeps the client's own dict: its key order is rendered into the prompt."""
    check(encodable(value))
    return value


def unicode(text: str) -> str:
    """Refuses lone surrogates, as `encodable` does."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("is not valid Unicode (a lone surrogate)") from error
    return text


Str = Annotated[str, AfterValidator(unicode)]
Int = Annotated[int, Field(ge=-INT32 - 1, le=INT32)]
Fraction = Annotated[float, Field(ge=0, le=1)]
RawObject = Annotated[dict[str, Any], BeforeValidator(encodable)]


class Body(BaseModel):
    """Strict types (no "5" for 5), finite numbers, unknown fields ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class Part(Body):
    """One part of a message's content; only text can be read."""

    type: Str
    text: Str | None = None
    cache_control: RawObject | None = None

    @model_validator(mode="after")
    def is_text(self) -> "Part":
        if self.type not in TEXT_PARTS:
            raise ValueError(f"this model reads text; a part of type {self.type[:40]!r} cannot be read")
        if self.text is None:
            raise ValueError("a text part needs `text`")
        return self


class FunctionCall(Body):
    name: Str
    arguments: Str | RawObject = "{}"


class ToolCall(Body):
    id: Str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Body):
    """One message of a conversation, in OpenAI's form, with `reasoning_content` accepted back."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Str | list[Part] | None = None
    name: Str | None = None
    tool_call_id: Str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: Str | None = None
    reasoning: Str | None = None
    cache_control: RawObject | None = None


class FunctionDefinition(Body):
    name: Str
    description: Str | None = None
    parameters: RawObject | None = None


class ToolDefinition(Body):
    type: Literal["function"] = "function"
    function: FunctionDefinition


class FunctionName(Body):
    name: Str


class NamedTool(Body):
    type: Literal["function"]
    function: FunctionName


class SchemaFormat(Body):
    name: Str | None = None
    schema_: RawObject | None = Field(None, alias="schema")


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None
    schema_: RawObject | None = Field(None, alias="schema")

    def wanted(self) -> dict[str, Any] | None:
        """The JSON schema the answer must follow, {} for any object, None for free text. Raises ValueError."""
        if self.type == "text":
            return None
        given = self.schema_ if self.json_schema is None else self.json_schema.schema_
        if self.type == "json_schema" and given is None:
            raise ValueError("response_format.json_schema.schema is missing")
        return {"type": "object"} if given is None else given


class StreamOptions(Body):
    include_usage: bool | None = None


class Generation(Body):
    """What every generating request may say: OpenAI's fields, llama-server's sampling fields, and our own."""

    model: Str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Str | list[Str] | None = None
    seed: int | None = None
    user: Str | None = None

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Fraction | None = None
    top_k: Int | None = None
    min_p: Fraction | None = None
    typical_p: Fraction | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=INT32)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    presence_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    dry_multiplier: Annotated[float, Field(ge=0, le=100)] | None = None
    dry_base: Annotated[float, Field(ge=0, le=100)] | None = None
    dry_allowed_length: Annotated[int, Field(ge=0, le=INT32)] | None = None
    dry_penalty_last_n: Annotated[int, Field(ge=-1, le=INT32)] | None = None
    dry_sequence_breakers: list[Str] | None = None
    xtc_probability: Fraction | None = None
    xtc_threshold: Fraction | None = None
    logit_bias: dict[Str, float] | list[Annotated[list[float | Literal[False]], Field(min_length=2, max_length=2)]] | None = None
    ignore_eos: bool | None = None
    grammar: Str | None = None
    json_schema: RawObject | None = None

    exact: Literal["append", "strict"] | None = None
    cache_prompt: bool | None = None
    prompt_cache_key: Str | None = None

    @model_validator(mode="after")
    def one_grammar(self) -> "Generation":
        if self.grammar and self.json_schema is not None:
            raise ValueError("give `grammar` or `json_schema`, not both")
        return self

    def stops(self) -> tuple[str, ...]:
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(s for s in given if s)


class ChatTemplateFields(Body):
    """What shapes the prompt of a conversation. Messages and tools stay as the client sent them: chat.py reads them."""

    messages: Annotated[list[Annotated[Message, WrapValidator(keep_raw)]], Field(min_length=1)]
    tools: list[Annotated[ToolDefinition, WrapValidator(keep_raw)]] | None = None
    reasoning_effort: Str | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: RawObject | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def raw_messages(self) -> list[dict[str, Any]]:
        """The messages as the client's own dicts (see keep_raw)."""
        return cast(list[dict[str, Any]], self.messages)

    def raw_tools(self) -> list[dict[str, Any]] | None:
        return cast(list[dict[str, Any]] | None, self.tools)

    def continues(self) -> bool:
        """Whether the answer goes on with a last message of the assistant's, as llama-server does where nothing else is said."""
        last = self.raw_messages()[-1]
        unsaid = last["role"] == "assistant" and not last.get("tool_calls") and self.add_generation_prompt is None
        return unsaid if self.continue_final_message is None else self.continue_final_message


class ChatRequest(Generation, ChatTemplateFields):
    """POST /v1/chat/completions."""

    max_tokens: Annotated[int, Field(ge=-1, le=INT32)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=-1, le=INT32)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    def limit(self) -> int | None:
        """Tokens the answer may have; None: until the context is full."""
        asked = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return None if asked is None or asked < 0 else asked


class CompletionRequest(Generation):
    """POST /v1/completions. `prompt` is a string, tokens, or a list of either."""

    prompt: Str | list[Int] | list[Str] | list[list[Int]]
    max_tokens: Annotated[int, Field(ge=-1, le=INT32)] | None = None
    n_predict: Annotated[int, Field(ge=-1, le=INT32)] | None = None
    echo: bool | None = None
    suffix: Str | None = None
    logprobs: Annotated[int, Field(ge=0, le=100)] | None = None
    n_probs: Annotated[int, Field(ge=0, le=100)] | None = None
    response_format: ResponseFormat | None = None

    def limit(self) -> int | None:
        """Tokens the answer may have; OpenAI's default for this route is 16, llama-server's is no limit: None."""
        asked = self.max_tokens if self.n_predict is None else self.n_predict
        return None if asked is None or asked < 0 else asked

    def prompts(self) -> list[str | list[int]]:
        """Every prompt of the request, each a string or tokens."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[t for t in self.prompt if isinstance(t, int)]]
        return [p for p in self.prompt if not isinstance(p, int)]
