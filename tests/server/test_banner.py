"""What a person reads at the start says what was really set up."""

from pathlib import Path

from engine.context import StateKind
from engine.selfcheck import Promise, SelfCheck
from server.banner import banner
from tests.server.serving import runtime


def shown(**given: object) -> str:
    made = runtime(**given)  # type: ignore[arg-type]
    try:
        return banner(made, "http://127.0.0.1:1")
    finally:
        made.close()


def test_it_names_address_model_kind_context_and_budget() -> None:
    text = shown(parallel=2, ctx=1024)
    for part in ("http://127.0.0.1:1/v1", "fake: a model for tests", "hybrid", "1024 tokens x 2 slots", "64 MiB RAM", "append"):
        assert part in text, part


def test_a_failed_self_check_is_shouted() -> None:
    text = shown(check=SelfCheck(False, Promise.NONE, ("rollback at 64: differs",), None))
    assert "OFF, the self-check failed: rollback at 64: differs" in text


def test_strict_with_several_slots_says_where_the_bits_end() -> None:
    assert "only while one slot is in use" in shown(exact="strict", parallel=2)
    assert shown(exact="strict").endswith("strict: logits never depend on what was cached")


def test_no_tier_and_no_checkpoints_are_said_plainly() -> None:
    assert "only the live state" in shown(cache_ram=0)
    assert "a checkpoint every" not in shown(kind=StateKind.ATTENTION)


def test_a_cache_folder_that_cannot_be_used_is_not_called_a_disk_tier(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_bytes(b"")
    made = runtime(cache_disk="1GiB", cache_dir=file)
    try:
        assert "64 MiB RAM + 1 GiB disk" in banner(made, "x")
        assert not made.store.identify(b"f" * 16)
        assert "1 GiB disk" not in banner(made, "x") and "no disk tier: " in banner(made, "x")
    finally:
        made.close()
