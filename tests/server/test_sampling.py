"""Sampling fields reach the engine under its names, and what is left out is llama-server's default."""

from typing import Any

import pytest

from engine.sampling import SamplingParams
from server.errors import ApiError
from server.sampling import sampling
from server.schemas import ChatRequest
from server.shape import Shape

HI = [{"role": "user", "content": "hi"}]


def params(**fields: Any) -> SamplingParams:
    return sampling(ChatRequest(messages=HI, **fields), Shape())


def test_nothing_given_is_the_default() -> None:
    assert params() == SamplingParams()


def test_each_field_arrives_under_its_name() -> None:
    given = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.7,
        "repeat_penalty": 1.1,
        "repeat_last_n": 32,
        "frequency_penalty": 0.2,
        "presence_penalty": -0.2,
        "dry_multiplier": 0.8,
        "dry_base": 2.0,
        "dry_allowed_length": 4,
        "dry_penalty_last_n": 99,
        "xtc_probability": 0.3,
        "xtc_threshold": 0.2,
    }
    made = params(**given)
    assert {name: getattr(made, name) for name in given} == given
    assert params(dry_sequence_breakers=["x"]).dry_sequence_breakers == ("x",)


@pytest.mark.parametrize(("seed", "made"), [(None, None), (-1, None), (7, 7), (2**32 + 7, 7)])
def test_a_seed_is_32_bits_and_a_negative_one_is_random(seed: int | None, made: int | None) -> None:
    assert params(seed=seed).seed == made


def test_biases_come_in_both_forms_and_false_forbids() -> None:
    assert params(logit_bias={"5": 1.5, "6": -2}).logit_bias == ((5, 1.5), (6, -2.0))
    assert params(logit_bias=[[5, 1.5], [6, False]]).logit_bias == ((5, 1.5), (6, float("-inf")))


def test_a_bias_for_no_token_is_refused() -> None:
    with pytest.raises(ApiError, match="not a token id"):
        params(logit_bias={"hello": 1})
