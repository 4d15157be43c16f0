"""SamplingParams to a llama.cpp sampler chain, in llama-server's order, drawing from a context's logits in C.

Order: logit bias, penalties, DRY, top-k, typical, top-p, min-p, XTC, temperature, draw. At temperature 0 the chain is bias,
penalties, DRY, greedy: the samplers between only remove tokens that greedy would not take (XTC, which would, is random).
A sampler that its parameters switch off is left out. A grammar is tried on the drawn token alone first, and only when that is
refused on the whole vocabulary, which costs milliseconds: llama-server's way.
"""

import ctypes
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from engine.errors import BadRequest
from engine.grammar import ROOT, check_grammar
from engine.json_schema import schema_to_grammar
from engine.llama import LlamaContext
from engine.sampling import SamplingParams, check_params, last_n, lookback

__all__ = ["LlamaSampler", "LlamaSamplers", "SamplingParams"]

_MIN_KEEP = 0
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


class LlamaSamplers:
    """Makes the samplers of requests over one context. See engine.context.Samplers."""

    def __init__(self, context: LlamaContext) -> None:
        self._context = context

    def check(self, params: SamplingParams) -> None:
        check_params(params, self._context.n_vocab)
        grammar = self._grammar(params)
        if grammar is not None:
            C.llama_sampler_free(grammar)

    def make(self, params: SamplingParams, prompt: Sequence[int]) -> "LlamaSampler":
        check_params(params, self._context.n_vocab)
        grammar = self._grammar(params)
        recent = prompt[-look:] if (look := lookback(params, self._context.n_ctx)) else ()
        return LlamaSampler(self._context, _chain(params, self._context), grammar, recent)

    def _grammar(self, params: SamplingParams) -> Any:
        """A grammar sampler, or None where none is asked for. Raises BadRequest for one that llama.cpp refuses."""
        if params.json_schema is not None:
            return self._compile(schema_to_grammar(params.json_schema), "json_schema")
        if params.grammar is not None:
            return self._compile(params.grammar, "grammar")
        return None

    def _compile(self, text: str, param: str) -> Any:
        check_grammar(text, param)
        backend = self._context.model.backend
        mark = backend.mark()
        grammar = C.llama_sampler_init_grammar(self._context.model.vocab, text.encode("utf-8", "replace"), ROOT.encode())
        if not grammar:  # the parser's own words go to stderr, past the log
            raise BadRequest(f"{param} cannot be used: {backend.errors_since(mark) or 'it does not parse'}", param)
        return grammar


class LlamaSampler:
    """The chain of one request. Not ready before `make`; `close` frees it, twice does no harm."""

    def __init__(self, context: LlamaContext, chain: Any, grammar: Any, recent: Sequence[int]) -> None:
        self._context = context
        self._chain = chain
        self._grammar = grammar
        for token in recent:
            C.llama_sampler_accept(chain, token)
        self._candidates = np.empty(0, _CANDIDATE)  # filled only where llama.cpp cannot draw by itself

    def sample(self, run: int) -> int:
        """See Sampler. Raises BadRequest when no token of this vocabulary can go on with the grammar."""
        if not self._grammar:
            return self._context.sample(self._chain, run)
        return self.sample_from(self._context.logits(run))

    def sample_from(self, logits: NDArray[np.float32]) -> int:
        """See Sampler. The same steps as llama_sampler_sample, which reads a context's own logits only. Raises as `sample`."""
        token = self._draw(logits)
        if self._grammar and not self._allowed(token):
            token = self._draw(logits, by_grammar=True)
            if not self._allowed(token):  # accepting it would abort the process
                raise BadRequest(
                    "the grammar asks for text that no token of this model, or none with its bias, can start", "grammar"
                )
        C.llama_sampler_accept(self._chain, token)
        if self._grammar:
            C.llama_sampler_accept(self._grammar, token)
        return token

    def _draw(self, logits: NDArray[np.float32], by_grammar: bool = False) -> int:
        if not len(self._candidates):
            self._candidates = np.empty(len(logits), _CANDIDATE)
        self._candidates["id"] = np.arange(len(logits), dtype=np.int32)
        self._candidates["logit"] = logits
        array = _array(self._candidates)
        if by_grammar:
            C.llama_sampler_apply(self._grammar, ctypes.byref(array))
        C.llama_sampler_apply(self._chain, ctypes.byref(array))
        return int(array.data[array.selected].id)

    def _allowed(self, token: int) -> bool:
        alone = np.zeros(1, _CANDIDATE)
        alone["id"] = token
        C.llama_sampler_apply(self._grammar, ctypes.byref(_array(alone)))
        return bool(np.isfinite(alone["logit"][0]))

    def close(self) -> None:
        for sampler in (self._chain, self._grammar):
            if sampler:
                C.llama_sampler_free(sampler)
        self._chain = self._grammar = None


