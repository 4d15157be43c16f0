"""`kvalet keeper plan`: the edit in force and the one that would be made now, as people read them."""

from pathlib import Path

from typer.testing import CliRunner

from keeper.archive import Archive
from keeper.message import History
from keeper.past import Past
from server.keeper_cli import keeper
from tests.keeper.test_plan import work
from tests.keeper.test_tope import Desk


def planned(folder: Path, *arguments: str) -> str:
    """What the command prints for the archive's one conversation."""
    listed = CliRunner().invoke(keeper, ["ls", "--archive", str(folder)])
    conversation = listed.output.splitlines()[1].split()[0]
    done = CliRunner().invoke(keeper, ["plan", conversation, "--archive", str(folder), *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_conversation_that_was_never_edited_gets_a_plan_for_the_window_asked_for(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.enter(History([m.as_dict() for m in work(12)]))
    archive.close()
    assert "in force" not in planned(tmp_path)
    assert "fit the limit of 24,576" in planned(tmp_path)
    small = planned(tmp_path, "--window", "2048")
    assert "tokens; re-read" in small
    assert "newest exchange" in small


def test_the_edit_in_force_is_printed_first_as_it_was_planned(tmp_path: Path) -> None:
    desk = Desk()
    desk.archive = Archive(tmp_path)
    desk.view(work(8))
    mark = Past(desk.archive, desk.archive.enter(History([m.as_dict() for m in work(8)]))).latest("tope")
    desk.archive.close()
    assert mark is not None
    assert planned(tmp_path).startswith(f"in force since message {mark.place}:\n{mark.body['plan'].splitlines()[0]}")
