"""Tokens as the scripted upstream counts them, and how much of a prompt a prefix cache would have held."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from os.path import commonprefix
from typing import Any

TOKEN = re.compile(r"\w+|[^\w\s]")


def rendered(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """The prompt in pieces: the tools, then one piece a message. Reasoning is not rendered."""
    head = [json.dumps(list(tools), sort_keys=True)] if tools else []
    return [*head, *(json.dumps([m.get("role"), m.get("content"), m.get("tool_calls")]) for m in messages)]


@lru_cache(maxsize=20_000)
def tokens(piece: str) -> int:
    return len(TOKEN.findall(piece))


def count(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> int:
    """Tokens of a prompt."""
    return sum(tokens(piece) for piece in rendered(messages, tools))


class PrefixCache:
    """An infinite prefix cache with a checkpoint at every token."""

    def __init__(self) -> None:
        self._seen: list[list[str]] = []

    def cached(self, pieces: list[str]) -> int:
        """Tokens of the longest beginning that an earlier prompt had too; remembers this one."""
        best = max((self._common(pieces, seen) for seen in self._seen), default=0)
        self._seen = [*self._seen[-8:], pieces]
        return best

    @staticmethod
    def _common(one: list[str], other: list[str]) -> int:
        same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        part = commonprefix([one[same], other[same]]) if same < min(len(one), len(other)) else ""  # noqa: RUF071 - characters are what is meant
        return sum(tokens(piece) for piece in one[:same]) + tokens(part)
