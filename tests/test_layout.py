"""Who may import whom, and which library is imported where: the directions of docs/architecture.md, held with ast."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"engine", "kvcache", "keeper", "server", "bench"}
MAY_IMPORT = {
    "kvcache": set(),
    "keeper": set(),
    "engine": {"kvcache"},
    "server": {"keeper", "engine", "kvcache"},
    "bench": {"engine", "kvcache", "keeper"},
}
ONLY_IN = {
    "llama_cpp": {
        "engine/llama.py",
        "bench/python_server.py",  # run by a peer's python in an environment of its own, never by ours
        "engine/llama_model.py",
        "engine/llama_backend.py",
        "engine/llama_batch.py",
        "engine/sampler.py",
    },
    "sqlite3": {"kvcache/index.py", "keeper/archive.py"},
    "fastapi": {"server/"},
}
FOLDERS = {"engine", "kvcache", "keeper", "server", "bench", "tests", "docs"}


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_package_imports_only_what_the_design_allows(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    foreign = (imported(path) & (PACKAGES | {"tests"})) - MAY_IMPORT[package] - {package}
    assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_guarded_library_is_imported_only_at_its_wall(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    for library in imported(path) & ONLY_IN.keys():
        assert any(name == place or (place.endswith("/") and name.startswith(place)) for place in ONLY_IN[library]), (
            f"{name} imports {library}, which only {ONLY_IN[library]} may"
        )


def test_the_top_level_holds_exactly_the_packages_of_the_design() -> None:
    listed = {p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith(".") and p.name not in IGNORED}
    assert listed == FOLDERS


IGNORED = {"build", "dist", "kvalet.egg-info", "bench-out", "__pycache__"}


def test_every_folder_of_tests_is_a_package_so_that_it_cannot_shadow_the_real_one() -> None:
    for folder in [ROOT / "tests", *(p for p in (ROOT / "tests").rglob("*") if p.is_dir() and p.name != "__pycache__")]:
        if any(folder.glob("*.py")):
            assert (folder / "__init__.py").exists(), folder
