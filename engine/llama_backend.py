"""llama.cpp as a process-wide library: started once, its log kept instead of printed."""

import contextlib
import ctypes
import platform
import threading
from collections import deque
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType

from llama_cpp import llama_cpp as C

from engine import matmul

_WARN, _ERROR, _CONT = 3, 4, 5  # ggml.h, enum ggml_log_level; the numbers in llama_cpp._logger are out of date
_KEPT_LINES = 200


@dataclass(frozen=True, slots=True)
class LogLine:
    """A warning or an error of llama.cpp; numbers ascend from 1."""

    number: int
    error: bool
    text: str


class Backend:
    """llama.cpp, initialised, with a log that is quiet: warnings and errors are kept (`warnings`), the rest is dropped.
    `narrow_products`: whether small batches of quantised weights take the faster way of engine.matmul.

    One at a time, made before any Model and closed after all of them; OMP_WAIT_POLICY must be set before this module is
    imported (engine.probe.prepare_environment), because OpenMP reads it when the library loads.
    """

    def __init__(self) -> None:
        self._lines: deque[LogLine] = deque(maxlen=_KEPT_LINES)
        self._written = 0
        self._level = 0
        self._lock = threading.Lock()
        self._callback = C.llama_log_callback(self._log)  # llama.cpp holds no reference: it lives as long as this object
        self._previous = (C.llama_log_callback(), ctypes.c_void_p())
        C.llama_log_get(ctypes.byref(self._previous[0]), ctypes.byref(self._previous[1]))
        C.llama_log_set(self._callback, ctypes.c_void_p(0))
        self.narrow_products = matmul.install(Path(C.__file__).parent / "lib")
        C.llama_backend_init()

    def _log(self, level: int, text: bytes, _: ctypes.c_void_p) -> None:
        """Called by llama.cpp from any thread; level CONT goes on with the line before it."""
        if level < _WARN:  # several of these come with every state that is loaded: no lock for them
            self._level = level
            return
        with self._lock:
            fresh = level != _CONT
            self._level = level if fresh else self._level
            if self._level not in (_WARN, _ERROR):
                return
            line = text.decode("utf-8", "replace").rstrip("\n")
            if fresh or not self._lines:
                self._written += 1
                self._lines.append(LogLine(self._written, self._level == _ERROR, line))
            else:
                last = self._lines.pop()
                self._lines.append(LogLine(last.number, last.error, last.text + line))

    @property
    def warnings(self) -> tuple[LogLine, ...]:
        """The last warnings and errors, oldest first."""
        with self._lock:
            return tuple(self._lines)

    @property
    def offloads(self) -> bool:
        """Whether this build of llama.cpp can put layers on a GPU at all; without one it ignores gpu_layers silently."""
        return bool(C.llama_supports_gpu_offload())

    def mark(self) -> int:
        """Where the log stands now, for errors_since."""
        return self._written

    def errors_since(self, mark: int) -> str:
        """The errors logged since then, in one line; empty when llama.cpp said nothing."""
        return "; ".join(line.text for line in self.warnings if line.error and line.number > mark)

    def close(self) -> None:
        C.llama_log_set(*self._previous)
        C.llama_backend_free()

    def __enter__(self) -> "Backend":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def build_id(narrow_products: bool) -> str:
    """Names the llama.cpp build and the machine code it runs: states are used only with the build that wrote them."""
    parts = [f"llama-cpp-python {version('llama-cpp-python')}", platform.machine()]
    with contextlib.suppress(AttributeError):
        parts.append(C.llama_version().decode())
    parts.append(C.llama_print_system_info().decode())
    if narrow_products:
        parts.append("NARROW_PRODUCTS = 1")
    return " | ".join(part.strip() for part in parts)
