"""What this machine's CPU can do, found out where it does no harm: before llama.cpp is loaded, and in a child process.

On some virtual machines llama.cpp's weight repacking for AMX ends in SIGSEGV at the first batch (llama.cpp issue 20824). So a
child decodes a batch of a small Q8_0 model with repacking on, and its verdict is remembered per CPU and library build.

Nothing here imports llama.cpp in the calling process: OpenMP reads its waiting policy when the library loads, so a server calls
prepare_environment before it imports engine.llama, or is started with OMP_WAIT_POLICY=passive.
"""

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from engine import catalog, matmul
from engine.errors import EngineError

_CHILD_SECONDS = 120.0
_CHILD_TOKENS = 128  # enough for the kernels that only large batches take
_WRONG_NUMBERS = 3  # the child's exit status; 1 is Python's own, for an exception
_FLAGS_LINES = ("model name", "flags", "Features", "CPU part")  # of /proc/cpuinfo, x86 and ARM
_SIBLINGS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
SPIN = "300"  # iterations; three engines of two threads on two cores lose nothing by it, 20,000 would stall them


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether weights may be repacked, and why. `remembered` verdicts come from the cache folder, others were just tried."""

    safe: bool
    reason: str
    remembered: bool = False


def prepare_environment(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Makes OpenMP threads sleep while they wait, so that two engines on one machine do not spin against each other (28 ms became
    870 ms a token), after a spin of microseconds: waking at each of the thousand barriers of a token took a third of its time.
    What the user has set stays. Returns False when llama.cpp is loaded already and it is too late.
    Opens the library of engine.matmul, too, which has the same hour."""
    matmul.preload()
    if environ.setdefault("OMP_WAIT_POLICY", "passive") == "passive":
        environ.setdefault("GOMP_SPINCOUNT", SPIN)
    return not any(name in sys.modules for name in ("llama_cpp", "llama_cpp.llama_cpp"))


def default_threads(engines: int = 1) -> int:
    """Threads for one of `engines` that share this machine: physical cores that this process may use, divided, at least 1."""
    return max(1, min(_physical_cores(), _quota()) // max(1, engines))


def _physical_cores() -> int:
    """Cores, not hyperthreads: two threads on one core compute no faster than one."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = {_read(_SIBLINGS / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu) for cpu in usable}
    return len(siblings)


def _quota() -> int:
    """Whole CPUs that the container may use (cgroup v2: `quota period` in microseconds, or `max`)."""
    quota, _, period = _read(_QUOTA).partition(" ")
    if not quota.isdigit() or not period.isdigit():
        return sys.maxsize
    return max(1, int(quota) // int(period))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def may_repack(folder: Path | None = None) -> Verdict:
    """The verdict on repacking for this CPU and this build; tried in a child (about 2 s) when none is remembered in `folder`
    (default: beside the models). A try that says nothing about the CPU (no child could start) is unsafe and not remembered."""
    path = (folder or catalog.models_folder().parent) / "probe.json"
    key = machine_key()
    known = _load(path).get(key)
    if known is not None:
        return Verdict(bool(known["safe"]), str(known["reason"]), remembered=True)
    verdict, certain = _try()
    if certain:
        _remember(path, key, verdict)
    return verdict


def machine_key() -> str:
    """Names CPU model, its features, and the very library files: another of any of them is tried anew."""
    digest = hashlib.blake2b(digest_size=12)
    for line in _cpu_lines():
        digest.update(line.encode())
    for file in _libraries():
        stat = file.stat()
        digest.update(f"{file.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    return f"{platform.machine()} llama-cpp-python {version('llama-cpp-python')} {digest.hexdigest()}"


def _cpu_lines() -> list[str]:
    first = _read(Path("/proc/cpuinfo")).partition("\n\n")[0].splitlines()
    return [line for line in first if line.startswith(_FLAGS_LINES)] or [platform.processor()]


def _libraries() -> Iterator[Path]:
    spec = find_spec("llama_cpp")
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield from sorted(path for path in (Path(place) / "lib").glob("*ggml*") if path.is_file())


def _try() -> tuple[Verdict, bool]:
    """A verdict, and whether it may be remembered."""
    try:
        model = catalog.resolve("synthetic:tiny-q8").path
        command = [sys.executable, "-m", "engine.probe", str(model)]
        done = subprocess.run(command, timeout=_CHILD_SECONDS, capture_output=True, check=False, env=_child_environment())
    except (EngineError, OSError) as error:
        return Verdict(False, f"could not be tried: {error}"), False
    except subprocess.TimeoutExpired:
        return Verdict(False, f"a child that tried it did not end in {_CHILD_SECONDS:.0f} s"), False
    if done.returncode == 0:
        return Verdict(True, "a child decoded with it"), True
    if done.returncode == _WRONG_NUMBERS:
        return Verdict(False, "a child that tried it got logits that are no numbers"), True
    if done.returncode < 0:
        return Verdict(False, f"a child that tried it died of signal {-done.returncode}"), True
    return Verdict(False, f"a child that tried it failed: {done.stderr.decode(errors='replace').strip()[-200:]}"), False


def _child_environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "OMP_WAIT_POLICY": "passive", "PYTHONPATH": path}


def _load(path: Path) -> dict[str, dict[str, object]]:
    """The verdicts on disk; none when the file is missing or not ours."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: entry for key, entry in found.items() if _is_entry(entry)} if isinstance(found, dict) else {}


def _is_entry(entry: object) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("safe"), bool) and isinstance(entry.get("reason"), str)


def _remember(path: Path, key: str, verdict: Verdict) -> None:
    """Best effort: a cache folder that cannot be written costs the next start two seconds."""
    entry = {name: value for name, value in asdict(verdict).items() if name != "remembered"}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({**_load(path), key: entry}, indent=1), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _child(model: Path) -> int:
    """Decodes one batch with repacking on. That it returns is the result; _WRONG_NUMBERS when the logits are none."""
    import numpy as np

    from engine.config import ContextConfig, ModelConfig
    from engine.context import Run
    from engine.llama import LlamaContext
    from engine.llama_backend import Backend
    from engine.llama_model import Model

    with Backend() as backend:
        weights = Model(ModelConfig(model, extra_buffers=True), backend)
        context = LlamaContext(weights, ContextConfig(ctx=512, slots=1, batch=128, threads=default_threads()))
        context.decode([Run(0, 0, tuple(range(_CHILD_TOKENS)), True)])
        fine = bool(np.isfinite(context.logits(0)).all())
        context.close()
        weights.close()
    return 0 if fine else _WRONG_NUMBERS


if __name__ == "__main__":
    raise SystemExit(_child(Path(sys.argv[1])))
