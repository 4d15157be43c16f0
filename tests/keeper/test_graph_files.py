"""File operations read from calls, the ledger made of them, and failures read from results."""

from typing import Any

import pytest

from keeper.fileledger import file_ledger
from keeper.fileop import FileOperation, Verb, operations
from keeper.graph import build
from keeper.message import Message
from keeper.outcome import failed
from tests.keeper.spans import reading, result, said, step


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("read_file", {"path": "./a.py"}, [("read", "a.py", "")]),
        ("Read", {"file_path": "/a.py", "offset": 5, "limit": 10}, [("read", "/a.py", "offset=5,limit=10")]),
        ("fs__write_file", {"path": "a.py", "content": "x"}, [("written", "a.py", "")]),
        ("MultiEdit", {"file_path": "a.py"}, [("edited", "a.py", "")]),
        (
            "str_replace_editor",
            {"command": "view", "path": "a.py", "view_range": [1, 9]},
            [("read", "a.py", "view_range=[1, 9]")],
        ),
        ("str_replace_editor", {"command": "create", "path": "a.py"}, [("written", "a.py", "")]),
        ("read_many", {"paths": ["a.py", 3, "b.py"]}, [("read", "a.py", ""), ("read", "b.py", "")]),
        ("delete_file", {"path": "a.py"}, [("deleted", "a.py", "")]),
        ("search", {"path": "src", "q": "x"}, []),
        ("weather", {"city": "Bern"}, []),
    ],
)
def test_structured_tools_are_read_by_name_and_path(
    name: str, arguments: dict[str, Any], expected: list[tuple[str, str, str]]
) -> None:
    assert [(op.verb, op.path, op.part) for op in operations(name, arguments)] == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("cat a.py", [("read", "a.py", "")]),
        ("cat a.py | grep x", [("read", "a.py", "cat a.py | grep x")]),
        ("sed -n '1,5p' a.py", [("read", "a.py", "sed -n 1,5p a.py")]),
        ("cd src && sed -i 's/a/b/' a.py", [("edited", "a.py", "")]),
        ("cat <<'EOF' > new.py\nimport os; rm -rf x\nEOF\nls", [("written", "new.py", "")]),
        ("echo hi >> log.txt 2>/dev/null", [("edited", "log.txt", "")]),
        ("python x.py | tee -a out.txt", [("edited", "out.txt", "")]),
        ("mv a.py b.py; rm -f c.py", [("deleted", "a.py", ""), ("written", "b.py", ""), ("deleted", "c.py", "")]),
        ("echo 'unclosed", []),
        ("pytest -q 2>&1", []),
    ],
)
def test_common_shell_forms_are_read(command: str, expected: list[tuple[str, str, str]]) -> None:
    assert [(op.verb, op.path, op.part) for op in operations("bash", {"command": command})] == expected
    assert operations("bash", {"command": ["bash", "-lc", command]}) == operations("bash", {"command": command})


@pytest.mark.parametrize(
    "text",
    [
        "not found",
        "Error: no such column",
        "<returncode>2</returncode>\n<output>\nsed: can't read x\n</output>",
        '{"error": "rate limited"}',
        '{"ok": false}',
        "Traceback (most recent call last):\n  File ...\nValueError: bad",
        "x" * 500 + "\nbash: foo: command not found",
        "Command exited with code 1",
        "cat: missing.md: No such file or directory",
    ],
)
def test_error_reports_are_recognised(text: str) -> None:
    assert failed(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ok",
        "<returncode>0</returncode>\n<output>\nError: quoted from a log\n</output>",
        '{"ok": true, "error": null}',
        "class NotFound(Exception):\n    pass",
        "x" * 500 + " error: in the middle " + "x" * 500,
        "#!/bin/sh\nexit 1",
        "process finished, exit code: 0",
    ],
)
def test_ordinary_results_are_not_failures(text: str) -> None:
    assert not failed(text)


def test_a_flag_on_the_message_decides_over_its_text() -> None:
    graph = build(
        [
            reading("a", "x"),
            result("a", "all good", is_error=True),
            reading("b", "y"),
            result("b", "error: quoted", is_error=False),
        ]
    )
    assert [node.failed for node in graph.nodes] == [False, True, False, False]


def ledger(*rounds: tuple[Message, str]) -> list[str]:
    messages = [message for i, (asked, text) in enumerate(rounds) for message in (asked, result(asked.tool_calls[0].id, text))]
    return [entry.line() for entry in file_ledger(build([*messages, said("assistant", "ok")]))]


def writing(call_id: str, path: str) -> Message:
    return step(None, (call_id, "write_file", {"path": path, "content": "x"}))


def test_the_ledger_has_the_last_successful_operation_and_the_size_as_reported() -> None:
    assert ledger((writing("a", "n.md"), "wrote 22 bytes"), (reading("b", "n.md"), "text")) == ["n.md (22 B)"]
    assert ledger((writing("a", "n.md"), '{"bytes_written": 7}')) == ["n.md (7 B)"]
    assert ledger((writing("a", "n.md"), "ok")) == ["n.md (written)"]
    assert ledger((reading("a", "n.md"), "text")) == ["n.md (read)"]


def test_a_failed_write_leaves_no_trace_and_a_later_edit_makes_the_old_size_untrue() -> None:
    edit = step(None, ("b", "edit_file", {"path": "n.md", "old": "a", "new": "b"}))
    assert ledger((writing("a", "n.md"), "permission denied")) == []
    assert ledger((writing("a", "n.md"), "wrote 22 bytes"), (edit, "done")) == ["n.md (edited)"]


def test_changed_files_come_first_and_a_deleted_one_says_so() -> None:
    rm = step(None, ("c", "delete_file", {"path": "a.md"}))
    assert ledger((writing("a", "a.md"), "ok"), (reading("b", "b.md"), "text"), (rm, "ok")) == ["a.md (deleted)", "b.md (read)"]


def test_an_operation_is_a_value() -> None:
    assert FileOperation(Verb.READ, "a") == FileOperation(Verb.READ, "a", "")
