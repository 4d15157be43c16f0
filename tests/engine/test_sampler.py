"""Sampling: parameters out of range are named, the chain does what each parameter says, seeds repeat, grammars are followed."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from engine.context import Run
from engine.errors import BadRequest
from engine.fake import FakeContext, FakeSamplers
from engine.sampling import SamplingParams, check_params, last_n, lookback
from tests.engine.conftest import random_words

if TYPE_CHECKING:
    from engine.sampler import LlamaSamplers

GREEDY = SamplingParams(temperature=0.0)
PURE = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1)
WRONG: dict[str, list[Any]] = {
    "temperature": [-0.1, math.nan, math.inf, 1e9],
    "top_k": [-2],
    "top_p": [-0.1, 1.1, math.nan],
    "min_p": [-0.1, 1.1],
    "typical_p": [1.5],
    "repeat_penalty": [0.0, -1.0, math.inf],
    "repeat_last_n": [-2],
    "frequency_penalty": [math.nan, 1e6],
    "presence_penalty": [-1e6],
    "dry_multiplier": [-1.0],
    "dry_base": [0.5],
    "dry_allowed_length": [-1],
    "dry_penalty_last_n": [-2],
    "xtc_probability": [2.0],
    "xtc_threshold": [-1.0],
    "seed": [1 << 32, -(1 << 40)],
    "logit_bias": [((-1, 1.0),), ((300, 1.0),), ((5, math.nan),), ((5, math.inf),)],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_parameter_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        check_params(replace(SamplingParams(), **{name: value}), 300)
    assert caught.value.param == name


def test_the_bounds_of_a_parameter_are_written_out() -> None:
    with pytest.raises(BadRequest, match="from -1 to 2147483647"):
        check_params(SamplingParams(top_k=-5), 300)


def test_a_grammar_and_a_schema_together_are_refused() -> None:
    with pytest.raises(BadRequest):
        check_params(SamplingParams(grammar="root ::= []", json_schema="{}"), 300)


def test_edges_of_the_ranges_are_allowed() -> None:
    check_params(SamplingParams(temperature=0, top_k=-1, top_p=0, min_p=1, seed=-1, logit_bias=((299, -math.inf),)), 300)


def test_only_penalties_look_back_and_never_beyond_the_context() -> None:
    assert lookback(SamplingParams(), 4096) == 0
    assert lookback(SamplingParams(repeat_penalty=1.1), 4096) == 64
    assert lookback(SamplingParams(presence_penalty=0.5, repeat_last_n=9999), 4096) == 4096
    assert lookback(SamplingParams(dry_multiplier=0.8), 4096) == 4096
    assert [last_n(n, 100) for n in (-1, 0, 50, 500)] == [100, 0, 50, 100]


def test_the_fakes_sampler_is_greedy_at_zero_repeats_a_seed_and_obeys_bias() -> None:
    context = FakeContext()
    context.decode([Run(0, 0, random_words(9), True)])
    samplers, best = FakeSamplers(context), int(np.argmax(context.logits(0)))
    assert samplers.make(GREEDY, ()).sample(0) == best
    assert samplers.make(replace(GREEDY, logit_bias=((best, -math.inf),)), ()).sample(0) != best
    draws = [[sampler.sample(0) for _ in range(9)] for sampler in (samplers.make(SamplingParams(seed=s), ()) for s in (1, 1, 2))]
    assert draws[0] == draws[1] != draws[2]


# On llama.cpp


class Bench:
    """A real context that has read a prompt; draws from its last logits, or generates on."""

    def __init__(self, samplers: "LlamaSamplers", context: Any) -> None:
        self.samplers, self.context = samplers, context
        self.prompt = random_words(40)
        self.restart()

    def restart(self) -> None:
        self.context.clear(0)
        self.context.decode([Run(0, 0, self.prompt, True)])

    def draw(self, params: SamplingParams, count: int = 1, prompt: tuple[int, ...] = ()) -> list[int]:
        """Draws from the same logits again and again."""
        sampler = self.samplers.make(params, prompt)
        try:
            return [sampler.sample(0) for _ in range(count)]
        finally:
            sampler.close()

    def generate(self, params: SamplingParams, count: int) -> list[int]:
        self.restart()
        sampler, said = self.samplers.make(params, self.prompt), []
        try:
            while len(said) < count:
                said.append(sampler.sample(0))
                if said[-1] in self.context.model.eog:
                    break
                self.context.decode([Run(0, self.context.length(0), (said[-1],), True)])
            return said
        finally:
            sampler.close()

    @property
    def ranked(self) -> list[int]:
        return [int(token) for token in np.argsort(-self.context.logits(0), kind="stable")]


@pytest.fixture
def bench(make_real: Callable[..., Any]) -> Iterator[Bench]:
    from engine.sampler import LlamaSamplers

    context = make_real("tiny", ctx=512)
    yield Bench(LlamaSamplers(context), context)


VARIED = (
    GREEDY,
    SamplingParams(seed=3),
    SamplingParams(seed=4, temperature=1.5, top_k=0, typical_p=0.9, xtc_probability=0.5),
    SamplingParams(temperature=0.0, repeat_penalty=1.4, logit_bias=((7, 3.0),)),
    SamplingParams(seed=5, grammar='root ::= "a"+ "b"'),
)


@pytest.mark.model
@pytest.mark.parametrize("params", VARIED)
def test_a_copy_of_logits_gives_the_tokens_that_the_context_itself_gives(bench: Bench, params: SamplingParams) -> None:
    logits = bench.context.logits(0)
    sampler = bench.samplers.make(params, bench.prompt)
    try:
        assert [sampler.sample_from(logits) for _ in range(6)] == bench.draw(params, 6, bench.prompt)
    finally:
        sampler.close()


@pytest.mark.model
class TestChain:
    def test_temperature_zero_takes_the_likeliest(self, bench: Bench) -> None:
        assert set(bench.draw(GREEDY, 5)) == {bench.ranked[0]}

    def test_top_k_and_top_p_and_min_p_bound_what_can_be_drawn(self, bench: Bench) -> None:
        assert set(bench.draw(replace(PURE, top_k=3, temperature=50.0), 200)) == set(bench.ranked[:3])
        assert set(bench.draw(replace(PURE, top_p=0.0), 20)) == {bench.ranked[0]}
        assert set(bench.draw(replace(PURE, min_p=1.0), 20)) == {bench.ranked[0]}

    def test_draws_follow_the_softmax_of_the_logits(self, bench: Bench) -> None:
        """Frequencies of the likeliest token over 4,000 draws lie within 5 standard deviations."""
        logits = bench.context.logits(0).astype(np.float64)
        likely = float(np.exp(logits.max() - logits.max()) / np.exp(logits - logits.max()).sum())
        hits = bench.draw(PURE, 4000).count(bench.ranked[0])
        assert abs(hits - 4000 * likely) < 5 * math.sqrt(4000 * likely * (1 - likely)) + 1

    def test_a_seed_repeats_itself_and_others_differ(self, bench: Bench) -> None:
        hot = replace(PURE, temperature=2.0)
        assert bench.generate(hot, 30) == bench.generate(hot, 30) != bench.generate(replace(hot, seed=2), 30)
        assert bench.draw(replace(hot, seed=None), 30) != bench.draw(replace(hot, seed=None), 30)

    def test_bias_forces_and_forbids(self, bench: Bench) -> None:
        best = bench.ranked[0]
        assert bench.draw(replace(GREEDY, logit_bias=((best, -math.inf),))) == [bench.ranked[1]]
        assert set(bench.draw(replace(PURE, logit_bias=((77, 1000.0),)), 20)) == {77}

    @pytest.mark.parametrize("penalty", [{"repeat_penalty": 100.0}, {"presence_penalty": 100.0}, {"frequency_penalty": 100.0}])
    def test_penalties_count_the_prompt_and_what_was_drawn(self, bench: Bench, penalty: dict[str, float]) -> None:
        params = replace(GREEDY, **penalty)
        best, second = bench.ranked[:2]
        assert bench.draw(params, 1, prompt=(best,)) == [second]
        assert len(set(bench.draw(params, 10))) == 10

    def test_penalties_forget_what_is_further_back_than_they_look(self, bench: Bench) -> None:
        best = bench.ranked[0]
        params = replace(GREEDY, presence_penalty=100.0, repeat_last_n=2)
        assert bench.draw(params, 1, prompt=(best, 9, 9)) == [best]

    def test_dry_breaks_a_loop(self, bench: Bench) -> None:
        first, other = bench.ranked[0], 9
        loop = (first, other, first, other, first, other)
        dry = replace(GREEDY, dry_multiplier=50.0, dry_allowed_length=1, dry_sequence_breakers=())
        assert bench.draw(dry, 1, prompt=loop) != [first] == bench.draw(GREEDY, 1, prompt=loop)

    def test_xtc_takes_the_likeliest_away(self, bench: Bench) -> None:
        xtc = replace(PURE, top_k=5, temperature=5.0, xtc_probability=1.0, xtc_threshold=0.0)
        assert bench.ranked[0] in bench.draw(replace(xtc, xtc_probability=0.0), 200)
        assert bench.ranked[0] not in bench.draw(xtc, 200)

    def test_everything_at_once_still_draws(self, bench: Bench) -> None:
        params = SamplingParams(
            0.7, 50, 0.9, 0.02, 0.95, 1.1, -1, 0.2, 0.3, 0.8, xtc_probability=0.3, seed=5, logit_bias=((9, 2.0),)
        )
        assert bench.generate(params, 20) == bench.generate(params, 20)

    def test_the_history_of_a_long_prompt_is_fed_only_as_far_as_it_counts(self, bench: Bench) -> None:
        prompt = tuple(int(token) for token in np.random.default_rng(0).integers(5, 250, 100_000))
        assert bench.draw(replace(GREEDY, presence_penalty=0.1), 1, prompt=prompt)

    def test_a_sampler_can_be_closed_twice(self, bench: Bench) -> None:
        sampler = bench.samplers.make(GREEDY, ())
        sampler.close()
        sampler.close()


@pytest.mark.model
class TestGrammar:
    def text(self, bench: Bench, params: SamplingParams, count: int = 60) -> str:
        said = [token for token in bench.generate(params, count) if token not in bench.context.model.eog]
        return str(bench.context.model.detokenize(said).decode())

    def test_what_is_generated_follows_the_grammar_and_ends_with_it(self, bench: Bench) -> None:
        grammar = 'root ::= "yes" | "no" [a-z]{3}'
        for params in (replace(GREEDY, grammar=grammar), replace(PURE, grammar=grammar, temperature=3.0)):
            text = self.text(bench, params)
            assert text == "yes" or (len(text) == 5 and text.startswith("no"))

    def test_a_schema_is_followed(self, bench: Bench) -> None:
        assert self.text(bench, replace(PURE, json_schema='{"enum": ["a\\\\b", "c"]}')) in ('"a\\\\b"', '"c"')

    def test_a_seed_repeats_itself_under_a_grammar(self, bench: Bench) -> None:
        params = replace(PURE, grammar="root ::= [a-z]{20}", temperature=2.0)
        assert self.text(bench, params) == self.text(bench, params) != self.text(bench, replace(params, seed=2))

    def test_after_its_end_a_grammar_allows_only_the_end(self, bench: Bench) -> None:
        """A request may ignore the end; the sampler must not abort for it."""
        sampler = bench.samplers.make(replace(GREEDY, grammar='root ::= ""'), ())
        assert {sampler.sample(0) for _ in range(3)} <= bench.context.model.eog
        sampler.close()

    def test_a_bias_against_all_that_the_grammar_allows_is_an_error_and_not_an_abort(self, bench: Bench) -> None:
        model = bench.context.model
        biases = tuple((t, -math.inf) for t in range(model.n_vocab) if model.piece(t)[:1] == b"y")
        with pytest.raises(BadRequest, match="no token"):
            bench.generate(replace(GREEDY, grammar='root ::= "yes"', logit_bias=biases), 5)

    def test_a_bad_schema_is_refused_by_check_before_anything_is_made(self, bench: Bench) -> None:
        with pytest.raises(BadRequest) as caught:
            bench.samplers.check(SamplingParams(json_schema='{"type": "integer", "multipleOf": 7}'))
        assert caught.value.param == "json_schema"
