"""From settings to a model in memory with a context over it: the part of start-up that `serve` and `verify` share."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from engine import catalog
from engine.catalog import Found
from engine.chat import ChatTemplate, load_template
from engine.config import ContextConfig, ModelConfig
from engine.context import Context, Samplers, Tokenizer
from engine.errors import ModelError
from engine.loop import Loop
from engine.probe import Verdict, default_threads, may_repack
from kvcache.fingerprint import Settings as StateSettings
from server.config import ConfigError, Settings
from server.devices import CPU, Layout
from server.progress import Tenths

if TYPE_CHECKING:
    from engine.llama_backend import Backend
    from engine.llama_model import Model, ModelFacts

LOG = logging.getLogger("kvalet.server")
DEFAULT_CTX = 32768
ONE = Layout(("",))
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Seat:
    """A context for an engine, what samples from it, and the thread that will drive both."""

    context: Context
    samplers: Samplers
    loop: Loop


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A model, once on each device, and contexts over it; `facts` are what, beside the weights, decides the bytes of its states
    (guarantee 3)."""

    found: Found
    backend: "Backend"
    models: "tuple[Model, ...]"
    seats: tuple[Seat, ...]
    facts: StateSettings

    @property
    def model(self) -> "Model":
        return self.models[0]

    @property
    def context(self) -> Context:
        return self.seats[0].context

    def close(self) -> None:
        """Frees all of it, contexts first."""
        for seat in self.seats:
            seat.context.close()
        for model in self.models:
            model.close()
        self.backend.close()


def load_model(settings: Settings, plan: Layout = ONE) -> Loaded:
    """Finds or makes the model and loads it for the engines of `plan`. Raises ModelError, ConfigError."""
    # llama.cpp is loaded here and not with this module, so that --help is quick and OMP_WAIT_POLICY is set before.
    from engine.llama_backend import Backend
    from engine.llama_model import Model

    found = catalog.resolve(settings.model, Tenths())
    backend = Backend()
    check_devices(settings, plan, offloads=backend.offloads)
    LOG.info("loading %s", found.path)
    models = {name: Model(model_config(settings, found.path, name), backend) for name in dict.fromkeys(plan.devices)}
    first = models[plan.devices[0]]
    config = context_config(settings, first.facts.n_ctx_train, plan)
    loop = Loop()
    seats = [seat(models[plan.devices[0]], config, loop)]
    for name in plan.devices[1:]:
        # a hosted engine reads one conversation at a time
        seats.append(seat(models[name], replace(config, slots=1) if plan.hosted else config, loop if plan.hosted else Loop()))
    return Loaded(found, backend, tuple(models.values()), tuple(seats), state_settings(first, config))


def check_devices(settings: Settings, plan: Layout, *, offloads: bool) -> None:
    """Raises ConfigError for GPUs that this build cannot use, and warns of layers that it will not put there."""
    if not offloads and any(name.isdigit() for name in plan.devices):
        raise ConfigError(f"--devices {settings.devices}: this llama-cpp-python was built without a GPU")
    if settings.gpu_layers and not offloads:
        LOG.warning("--gpu-layers %d does nothing: this llama-cpp-python was built without a GPU", settings.gpu_layers)


def seat(model: "Model", config: ContextConfig, loop: Loop) -> Seat:
    from engine.llama import LlamaContext
    from engine.sampler import LlamaSamplers

    context = aside(lambda: LlamaContext(model, config))
    return Seat(context, LlamaSamplers(context), loop)


def aside(work: Callable[[], T]) -> T:
    """Does `work` on a thread that ends with it. OpenMP keeps a pool for every thread that ever decoded, and once the pools have
    more threads than there are cores, waiting threads no longer spin before they sleep: a third more time for each token."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def model_config(settings: Settings, path: Path, device: str = "") -> ModelConfig:
    """Weights are repacked only where a child process has shown that this CPU survives it. On a GPU that was named all layers
    are its own unless --gpu-layers says how many, and on a named processor none."""
    verdict = may_repack() if settings.repack else Verdict(False, "--no-repack")
    LOG.info("weight repacking is %s: %s", "on" if verdict.safe else "off", verdict.reason)
    layers = 0 if device == CPU else settings.gpu_layers or (-1 if device else 0)
    return ModelConfig(
        path,
        gpu_layers=layers,
        use_mmap=settings.mmap,
        extra_buffers=verdict.safe,
        device=int(device) if device.isdigit() else None,
    )


def context_config(settings: Settings, trained: int, plan: Layout = ONE) -> ContextConfig:
    """`trained`: the model's own length in tokens, which bounds the default. Engines with threads of their own divide the cores,
    because OpenMP's pools must not have more threads than there are cores (see `aside`)."""
    return ContextConfig(
        ctx=settings.ctx or min(trained, DEFAULT_CTX),
        slots=settings.parallel,
        batch=settings.batch,
        threads=settings.threads or default_threads(plan.threads),
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
