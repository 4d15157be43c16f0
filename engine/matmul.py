"""Puts _matmul.c before llama.cpp's CPU kernel for quantised weights: a batch of four single tokens takes 0.6 of the time.

By the ELF rule that a symbol is looked up in the libraries opened for all (RTLD_GLOBAL) before those a library brought itself,
so nothing of llama.cpp is changed. Where that rule does not hold (macOS, Windows), where no C compiler made the library, or where
llama.cpp was built without llamafile, nothing happens and decoding is as fast as that build is.
"""

import contextlib
import ctypes
import os
import sys
import sysconfig
from pathlib import Path

OURS = Path(__file__).with_name(f"_matmul{sysconfig.get_config_var('EXT_SUFFIX') or '.so'}")


def preload() -> None:
    """Opens the library for all; only before llama.cpp is loaded, whose symbols are bound once, when it loads."""
    if sys.platform.startswith("linux") and "llama_cpp" not in sys.modules:
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(OURS), mode=ctypes.RTLD_GLOBAL)


def install(libraries: Path) -> bool:
    """Gives our function the one it stands before, out of the ggml library in this folder: from then on narrow products skip it,
    until then all do. True when that is in place, False when nothing was preloaded or nothing is there to stand before."""
    try:
        ours = ctypes.CDLL(str(OURS), mode=os.RTLD_NOLOAD | ctypes.RTLD_GLOBAL)
        theirs = ctypes.CDLL(str(libraries / "libggml-cpu.so"))
        original = ctypes.cast(theirs.llamafile_sgemm, ctypes.c_void_p)
    except (OSError, AttributeError):
        return False
    ours.kvalet_matmul_install(original)
    return True
