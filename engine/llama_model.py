"""A GGUF in memory: its weights, its vocabulary, and what it says of itself. Contexts over it are in llama.py."""

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as C

from engine.config import ModelConfig
from engine.context import StateKind
from engine.errors import BadRequest, ModelError
from engine.gguf_header import read_header
from engine.llama_backend import Backend, build_id

_TEMPLATE_KEY = "tokenizer.chat_template"
_NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What llama.cpp says of a model. `size` is the bytes of its tensors, `n_ctx_train` the longest context it was trained on,
    `n_swa` its sliding window in tokens (0: none)."""

    description: str
    architecture: str
    name: str
    parameters: int
    size: int
    n_ctx_train: int
    n_layer: int
    n_embd: int
    n_vocab: int
    n_swa: int
    kind: StateKind


class Model:
    """Weights and vocabulary, loaded once and shared by its contexts; a Tokenizer. Every method is safe from any thread.

    Raises ModelError when the file is missing, foreign, damaged or of a kind that cannot chat (an encoder). `progress` is
    called with the loaded fraction, from this thread, and stops the load when it returns False.
    """

    def __init__(self, config: ModelConfig, backend: Backend, progress: Callable[[float], bool] | None = None) -> None:
        read_header(config.path)
        self.config = config
        self.backend = backend
        params = _params(config)
        if progress is not None:
            params.progress_callback = C.llama_progress_callback(lambda fraction, _: progress(fraction))
        mark = backend.mark()
        handle = C.llama_model_load_from_file(str(config.path).encode(), params)
        if not handle:
            reason = backend.errors_since(mark) or "llama.cpp gave no reason"
            raise ModelError(f"cannot load {config.path}: {reason}")
        self.handle = handle
        self.vocab = C.llama_model_get_vocab(handle)
        self._pieces: dict[int, bytes] = {}
        self._lock = threading.Lock()
        if C.llama_model_has_encoder(handle) or C.llama_model_is_diffusion(handle) or not C.llama_model_has_decoder(handle):
            self.close()
            raise ModelError(f"{config.path} is no decoder-only language model, which is what kvalet serves")

    def close(self) -> None:
        """Frees the weights; every context over them must be closed before."""
        if self.handle:
            C.llama_model_free(self.handle)
            self.handle = None

    @cached_property
    def facts(self) -> ModelFacts:
        return ModelFacts(
            description=_text(lambda buffer, size: C.llama_model_desc(self.handle, buffer, size)),
            architecture=self.metadata.get("general.architecture", "unknown"),
            name=self.metadata.get("general.name", ""),
            parameters=int(C.llama_model_n_params(self.handle)),
            size=int(C.llama_model_size(self.handle)),
            n_ctx_train=int(C.llama_model_n_ctx_train(self.handle)),
            n_layer=int(C.llama_model_n_layer(self.handle)),
            n_embd=int(C.llama_model_n_embd(self.handle)),
            n_vocab=self.n_vocab,
            n_swa=int(C.llama_model_n_swa(self.handle)),
            kind=self.kind,
        )

    @cached_property
    def kind(self) -> StateKind:
        """What llama.cpp says can be cut. A context measures again: PARTIAL_ONLY must really leave something out."""
        if C.llama_model_is_recurrent(self.handle):
            return StateKind.RECURRENT
        if C.llama_model_is_hybrid(self.handle):
            return StateKind.HYBRID
        return StateKind.WINDOW if C.llama_model_n_swa(self.handle) > 0 else StateKind.ATTENTION

    @cached_property
    def metadata(self) -> Mapping[str, str]:
        """The file's key-value pairs as text; arrays (the vocabulary) as llama.cpp abbreviates them."""
        found = {}
        for index in range(C.llama_model_meta_count(self.handle)):
            key = _text(lambda buffer, size, i=index: C.llama_model_meta_key_by_index(self.handle, i, buffer, size))  # type: ignore[misc]
            found[key] = _text(lambda buffer, size, i=index: C.llama_model_meta_val_str_by_index(self.handle, i, buffer, size))  # type: ignore[misc]
        return found

    @cached_property
    def chat_templates(self) -> Mapping[str, str]:
        """Jinja sources by name; `default` is the model's own. Empty when it has none."""
        named = {
            key.removeprefix(_TEMPLATE_KEY + "."): text
            for key, text in self.metadata.items()
            if key.startswith(_TEMPLATE_KEY + ".")
        }
        default = self.metadata.get(_TEMPLATE_KEY)
        return {"default": default, **named} if default else named

    @cached_property
    def n_vocab(self) -> int:
        return int(C.llama_vocab_n_tokens(self.vocab))

    @cached_property
    def eog(self) -> frozenset[int]:
        return frozenset(token for token in range(self.n_vocab) if C.llama_vocab_is_eog(self.vocab, token))

    @property
    def bos(self) -> int | None:
        return self._named("bos", C.llama_vocab_bos(self.vocab))

    @property
    def eos(self) -> int | None:
        return self._named("eos", C.llama_vocab_eos(self.vocab))

    def _named(self, name: str, token: int) -> int | None:
        """llama.cpp makes a token up (11 for a GPT-2 vocabulary) where the file names none: believe it only with the key."""
        named = f"tokenizer.ggml.{name}_token_id" in self.metadata or self.adds_bos
        return int(token) if named and token != _NO_TOKEN else None

    @property
    def adds_bos(self) -> bool:
        return bool(C.llama_vocab_get_add_bos(self.vocab))

    def tokenize(self, text: str | bytes, *, special: bool, add_bos: bool = False) -> list[int]:
        """See Tokenizer. Characters that UTF-8 cannot hold (lone surrogates) become '?'; broken UTF-8 bytes U+FFFD."""
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text.decode("utf-8", "replace").encode()
        tokens = np.empty(len(raw) + 8, np.int32)  # a token is a byte at least, plus what a vocabulary may put in front
        count = C.llama_tokenize(self.vocab, raw, len(raw), _int32(tokens), len(tokens), False, special)
        if count < 0:
            raise BadRequest(f"the tokenizer wants {-count} tokens for {len(raw)} bytes", "prompt")
        front = [self.bos] if add_bos and self.bos is not None else []
        return [*front, *tokens[:count].tolist()]

    def piece(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            if not 0 <= token < self.n_vocab:
                raise BadRequest(f"token {token} is not in the vocabulary of {self.n_vocab}", "tokens")
            piece = self._pieces[token] = self._piece(token)
        return piece

    def _piece(self, token: int) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = C.llama_token_to_piece(self.vocab, token, buffer, size, 0, True)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self.piece, tokens))

    def fingerprint_facts(self) -> tuple[tuple[str, str], ...]:
        """What decides the bits of a state beside the weights themselves and the context's own settings."""
        return (
            ("build", build_id(self.backend.narrow_products)),
            ("gpu_layers", str(self.config.gpu_layers)),
            ("repacked", str(self.config.extra_buffers)),
            ("loras", ""),
        )


def _params(config: ModelConfig) -> Any:
    params = C.llama_model_default_params()
    params.n_gpu_layers = config.gpu_layers
    params.load_mode = C.LLAMA_LOAD_MODE_MMAP if config.use_mmap else C.LLAMA_LOAD_MODE_NONE
    params.use_extra_bufts = config.extra_buffers
    if config.device is not None:
        params.split_mode, params.main_gpu = C.LLAMA_SPLIT_MODE_NONE, config.device
    return params


def _text(fill: Callable[[ctypes.Array[ctypes.c_char], int], int]) -> str:
    """The text that a llama.cpp call writes into a buffer and returns the length of (snprintf's manners: whole length)."""
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = fill(buffer, size)
        if length < size:
            return buffer.raw[: max(length, 0)].decode("utf-8", "replace")
        size = length + 1


def _int32(array: np.ndarray[tuple[int], np.dtype[np.int32]]) -> "ctypes._Pointer[ctypes.c_int32]":
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
