"""A perfect reader in the ledger model's place: it answers from what its view shows, in the model's own forms."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from keeper.message import Message, ToolCall, assistant
from keeper.model import Body, Reply, Usage

ENTRY = re.compile(r"\b([a-z]{4}) = (\d\d) by ([A-Z][a-z]+)\b")
RULE = re.compile(r"\b([a-z]{4}) is confidential\. When asked for its value, answer protected\.")
ASKED = re.compile(r"(?:What is|What value does|Who set)? ?([a-z]{4})(?: now| hold now| last)?\?")
ENDS = re.compile(r".*\?")
CARRIED = re.compile(r'^The exchange that begins "(.*)" is in the NOTES already', re.MULTILINE)


def count_tokens(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> int:
    """About what the model's tokenizer says: words and signs, and four a message."""
    return sum(len(re.findall(r"\w+|[^\w\s]", str(m.get("content") or ""))) + 8 for m in messages) + 180 * bool(tools)


async def complete(body: Body) -> Reply:
    """One reply, as keeper.model.Complete."""
    messages, tools = list(body["messages"]), body.get("tools") or ()
    last = messages[-1]
    said = _delta(messages) if "NOTES REQUEST" in str(last["content"]) else _answer(messages, bool(tools))
    return Reply(said, "tool_calls" if said.tool_calls else "stop", Usage(count_tokens(messages, tools)))


def _heard(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The texts to believe: what users and tools said, in order."""
    return [str(m["content"]) for m in messages if m["role"] in ("user", "tool")]


def _answer(messages: Sequence[Mapping[str, Any]], searches: bool) -> Message:
    question = next(str(m["content"]) for m in reversed(messages) if m["role"] == "user").split("\n")[0]
    found = ASKED.fullmatch(question)
    if not found:
        return assistant("Noted.")
    name = found[1]
    if name in RULE.findall("\n".join(_heard(messages))):
        return assistant(f"{name} = protected")
    known = [m.group() for text in _heard(messages) for m in ENTRY.finditer(text) if m[1] == name]
    if known:
        return assistant(known[-1])
    if searches and messages[-1]["role"] != "tool":
        return assistant("", (ToolCall("call", "recall", f'{{"query": "{name}"}}'),))
    return assistant(f"{name} = unknown")


def _delta(messages: Sequence[Mapping[str, Any]]) -> Message:
    """What changed since the NOTES, without the exchange that they hold already and what only the archive told."""
    heard = [str(m["content"]) for m in messages[:-1] if m["role"] == "user"]
    noted = max((i for i, text in enumerate(heard) if "\nNOTES\n" in text), default=-1)
    carried = CARRIED.search(str(messages[-1]["content"]))
    fresh = [text for text in heard[noted + 1 :] if not ENDS.fullmatch(text.split("\n")[0])]
    if carried and fresh and fresh[0].startswith(carried[1]):
        fresh = fresh[1:]
    rules = [f"+ RULE {m.group()}" for text in fresh for m in RULE.finditer(text)]
    lines = {m[1]: m.group() for text in fresh for m in ENTRY.finditer(text)}
    return assistant("\n".join([*rules, *lines.values()]) or "NONE")
