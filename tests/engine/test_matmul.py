"""Narrow products of quantised weights go past llama.cpp's tile kernel, wide ones through it."""

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine import matmul
from engine.context import Run

if TYPE_CHECKING:
    from engine.llama_model import Model

Q8_0, F16, Q4_0 = 8, 1, 2
KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_bool,
    ctypes.c_void_p,
    *[ctypes.c_int64] * 3,
    *[ctypes.c_void_p, ctypes.c_int64] * 3,
    *[ctypes.c_int] * 3,
)


def library_folder() -> Path:
    from llama_cpp import llama_cpp

    return Path(llama_cpp.__file__).parent / "lib"


@pytest.fixture
def widths(load_model: Callable[[str], "Model"]) -> Iterator[list[tuple[int, int]]]:
    """(type, columns) of every product that reached the kernel that stands in for llamafile_sgemm; it takes none of them."""
    load_model("tiny-q8")  # its Backend installs the true kernel: before ours
    assert matmul.install(library_folder()), "the extension engine._matmul was not built: run install.sh"
    seen: list[tuple[int, int]] = []

    def kernel(_: int, rows: int, columns: int, *rest: Any) -> bool:
        seen.append((rest[-3], columns))
        return False

    callback = KERNEL(kernel)
    ctypes.CDLL(str(matmul.OURS)).kvalet_matmul_install(callback)
    yield seen
    matmul.install(library_folder())


def product(columns: int, kind: int) -> None:
    ours = ctypes.CDLL(str(matmul.OURS))
    ours.llamafile_sgemm.argtypes = KERNEL._argtypes_
    ours.llamafile_sgemm(None, 1, columns, 1, None, 1, None, 1, None, 1, kind, kind, 0)


@pytest.mark.model
@pytest.mark.parametrize(
    ("kind", "columns", "reaches"), [(Q8_0, 7, False), (Q8_0, 8, True), (Q4_0, 3, False), (Q4_0, 4, True), (F16, 2, True)]
)
def test_a_product_reaches_the_kernel_when_it_is_wide_enough_for_its_type(
    widths: list[tuple[int, int]], kind: int, columns: int, reaches: bool
) -> None:
    product(columns, kind)
    assert widths == ([(kind, columns)] if reaches else [])


@pytest.mark.model
def test_llama_cpp_itself_asks_ours_first(load_model: Callable[[str], "Model"], widths: list[tuple[int, int]]) -> None:
    from engine.config import ContextConfig
    from engine.llama import LlamaContext

    context = LlamaContext(load_model("tiny-q8"), ContextConfig(ctx=512, slots=4, threads=1))
    for slot in range(4):
        context.decode([Run(slot, 0, tuple(range(5, 69)), True)])
    wide = [columns for kind, columns in widths if kind == Q8_0]
    widths.clear()
    context.decode([Run(slot, 64, (7,), True) for slot in range(4)])
    context.close()
    assert wide and set(wide) == {64}
    assert all(kind != Q8_0 for kind, _ in widths)


@pytest.mark.model
def test_where_the_library_is_another_kind_nothing_is_put_in_place(tmp_path: Path) -> None:
    assert not matmul.install(tmp_path)
    (tmp_path / "libggml-cpu.so").write_bytes(b"no library")
    assert not matmul.install(tmp_path)
    shutil.copy(library_folder() / "libggml-base.so", tmp_path / "libggml-cpu.so")
    assert not matmul.install(tmp_path)


@pytest.mark.parametrize("before", ["import llama_cpp.llama_cpp", "pass"])
def test_without_a_preload_before_llama_cpp_nothing_is_put_in_place(before: str) -> None:
    code = f"""
{before}
from pathlib import Path
from engine import matmul
if "llama_cpp" in __import__("sys").modules: matmul.preload()
from llama_cpp import llama_cpp
print(matmul.install(Path(llama_cpp.__file__).parent / "lib"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
