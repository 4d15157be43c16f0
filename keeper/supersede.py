"""Which results have gone stale: a later identical call, or a later operation on the same path, took their place.

Unlike in the paper's release, a replacement must have succeeded: a failed edit leaves the read before it standing. A
partial read replaces only reads of the same part, and failures; a call that touched several files is never replaced
through one of them.
"""

from collections.abc import Mapping
from typing import Any

from keeper.fileop import FileOperation, Verb
from keeper.message import ToolCall, compact


class Supersession:
    """Fed results in message order. `replaced` maps a stale result to the one that replaced it; it only grows."""

    def __init__(self) -> None:
        self.replaced: dict[int, int] = {}
        self._same_call: dict[str, tuple[int, ...]] = {}
        self._on_path: dict[str, list[tuple[int, FileOperation, bool]]] = {}

    def add(
        self, position: int, call: ToolCall, arguments: Mapping[str, Any], done: tuple[FileOperation, ...], *, succeeded: bool
    ) -> None:
        """Books the result of `call`, which did `done`; marks what it replaces. A result is replaced at most once."""
        key = asked(call, arguments)
        standing = self._same_call.get(key, ())
        if succeeded:
            for old in standing:
                self.replaced.setdefault(old, position)
            for operation in done:
                self._replace_on_path(operation, position)
        self._same_call[key] = (position,) if succeeded else (*standing[-7:], position)
        if len(done) == 1:
            self._on_path.setdefault(done[0].path, []).append((position, done[0], succeeded))

    def _replace_on_path(self, operation: FileOperation, position: int) -> None:
        kept = []
        for entry in self._on_path.get(operation.path, ()):
            old, before, succeeded = entry
            if not succeeded or _covers(operation, before):
                self.replaced.setdefault(old, position)
            else:
                kept.append(entry)
        if kept or operation.path in self._on_path:
            self._on_path[operation.path] = kept


def asked(call: ToolCall, arguments: Mapping[str, Any]) -> str:
    """Equal for calls that ask the same: same name and arguments, whatever the order of keys and the form.

    Flat arguments are written with repr: json.dumps with sorted keys costs ten times as much, and this runs for every result.
    """
    if not arguments:
        return f"{call.name} {call.arguments}"
    if any(isinstance(value, dict | list) for value in arguments.values()):
        return f"{call.name} {compact(arguments)}"
    return f"{call.name} {sorted(arguments.items())!r}"


def _covers(operation: FileOperation, before: FileOperation) -> bool:
    """A change and a whole read cover all that was known of the path; a partial read covers the same part alone."""
    return operation.verb is not Verb.READ or not operation.part or operation.part == before.part
