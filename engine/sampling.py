"""How the next token is drawn, as plain values; sampler.py, which loads llama.cpp, does the drawing."""

import math
from dataclasses import dataclass

from engine.errors import BadRequest

_SEEDS = 1 << 32


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn; the defaults are llama-server's. `logit_bias` maps token id to added bias.

    `temperature` 0 is greedy. `seed` None draws a new one. The *_last_n look back that many tokens, -1 the whole context.
    At most one of `grammar` (GBNF) and `json_schema` (JSON text) may be set.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str | None = None
    json_schema: str | None = None


# Name, lowest, highest (both allowed). Beyond them llama.cpp divides by zero, allocates without bound or does nothing sensible.
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 100.0),
    ("top_k", -1, 2**31 - 1),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("typical_p", 0.0, 1.0),
    ("repeat_penalty", 1e-3, 100.0),
    ("repeat_last_n", -1, 2**31 - 1),
    ("frequency_penalty", -100.0, 100.0),
    ("presence_penalty", -100.0, 100.0),
    ("dry_multiplier", 0.0, 100.0),
    ("dry_base", 1.0, 100.0),
    ("dry_allowed_length", 0, 2**31 - 1),
    ("dry_penalty_last_n", -1, 2**31 - 1),
    ("xtc_probability", 0.0, 1.0),
    ("xtc_threshold", 0.0, 1.0),
)


def check_params(params: SamplingParams, n_vocab: int) -> None:
    """Raises BadRequest, with the parameter's name, for a value out of range. Grammars are checked by who compiles them."""
    for name, low, high in _RANGES:
        value = getattr(params, name)
        if not (math.isfinite(value) and low <= value <= high):
            raise BadRequest(f"{name} is {value}; it must be from {low:.10g} to {high:.10g}", name)
    if params.seed is not None and not -(_SEEDS // 2) <= params.seed < _SEEDS:
        raise BadRequest(f"seed is {params.seed}; it must fit 32 bits", "seed")
    if params.grammar is not None and params.json_schema is not None:
        raise BadRequest("grammar and json_schema exclude each other", "grammar")
    for token, bias in params.logit_bias:
        if not 0 <= token < n_vocab:
            raise BadRequest(f"logit_bias names token {token}; the vocabulary has {n_vocab}", "logit_bias")
        if math.isnan(bias) or bias == math.inf:
            raise BadRequest(f"logit_bias of token {token} is {bias}; it must be a number or -inf", "logit_bias")


def lookback(params: SamplingParams, n_ctx: int) -> int:
    """How many of the last tokens the penalties of a request look at; 0 when it has none."""
    wanted = [0]
    if params.repeat_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        wanted.append(last_n(params.repeat_last_n, n_ctx))
    if params.dry_multiplier != 0.0:
        wanted.append(last_n(params.dry_penalty_last_n, n_ctx))
    return max(wanted)


def last_n(wanted: int, n_ctx: int) -> int:
    """A *_last_n in tokens: -1 is the whole context, and more than the context would only take memory."""
    return n_ctx if wanted < 0 else min(wanted, n_ctx)