def _array(candidates: NDArray[Any]) -> Any:
    data = ctypes.cast(candidates.ctypes.data, C.llama_token_data_p)
    return C.llama_token_data_array(data=data, size=len(candidates), selected=-1, sorted=False)


def _chain(params: SamplingParams, context: LlamaContext) -> Any:
    chain_params = C.llama_sampler_chain_default_params()
    chain_params.no_perf = True
    chain = C.llama_sampler_chain_init(chain_params)
    for sampler in [*_history(params, context), *_choice(params)]:
        C.llama_sampler_chain_add(chain, sampler)
    return chain


def _history(params: SamplingParams, context: LlamaContext) -> list[Any]:
    """Bias, penalties and DRY: what changes logits by token and by what was said."""
    made = []
    n_vocab = context.n_vocab
    if params.logit_bias:
        biases = (C.llama_logit_bias * len(params.logit_bias))(*(C.llama_logit_bias(*pair) for pair in params.logit_bias))
        made.append(C.llama_sampler_init_logit_bias(n_vocab, len(biases), biases))
    if params.repeat_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        back = last_n(params.repeat_last_n, context.n_ctx)
        penalties = (params.repeat_penalty, params.frequency_penalty, params.presence_penalty)
        made.append(C.llama_sampler_init_penalties(n_vocab, back, *penalties))
    if params.dry_multiplier != 0.0:
        made.append(_dry(params, context))
    return made


def _dry(params: SamplingParams, context: LlamaContext) -> Any:
    texts = [text.encode("utf-8", "replace") for text in params.dry_sequence_breakers if text and "\0" not in text]
    breakers = (ctypes.c_char_p * len(texts))(*texts)
    back = last_n(params.dry_penalty_last_n, context.n_ctx)
    shape = (params.dry_multiplier, params.dry_base, params.dry_allowed_length, back)
    return C.llama_sampler_init_dry(context.model.vocab, *shape, breakers, len(texts))


def _choice(params: SamplingParams) -> list[Any]:
    """What removes tokens, and the draw among the rest."""
    if params.temperature == 0.0:
        return [C.llama_sampler_init_greedy()]
    seed = secrets.randbits(32) if params.seed is None else params.seed % (1 << 32)
    made = []
    if params.top_k > 0:
        made.append(C.llama_sampler_init_top_k(params.top_k))
    if params.typical_p < 1.0:
        made.append(C.llama_sampler_init_typical(params.typical_p, _MIN_KEEP))
    if params.top_p < 1.0:
        made.append(C.llama_sampler_init_top_p(params.top_p, _MIN_KEEP))
    if params.min_p > 0.0:
        made.append(C.llama_sampler_init_min_p(params.min_p, _MIN_KEEP))
    if params.xtc_probability > 0.0:
        made.append(C.llama_sampler_init_xtc(params.xtc_probability, params.xtc_threshold, _MIN_KEEP, seed))
    return [*made, C.llama_sampler_init_temp(params.temperature), C.llama_sampler_init_dist(seed)]
