"""`kvalet cache`: what people and scripts see, and how it ends."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kvcache.chain import chain_ids
from server import cache_cli
from tests.kvcache.material import (
    FINGERPRINT,
    GRID,
    MIB,
    ROOT,
    blocks_of,
    checkpoint_at,
    disk_store,
    entry_files,
    park,
    tokens,
)

PROMPT = tokens(4 * GRID)
IDS = [id.hex() for id in chain_ids(ROOT, PROMPT, GRID)]


@pytest.fixture
def parked(tmp_path: Path) -> Path:
    """A folder with 4 blocks and 2 checkpoints, and one more block of a named session beside them."""
    store = disk_store(tmp_path / "state")
    park(store, PROMPT, 2 * GRID, 4 * GRID)
    store.park_block(blocks_of(tokens(GRID, seed=1))[0], session="alpha [red]")
    store.close()
    return tmp_path / "state"


def run(*args: object, folder: Path | None = None, answer: str = "") -> Result:
    where = ["--cache-dir", str(folder)] if folder else []
    return CliRunner().invoke(cache_cli.app, [*(str(a) for a in args), *where], input=answer)


def run_json(*args: object, folder: Path, code: int = 0) -> Any:
    result = run(*args, "--json", folder=folder)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def file_of(folder: Path, id: str, kind: str = "block") -> Path:
    return folder / FINGERPRINT.hex() / f"{id}.{kind}"


def test_stat_counts_by_model(parked: Path) -> None:
    body = run_json("stat", folder=parked)
    assert (body["entries"], body["budget"], body["quarantined"], body["processes"]) == (7, 64 * MIB, 0, 0)
    [model] = body["models"]
    assert (model["name"], model["blocks"], model["checkpoints"], model["deepest_tokens"]) == ("test model", 5, 2, 4 * GRID)
    assert "test model" in run("stat", folder=parked).output


def test_ls_filters_sorts_and_limits(parked: Path) -> None:
    body = run_json("ls", "--kind", "checkpoint", "--sort", "tokens", folder=parked)
    assert [entry["end"] for entry in body["entries"]] == [4 * GRID, 2 * GRID]
    assert run_json("ls", "--session", "alpha [red]", folder=parked)["count"] == 1
    limited = run_json("ls", "--limit", 2, folder=parked)
    assert (limited["count"], len(limited["entries"])) == (7, 2)
    assert run_json("ls", "--model", "another", folder=parked)["count"] == 0


def test_what_clients_named_is_shown_as_it_is_and_not_as_markup(parked: Path) -> None:
    assert "alpha [red]" in run("ls", folder=parked).output


def test_show_tells_chain_children_and_soundness(parked: Path) -> None:
    body = run_json("show", IDS[1][:10], folder=parked)
    assert body["id"] == IDS[1]
    assert body["tokens"] == list(PROMPT[GRID : 2 * GRID])
    assert (body["chain_blocks"], body["chain_complete"], body["children"]) == (2, True, [IDS[2]])
    assert [entry["state"][:5] for entry in body["entries"]] == ["sound", "sound"]
    file_of(parked, IDS[1]).write_bytes(b"x")
    assert "only 1 bytes" in run_json("show", IDS[1], folder=parked)["entries"][0]["state"]


@pytest.mark.parametrize("id", ["zzzz", "ab", "ffffffffffffffffffffffffffffffffffff"])
def test_an_id_that_is_none_ends_with_2_and_one_line(parked: Path, id: str) -> None:
    result = run("show", id, folder=parked)
    assert (result.exit_code, len(result.stderr.strip().splitlines())) == (2, 1)


@pytest.mark.parametrize(
    "args",
    [
        ["stat"],
        ["ls"],
        ["verify"],
        ["gc"],
        ["rm", "--all"],
        ["export", "x.tar"],
        ["ls", "--sort", "colour"],
        ["rm"],
        ["gc", "--to", "many"],
    ],
)
def test_bad_input_ends_with_2_and_touches_nothing(tmp_path: Path, args: list[str]) -> None:
    result = run(*args, folder=tmp_path / "nowhere")
    assert result.exit_code == 2
    assert not (tmp_path / "nowhere").exists()


def test_verify_passes_a_sound_folder(parked: Path) -> None:
    body = run_json("verify", folder=parked)
    assert (body["ok"], body["blocks"], body["checkpoints"], body["problems"]) == (True, 5, 2, [])


def test_verify_finds_every_kind_of_trouble_and_fix_leaves_none(parked: Path) -> None:
    lone = checkpoint_at(tokens(GRID, seed=1), GRID)
    store = disk_store(parked)
    store.park_checkpoint(lone)
    store.close()
    damaged = file_of(parked, IDS[2])
    damaged.write_bytes(damaged.read_bytes()[:-1])
    file_of(parked, IDS[1], "checkpoint").unlink()
    (parked / FINGERPRINT.hex() / "notes.txt").write_text("mine")
    file_of(parked, lone.id.hex(), "checkpoint").rename(file_of(parked, "ab" * 16, "checkpoint"))
    problems = run_json("verify", folder=parked, code=1)["problems"]
    assert sorted(problem["reason"].split(": ")[-1] for problem in problems) == [
        "611 bytes long, its header says 612",
        "a row without a file",
        "a row without a file",
        "it holds another entry than its name says",
        "no complete chain leads to it",
        "no complete chain leads to it",
        "not an entry's name",
    ]
    assert run("verify", folder=parked).exit_code == 1
    assert run("verify", "--fix", folder=parked).exit_code == 0
    assert run_json("verify", folder=parked)["ok"]
    store = disk_store(parked)
    assert store.match(PROMPT).stored == 2 * GRID
    store.close()


def test_verify_says_that_a_broken_index_can_be_rebuilt_and_fix_does_it(parked: Path) -> None:
    (parked / "index.sqlite").write_bytes(b"no index at all" * 999)
    for command in ("verify", "stat", "ls"):
        result = run(command, folder=parked)
        assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
        assert "--fix" in result.stderr
    assert run("verify", "--fix", folder=parked).exit_code == 0
    assert run_json("verify", folder=parked)["blocks"] == 5


def test_gc_removes_quarantine_and_what_no_chain_reaches(parked: Path) -> None:
    (parked / "quarantine" / "old").write_bytes(b"x")
    file_of(parked, IDS[0]).unlink()
    body = run_json("gc", folder=parked)
    assert (body["entries"], body["quarantined"]) == (3 + 2, 1)
    assert len(entry_files(parked)) == 1


def test_gc_shrinks_to_a_size_from_the_ends_of_chains(parked: Path) -> None:
    run_json("gc", "--to", 3 * 4736, folder=parked)
    assert run_json("stat", folder=parked)["bytes"] <= 3 * 4736
    assert run_json("verify", folder=parked)["ok"]


def test_rm_asks_first_and_takes_what_stands_on_it(parked: Path) -> None:
    assert run("rm", IDS[2], folder=parked, answer="n\n").exit_code == 1
    assert len(entry_files(parked)) == 7
    assert run("rm", IDS[2], folder=parked, answer="y\n").exit_code == 0
    assert run_json("stat", folder=parked)["entries"] == 4
    assert run_json("rm", "--session", "alpha [red]", folder=parked)["entries"] == 1
    assert run_json("rm", "--all", folder=parked)["entries"] == 3
    assert entry_files(parked) == []


def test_an_export_brings_a_prefix_with_its_chain_to_another_folder(parked: Path, tmp_path: Path) -> None:
    tar, there = tmp_path / "some.tar", tmp_path / "there"
    assert run_json("export", tar, IDS[1], folder=parked)["entries"] == 3
    assert run_json("import", tar, "--cache-disk", "64MiB", folder=there)["entries"] == 3
    store = disk_store(there)
    match = store.match(PROMPT)
    assert list(store.restore(match, 2 * GRID)) == blocks_of(PROMPT)[:2]
    assert [ref.position for ref in match.checkpoints] == [2 * GRID]
    store.close()
    assert run_json("stat", folder=there)["models"][0]["name"] == "test model"


def test_an_import_refuses_damaged_entries_and_what_stands_on_them(parked: Path, tmp_path: Path) -> None:
    tar, there = tmp_path / "all.tar", tmp_path / "there"
    run_json("export", tar, folder=parked)
    data = bytearray(tar.read_bytes())
    payload = bytes(blocks_of(PROMPT)[1].payload)
    data[data.index(payload)] ^= 1
    tar.write_bytes(data)
    body = run_json("import", tar, "--cache-disk", "64MiB", folder=there, code=1)
    assert (body["entries"], len(body["damaged"]), body["refused"]) == (2, 1, 4)
    assert run_json("verify", folder=there)["ok"]


def test_an_import_stays_under_the_budget_of_the_folder(parked: Path, tmp_path: Path) -> None:
    tar, there = tmp_path / "all.tar", tmp_path / "there"
    run_json("export", tar, folder=parked)
    run_json("import", tar, "--cache-disk", MIB + 3 * 4736, folder=there)
    assert run_json("stat", folder=there)["bytes"] <= 3 * 4736


@pytest.mark.parametrize("content", [b"", b"no tar" * 500])
def test_what_is_no_export_ends_with_2(parked: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    assert run("import", tmp_path / "x.tar", folder=parked).exit_code == 2


def test_a_name_in_a_tar_that_leads_elsewhere_is_refused(parked: Path, tmp_path: Path) -> None:
    tar = tmp_path / "evil.tar"
    with tarfile.open(tar, "w") as file:
        file.add(entry_files(parked)[0], "../../evil.block")
    body = run_json("import", tar, folder=parked, code=1)
    assert body["damaged"] == ["../../evil.block: not an entry's name"]
    assert not list(tmp_path.glob("*.block"))


def test_it_works_beside_a_server_on_the_same_folder(parked: Path) -> None:
    store = disk_store(parked)
    assert run_json("stat", folder=parked)["processes"] == 1
    assert run_json("verify", folder=parked)["ok"]
    run_json("rm", "--all", folder=parked)
    assert store.match(PROMPT).stored == 0
    park(store, PROMPT)
    assert run_json("verify", folder=parked)["blocks"] == 4
    store.close()
