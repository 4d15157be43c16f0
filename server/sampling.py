"""A request's sampling fields to the engine's SamplingParams; what a request leaves out is llama-server's default."""

from dataclasses import replace
from typing import Any

from engine.sampling import SamplingParams
from server.errors import ApiError
from server.schemas import Generation
from server.shape import Shape

SAME_NAME = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "repeat_last_n",
    "frequency_penalty",
    "presence_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "xtc_probability",
    "xtc_threshold",
)


def sampling(body: Generation, shape: Shape) -> SamplingParams:
    """How to draw. Raises ApiError 400 for a bad logit_bias."""
    given = {name: getattr(body, name) for name in SAME_NAME if getattr(body, name) is not None}
    if body.dry_sequence_breakers is not None:
        given["dry_sequence_breakers"] = tuple(body.dry_sequence_breakers)
    return replace(
        SamplingParams(),
        **given,
        seed=None if body.seed is None or body.seed < 0 else body.seed & 0xFFFFFFFF,
        logit_bias=biases(body.logit_bias),
        grammar=shape.grammar,
        json_schema=shape.json_schema,
    )


def biases(given: dict[str, float] | list[list[Any]] | None) -> tuple[tuple[int, float], ...]:
    """Token id and added bias, from OpenAI's {"id": bias} or llama-server's [[id, bias | false]] (false: never)."""
    pairs = given.items() if isinstance(given, dict) else given or ()
    return tuple((token_id(token), float("-inf") if bias is False else float(bias)) for token, bias in pairs)


def token_id(given: Any) -> int:
    try:
        return int(given)
    except ValueError:
        raise ApiError(400, f"logit_bias: {given!r} is not a token id", param="logit_bias", code="invalid_value") from None
