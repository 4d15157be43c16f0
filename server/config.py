"""Settings of `kvalet serve`: one table of options that the command line and the TOML file share by construction."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from keeper.errors import UnknownStrategy
from keeper.strategies import registry
from kvcache import eviction, placement
from server.devices import budget, layout
from server.sizes import parse_size


class ConfigError(Exception):
    """An option, or the TOML file, cannot be used; the message names the option and says what is allowed."""


def not_empty(path: Any) -> Any:
    """Raises ValueError for "", which would be the working folder; nobody means that."""
    if path == "":
        raise ValueError("a path is needed, and this is empty")
    return path


Size = Annotated[int, BeforeValidator(parse_size), Field(ge=0)]
Text = Annotated[str, BeforeValidator(str)]
Place = Annotated[Path, BeforeValidator(not_empty)]
KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]


def option(default: Any, text: str, panel: str, metavar: str | None = None, **limits: Any) -> Any:
    """A field with its help text, the panel of `--help` that shows it, and the word for its value there."""
    return Field(default, description=text, json_schema_extra={"panel": panel, "metavar": metavar}, **limits)


MODEL, CACHE, ENGINE, KEEPER, HTTP = "Model", "Cache", "Engine", "Keeper", "Server"


class Settings(BaseModel):
    """Everything `kvalet serve` can be told. Field `cache_ram` is `--cache-ram` and `cache_ram = ...` in TOML."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    model: str | None = option(
        None,
        "A .gguf file or a name (ledger, synthetic:tiny, synthetic:0.8b, smollm2). None given: ledger, the embedded model.",
        MODEL,
    )
    alias: tuple[str, ...] = option((), "Another name for the model in the API; may be repeated.", MODEL)
    chat_template: Place | None = option(None, "A Jinja file to use instead of the GGUF's own chat template.", MODEL)
    gpu_layers: int = option(0, "Layers to put on the GPU; -1 for all. Needs a GPU build of llama-cpp-python.", MODEL, ge=-1)
    mmap: bool = option(True, "Map the weights instead of reading them, so that several servers share them.", MODEL)
    repack: bool = option(True, "Let llama.cpp repack weights for this CPU where that was tried and is safe.", MODEL)

    ctx: int = option(0, "Tokens one conversation may hold. 0: the model's own length, at most 32768.", ENGINE, ge=0)
    parallel: int = option(
        1, "Requests that decode at once. Bit-exact answers (strict) are promised for 1.", ENGINE, ge=1, le=256
    )
    batch: int = option(512, "Most tokens read in one step; a multiple of --grid.", ENGINE, ge=1)
    threads: int = option(0, "CPU threads of an engine; 0: all cores, divided among --devices.", ENGINE, ge=0)
    devices: str = option(
        "", "One engine for each: 0,1 for two GPUs, or cpu,cpu. One answers, an idle one re-reads ahead of it.", ENGINE, "LIST"
    )
    background_slots: int = option(
        0,
        "1: a second context on the one device re-reads ahead while nobody waits. It takes the memory of a slot.",
        ENGINE,
        ge=0,
        le=1,
    )
    background_budget: Text = option(
        "8192", "Most that is re-read between two turns of a conversation: tokens, or seconds as 20s.", ENGINE, "TOKENS"
    )
    cache_type_k: KvType = option(
        "f16", "Number type of the attention keys: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0.", ENGINE, "TYPE"
    )
    cache_type_v: KvType = option("f16", "The same for the values; less than 16 bits needs --flash-attn.", ENGINE, "TYPE")
    flash_attn: bool = option(True, "Use flash attention.", ENGINE)
    exact: Literal["append", "strict"] = option(
        "append",
        "append: go on from the live state, as every server does. strict: logits never depend on what was cached. "
        "A request may choose for itself.",
        ENGINE,
    )
    max_queue: int = option(256, "Requests that may wait; one more is answered 429.", ENGINE, ge=1)

    cache_ram: Size = option("2GiB", "RAM for parked state, in bytes, as 4GiB or 512MiB. 0: off everywhere.", CACHE, "SIZE")
    cache_dir: Place | None = option(
        None, "Folder for state parked on disk. None given: kvalet under the user's cache folder.", CACHE
    )
    cache_disk: Size = option("8GiB", "Disk for parked state, in bytes. 0: off.", CACHE, "SIZE")
    park_min_tokens: int = option(256, "Shorter conversations are never written to disk.", CACHE, ge=0)
    write_per_day: Size = option("200GiB", "Most bytes written to disk in 24 hours; 0: no bound.", CACHE, "SIZE")
    codec: Literal["auto", "raw", "zstd"] = option(
        "auto", "How state is written: raw, zstd, or auto (measured on the data and the disk at hand).", CACHE, "NAME"
    )
    eviction: str = option(
        eviction.DEFAULT, f"What is dropped first when a budget is full: {', '.join(sorted(eviction.KEYS))}.", CACHE, "NAME"
    )
    placement: str = option(
        placement.DEFAULT, f"Where prompts get checkpoints: {', '.join(sorted(placement.POLICIES))}.", CACHE, "NAME"
    )
    grid: int = option(
        64, "Checkpoints stand at multiples of this many tokens (`kvalet verify` tells which is exact).", CACHE, ge=1
    )
    checkpoint_interval: int = option(
        0, "Tokens between checkpoints inside long messages. 0: from the budget and a checkpoint's size.", CACHE, ge=0
    )

    steady_headers: bool = option(
        False, "Zero the per-request hash that some coding agents put at the start of the system prompt (cch=).", CACHE
    )

    keeper: str | None = option(
        None, "Hold any history behind a window: in_place, drop, summarise, … (`--keeper` alone: in_place).", KEEPER, "STRATEGY"
    )
    window: int = option(0, "Tokens of the keeper's window, reply included. 0: all of --ctx.", KEEPER, ge=0)
    archive: Place | None = option(None, "Folder of the keeper's archive. None given: under the user's data folder.", KEEPER)
    thinking: Literal["as_sent", "questions"] = option(
        "as_sent", "as_sent: the client's setting. questions: off on ordinary turns, on until a question is answered.", KEEPER
    )
    thinking_effort: str = option("", "reasoning_effort of every call that passes the keeper, such as medium.", KEEPER)
    tool_tree: bool = option(False, "Show many tools as groups that the model opens; the client notices nothing.", KEEPER)

    host: str = option("127.0.0.1", "Address to listen on. Others than this machine can reach 0.0.0.0: set --api-key then.", HTTP)
    port: int = option(8080, "Port to listen on; 0: any free one, which is printed.", HTTP, ge=0, le=65535)
    api_key: str | None = option(None, "Key that clients must send as a bearer token; also from KVALET_API_KEY.", HTTP)
    cors_origin: tuple[str, ...] = option((), "Web origin that may call this server from a browser; may be repeated.", HTTP)
    max_body: Size = option("32MiB", "Largest request body.", HTTP, "SIZE", ge=1)
    record: Place | None = option(
        None, "A file to write every request to, tokens and where it resumed (kvalet-bench hitrate replays it).", HTTP
    )
    record_hashes: bool = option(False, "Write keyed hashes instead of tokens to --record: nothing can be read back.", HTTP)
    drain: float = option(5.0, "Seconds that running requests get to finish at SIGTERM.", HTTP, ge=0)
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "info", "How much is logged, to stderr: debug, info, warning, error.", HTTP, "LEVEL"
    )


