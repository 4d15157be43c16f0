"""Full-text mini-swe-agent traces (lmcache-agent-trace) as histories. The traces stay where they are; nothing is copied.

A file is one session, a line one model call: `input` is the prompt with all observations so far (without the agent's own
replies), `output` the reply. Lines come out of order, so they are put in order by the length of `input`; what an input adds to
the one before it is the observation that the reply in between caused. A reply's last fenced block is its shell command.
"""

import json
import re
from pathlib import Path

from bench.errors import TraceError
from keeper.message import Message, ToolCall, assistant, tool, user

_BLOCK = re.compile(r"```(?:\w+)?\n(.*?)\n?```", re.DOTALL)


def sessions(folder: Path) -> dict[str, list[Message]]:
    """Session name -> history, for every *.jsonl under `folder` in the order of names. Raises TraceError."""
    found = {path.stem: history(path) for path in sorted(folder.rglob("*.jsonl"))}
    if not found:
        raise TraceError(folder, 0, "holds no *.jsonl; give the folder of lmcache-agent-trace")
    return found


def history(path: Path) -> list[Message]:
    """The prompt as a user message, then a step and its result for each call; the last step has no result."""
    calls = sorted(_calls(path), key=lambda call: len(call[0]))
    messages = [user(calls[0][0])]
    for number, (seen, said) in enumerate(calls):
        blocks = _BLOCK.findall(said)
        call = ToolCall(f"call_{number}", "bash", json.dumps({"command": blocks[-1] if blocks else ""}))
        messages.append(assistant(said, (call,)))
        if number + 1 < len(calls):
            messages.append(tool(call.id, calls[number + 1][0][len(seen) :].strip()))
    return messages


def _calls(path: Path) -> list[tuple[str, str]]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        calls = [(str(row["input"]), str(row["output"])) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(path, 0, f"no full-text trace: {error!r}; a line needs `input` and `output`") from error
    if not calls:
        raise TraceError(path, 0, "is empty")
    return calls
