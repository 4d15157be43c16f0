"""File operations that a tool call asks for, recognised from its name and arguments or from a shell command line.

A recogniser of common forms: structured tools whose name says read, write, edit or delete and whose arguments name a
path, and shell commands made of `cat`, `nl`, `head`, `tail`, `sed`, `tee`, `rm`, `mv`, `cp`, `touch` and redirections.
Anything else is no operation: it supersedes nothing by path and never reaches the ledger.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple


class Verb(StrEnum):
    READ = "read"
    WRITE = "written"
    EDIT = "edited"
    DELETE = "deleted"


class FileOperation(NamedTuple):
    """`part` tells partial reads of one file apart; empty for a whole read and for every change."""

    verb: Verb
    path: str
    part: str = ""


_VERBS: Mapping[str, Verb] = {
    **dict.fromkeys(("read", "view", "cat", "open"), Verb.READ),
    **dict.fromkeys(("write", "create", "save"), Verb.WRITE),
    **dict.fromkeys(("edit", "replace", "insert", "patch", "append", "update", "modify", "undo"), Verb.EDIT),
    **dict.fromkeys(("delete", "remove", "unlink"), Verb.DELETE),
}
_PATH_KEYS = ("path", "file_path", "filepath", "filename", "file", "target_file", "relative_path", "absolute_path")
_PART_KEYS = (
    "offset",
    "limit",
    "start_line",
    "end_line",
    "view_range",
    "line_start",
    "line_end",
    "lines",
    "start",
    "end",
    "head",
    "tail",
    "range",
)
_COMMAND_KEYS = ("command", "cmd", "script")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1([^\n]*)\n.*?^\s*\2[ \t]*$", re.DOTALL | re.MULTILINE)
_REDIRECT = re.compile(r"(?<![\d&>])1?(>>?)\s*([^\s|&;<>()]+)")
_LONGEST_COMMAND = 20_000


def operations(name: str, arguments: Mapping[str, Any]) -> tuple[FileOperation, ...]:
    """What a call of tool `name` does to files, in order; empty where nothing is recognised. Never raises."""
    paths = _paths(arguments)
    if paths:
        verb = _verb(name, arguments)
        part = _part(arguments) if verb is Verb.READ else ""
        return tuple(FileOperation(verb, path, part) for path in paths) if verb else ()
    command = next((arguments[key] for key in _COMMAND_KEYS if key in arguments), None)
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        command = command[-1] if len(command) == 3 and command[1] in ("-c", "-lc") else shlex.join(command)
    return tuple(_shell(command)) if isinstance(command, str) and len(command) <= _LONGEST_COMMAND else ()


def _paths(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    for key in _PATH_KEYS:
        if isinstance(path := arguments.get(key), str) and path:
            return (_clean(path),)
    several = arguments.get("paths")
    return tuple(_clean(path) for path in several if isinstance(path, str) and path) if isinstance(several, list) else ()


def _verb(name: str, arguments: Mapping[str, Any]) -> Verb | None:
    """From a `command` argument (editor tools with sub-commands), else from the first verb in the tool's name."""
    stated = arguments.get("command")
    words = _WORD.findall(stated if isinstance(stated, str) else name)
    return next((verb for word in words if (verb := _VERBS.get(word.lower()))), None)


def _part(arguments: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={arguments[key]}" for key in _PART_KEYS if arguments.get(key) is not None)


def _clean(path: str) -> str:
    return path[2:] if path.startswith("./") and len(path) > 2 else path


def _shell(command: str) -> Iterator[FileOperation]:
    bare = _HEREDOC.sub(lambda m: m[3], command)
    for segment in re.split(r"&&|\|\||;|\n", bare):
        yield from _segment(segment.strip())


def _segment(segment: str) -> Iterator[FileOperation]:
    """One simple command, or a pipe of them; a pipe's reads are partial, since a filter stands behind them."""
    if not segment or segment.startswith("#"):
        return
    written = [(m[1], m[2]) for m in _REDIRECT.finditer(segment) if not m[2].startswith(("/dev/", "&"))]
    head, _, rest = _REDIRECT.sub(" ", segment).partition("|")
    words = _split(head)
    if words and not written:
        yield from _program(words, piped=segment if rest else "")
    for tee in re.finditer(r"\btee\s+(-a\s+)?([^\s|&;<>-][^\s|&;<>]*)", segment):
        yield FileOperation(Verb.EDIT if tee[1] else Verb.WRITE, _clean(tee[2]))
    for arrow, path in written:
        yield FileOperation(Verb.EDIT if arrow == ">>" else Verb.WRITE, _clean(path.strip("'\"")))


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an unclosed quote: the shell would have refused it too
        return []


def _program(words: list[str], piped: str) -> Iterator[FileOperation]:
    name, flags = words[0].rpartition("/")[2], [w for w in words[1:] if w.startswith("-")]
    plain = [w for w in words[1:] if not w.startswith("-")]
    if name == "sed" and any(f.startswith(("-i", "--in-place")) for f in flags):
        yield from (FileOperation(Verb.EDIT, _clean(path)) for path in plain[1:])
    elif name in ("cat", "nl") and len(plain) == 1:
        yield FileOperation(Verb.READ, _clean(plain[0]), piped)
    elif name in ("head", "tail", "sed") and len(plain) > (name == "sed"):
        yield FileOperation(Verb.READ, _clean(plain[-1]), piped or " ".join(words))
    elif name == "rm":
        yield from (FileOperation(Verb.DELETE, _clean(path)) for path in plain)
    elif name == "touch":
        yield from (FileOperation(Verb.EDIT, _clean(path)) for path in plain)
    elif name in ("mv", "cp") and len(plain) == 2:
        if name == "mv":
            yield FileOperation(Verb.DELETE, _clean(plain[0]))
        yield FileOperation(Verb.WRITE, _clean(plain[1]))