def load(given: Mapping[str, Any], file: Path | None = None) -> Settings:
    """Settings from the defaults, the TOML `file` over them, and `given` (None = not given) over that. Raises ConfigError."""
    values = read_toml(file) if file else {}
    values |= {name: value for name, value in given.items() if value is not None and value != ()}
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise ConfigError("; ".join(complaint(e) for e in error.errors())) from error
    return checked(settings)


def read_toml(file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {file}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--config {file} is not TOML: {error}") from error
    return {name.replace("-", "_"): value for name, value in values.items()}


def complaint(error: Any) -> str:
    """One pydantic error as `--name: what is wrong (got value)`."""
    name = str(error["loc"][0]).replace("_", "-") if error["loc"] else "options"
    if error["type"] == "extra_forbidden":
        return f"--{name}: there is no such option"
    return f"--{name}: {error['msg'].removeprefix('Value error, ')} (got {error['input']!r})"


def checked(settings: Settings) -> Settings:
    """Rules that join two options."""
    for name, known in (("eviction", eviction.KEYS), ("placement", placement.POLICIES)):
        if getattr(settings, name) not in known:
            raise ConfigError(f"--{name} {getattr(settings, name)}: must be one of {', '.join(sorted(known))}")
    if settings.batch % settings.grid:
        raise ConfigError(f"--batch {settings.batch} is not a multiple of --grid {settings.grid}")
    if not settings.flash_attn and settings.cache_type_v not in ("f32", "f16", "bf16"):
        raise ConfigError(f"--cache-type-v {settings.cache_type_v} needs --flash-attn")
    checks: dict[str, Callable[[], object]] = {
        "devices": lambda: layout(settings.devices, settings.background_slots),
        "background_budget": lambda: budget(settings.background_budget),
        "keeper": lambda: None if settings.keeper is None else registry.make(settings.keeper),
    }
    for name, check in checks.items():
        try:
            check()
        except (ValueError, UnknownStrategy) as error:
            raise ConfigError(f"--{name.replace('_', '-')} {getattr(settings, name)}: {error}") from error
    for name in ("window", "archive", "thinking_effort", "tool_tree"):
        if getattr(settings, name) and settings.keeper is None:
            raise ConfigError(f"--{name.replace('_', '-')} needs --keeper")
    return settings
