"""From settings to a model in memory with a context over it: the part of start-up that `serve` and `verify` share."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from engine import catalog
from engine.catalog import Found
from engine.chat import ChatTemplate, load_template
from engine.config import ContextConfig, ModelConfig
from engine.context import Context, Samplers, Tokenizer
from engine.errors import ModelError
from engine.probe import Verdict, may_repack
from kvcache.fingerprint import Settings as StateSettings
from server.config import ConfigError, Settings
from server.progress import Tenths

if TYPE_CHECKING:
    from engine.llama_backend import Backend
    from engine.llama_model import Model, ModelFacts

LOG = logging.getLogger("kvalet.server")
DEFAULT_CTX = 32768
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A model and a context over it; `facts` are what, beside the weights, decides the bytes of its states (guarantee 3)."""

    found: Found
    backend: "Backend"
    model: "Model"
    context: Context
    samplers: Samplers
    facts: StateSettings

    def close(self) -> None:
        """Frees all of it, the context first."""
        self.context.close()
        self.model.close()
        self.backend.close()


def load_model(settings: Settings) -> Loaded:
    """Finds or makes the model and loads it. Raises ModelError."""
    # llama.cpp is loaded here and not with this module, so that --help is quick and OMP_WAIT_POLICY is set before.
    from engine.llama import LlamaContext
    from engine.llama_backend import Backend
    from engine.llama_model import Model
    from engine.sampler import LlamaSamplers

    found = catalog.resolve(settings.model, Tenths())
    backend = Backend()
    if settings.gpu_layers and not backend.offloads:
        LOG.warning("--gpu-layers %d does nothing: this llama-cpp-python was built without a GPU", settings.gpu_layers)
    LOG.info("loading %s", found.path)
    model = Model(model_config(settings, found.path), backend)
    config = context_config(settings, model.facts.n_ctx_train)
    context = aside(lambda: LlamaContext(model, config))
    return Loaded(found, backend, model, context, LlamaSamplers(context), state_settings(model, config))


def aside(work: Callable[[], T]) -> T:
    """Does `work` on a thread that ends with it. OpenMP keeps a pool for every thread that ever decoded, and once the pools have
    more threads than there are cores, waiting threads no longer spin before they sleep: a third more time for each token."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def model_config(settings: Settings, path: Path) -> ModelConfig:
    """Weights are repacked only where a child process has shown that this CPU survives it."""
    verdict = may_repack() if settings.repack else Verdict(False, "--no-repack")
    LOG.info("weight repacking is %s: %s", "on" if verdict.safe else "off", verdict.reason)
    return ModelConfig(path, gpu_layers=settings.gpu_layers, use_mmap=settings.mmap, extra_buffers=verdict.safe)


def context_config(settings: Settings, trained: int) -> ContextConfig:
    """`trained`: the model's own length in tokens, which bounds the default."""
    return ContextConfig(
        ctx=settings.ctx or min(trained, DEFAULT_CTX),
        slots=settings.parallel,
        batch=settings.batch,
        threads=settings.threads,
        grid=settings.grid,
        flash_attn=settings.flash_attn,
        type_k=settings.cache_type_k,
        type_v=settings.cache_type_v,
    )


def state_settings(model: "Model", config: ContextConfig) -> StateSettings:
    """What, beside the weights, decides the bytes of a state and their meaning (guarantee 3)."""
    return {
        **dict(model.fingerprint_facts()),
        "type_k": config.type_k,
        "type_v": config.type_v,
        "flash_attn": config.flash_attn,
        "grid": config.grid,
    }


def template_of(settings: Settings, model: "Model") -> ChatTemplate:
    """The model's own template, or the file that was given instead. Raises ConfigError for one that cannot be used."""
    bos, eos = (token_text(model, token) for token in (model.bos, model.eos))
    if settings.chat_template is None:
        source = model.chat_templates.get("default")
        return load_template(source, lambda text: len(model.tokenize(text, special=True)) == 1, bos, eos)
    try:
        return ChatTemplate(settings.chat_template.read_text("utf-8"), bos, eos)
    except (OSError, UnicodeDecodeError, ModelError) as error:
        raise ConfigError(f"--chat-template {settings.chat_template}: {error}") from error


def token_text(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.piece(token).decode("utf-8", "replace")


def meta(facts: "ModelFacts") -> dict[str, Any]:
    """llama-server's fields of a model in /v1/models, and the kind of state it has."""
    return {
        "n_vocab": facts.n_vocab,
        "n_ctx_train": facts.n_ctx_train,
        "n_embd": facts.n_embd,
        "n_params": facts.parameters,
        "size": facts.size,
        "architecture": facts.architecture,
        "kind": facts.kind.value,
    }
