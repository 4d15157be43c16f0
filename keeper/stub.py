"""What stands in the place of a result that was cut: its size, its call, and the piece of it that later steps used most."""

from collections.abc import Mapping

from keeper.evidence import Candidate, choose
from keeper.excerpt import clip, folded, size
from keeper.graph import STUB_MARK, Graph

STUB_BYTES = 240
_CALL_BYTES = 80


def stub(graph: Graph, position: int, tokens: int) -> str:
    """At most about 400 bytes, and the same for the same history: a later view must not change it, or its tail is read again.

    tokens: what the whole result took, which the stub tells the model.
    """
    node = graph.nodes[position]
    call = f" {node.call.name} {clip(folded(node.call.arguments), _CALL_BYTES)}" if node.call else ""
    mark = f"{STUB_MARK} {tokens:,} tokens;{call}; the whole is in the archive]"
    excerpt: Mapping[int, str] = {
        at: found.text
        for at, found in choose(graph, [Candidate(position, 0, "", node.text, ends_first=node.failed)], set(), STUB_BYTES).items()
    }
    return f"{mark} {excerpt.get(position, '')}".rstrip()


def saves(text: str, replacement: str) -> bool:
    """A stub is worth an edit only where it is clearly smaller."""
    return size(replacement) < size(text) * 0.7
