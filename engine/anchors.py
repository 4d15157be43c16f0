"""Where the messages of a rendered prompt lie, and after which characters a later prompt is likely to differ.

The places are those that Qwen's templates make matter (docs/architecture.md): tools and system text, each real user
message (the last one pinned: a template that strips thinking re-renders what follows it), a whole block of tool results
(never between parallel ones: they share a turn), and where the answer starts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.request import AnchorKind
from engine.template import Mark, Trace
from engine.turns import Turn


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """Message `index` of the request is characters [start, end) of the prompt, with its markup; its text starts at `content`,
    which is `end` where it has none or none is shown.
    """

    start: int
    end: int
    index: int
    role: str
    content: int


@dataclass(frozen=True, slots=True)
class CharAnchor:
    """A character position (count of characters before it) worth a checkpoint."""

    position: int
    kind: AnchorKind
    pinned: bool = False


def message_spans(trace: Trace, turns: tuple[Turn, ...]) -> tuple[MessageSpan, ...]:
    """One span per turn, in order, not overlapping. `trace` must have been made with the turns watched first.

    Text before the first turn (tools, a default system text) belongs to a system message that comes first, else to none.
    """
    starts, end = _starts(trace, len(turns))
    if not starts:
        return _searched(trace.text, turns)
    if turns[0].role == "system":
        starts[0] = 0
    ends = [*starts[1:], end]
    return tuple(_span(trace.text, turn, start, max(start, stop)) for turn, start, stop in zip(turns, starts, ends, strict=True))


def _span(text: str, turn: Turn, start: int, end: int) -> MessageSpan:
    return MessageSpan(start, end, turn.index, turn.role, _content_start(text, turn, start, end))


def _content_start(text: str, turn: Turn, start: int, end: int) -> int:
    """Where a turn's text lies in its span: behind a line break as nearly every markup has it, so that a short text is not
    found in the markup; for a system text the last such place, since tools may stand before it.
    """
    content = turn.content.strip()
    find = text.rfind if turn.role == "system" else text.find
    at = find("\n" + content, start, end) if content else -1
    if at >= 0:
        return at + 1
    at = text.rfind(content, start, end)
    return at if at >= 0 else end


def _starts(trace: Trace, count: int) -> tuple[list[int], int]:
    """Start of each turn and end of the last, from the loop over the turns that wrote most; ([], 0) where none wrote.

    A template may go over the messages several times (to find the last question, to check the roles) and may leave the
    first one out (the system message, written before the loop): a turn not met starts where the next one does.
    """
    loop = max({mark.loop for mark in trace.marks}, key=lambda loop: _written(trace.marks, loop, count), default=0)
    if _written(trace.marks, loop, count) == 0:
        return [], 0
    marks = [mark for mark in trace.marks if mark.loop == loop]
    end = max(mark.position for mark in marks if mark.item is None)
    starts = [end] * count
    for mark in reversed(marks):
        if mark.item is not None and mark.item < count:
            starts[mark.item] = mark.position
    for number in range(count - 2, -1, -1):
        starts[number] = min(starts[number], starts[number + 1])
    return starts, end


def _written(marks: tuple[Mark, ...], loop: int, count: int) -> int:
    """Characters that came out between the first turn a loop met and its end."""
    first = next((mark.position for mark in marks if mark.loop == loop and mark.item is not None and mark.item < count), None)
    if first is None:
        return 0
    return max((mark.position for mark in marks if mark.loop == loop and mark.item is None), default=first) - first


def _searched(text: str, turns: tuple[Turn, ...]) -> tuple[MessageSpan, ...]:
    """For templates that go over the messages by number: each content is looked for behind the one before."""
    spans: list[MessageSpan] = []
    cursor = 0
    for turn in turns:
        content = turn.content.strip()
        at = max(text.find(content, cursor), cursor)
        end = at + len(content) if text.startswith(content, at) else cursor
        spans.append(MessageSpan(cursor, end, turn.index, turn.role, at if end > cursor else cursor))
        cursor = end
    return tuple(spans)


def find_anchors(
    trace: Trace, turns: tuple[Turn, ...], spans: tuple[MessageSpan, ...], answer: int | None
) -> tuple[CharAnchor, ...]:
    """All anchors by position, one each, a pinned one before others; `answer` is where the generation prompt starts.

    `trace` must have been made with the turns watched first and the tools behind them.
    """
    found = [*_turn_anchors(turns, spans), *_tools_end(trace, spans, len(turns))]
    if answer is not None:
        found.append(CharAnchor(answer, AnchorKind.ASSISTANT_START))
    found.sort(key=lambda anchor: (anchor.position, not anchor.pinned))
    best: dict[int, CharAnchor] = {}
    for anchor in found:
        best.setdefault(anchor.position, anchor)
    return tuple(anchor for anchor in best.values() if anchor.position > 0)


def _turn_anchors(turns: tuple[Turn, ...], spans: tuple[MessageSpan, ...]) -> Iterator[CharAnchor]:
    last_user = max((number for number, turn in enumerate(turns) if turn.is_real_user), default=-1)
    for number, (turn, span) in enumerate(zip(turns, spans, strict=True)):
        if turn.role == "system" and number == 0:
            yield CharAnchor(span.end, AnchorKind.SYSTEM_END)
        elif number == last_user:
            yield CharAnchor(span.end, AnchorKind.LAST_USER_END, pinned=True)
        elif turn.is_real_user:
            yield CharAnchor(span.end, AnchorKind.USER_END)
        elif turn.is_tool_result and not (number + 1 < len(turns) and turns[number + 1].is_tool_result):
            yield CharAnchor(span.end, AnchorKind.TOOL_RESULTS_END)
        for place in turn.breaks:
            yield CharAnchor(_inside(turn, span, place), AnchorKind.CLIENT)


def _inside(turn: Turn, span: MessageSpan, place: int) -> int:
    """The character behind the first `place` characters of a turn's content, which the template may have trimmed."""
    trimmed = len(turn.content) - len(turn.content.lstrip())
    return min(span.content + max(place - trimmed, 0), span.end)


def _tools_end(trace: Trace, spans: tuple[MessageSpan, ...], turns: int) -> Iterator[CharAnchor]:
    """Behind the tools and what the template says about them: where the first message's own content starts, or where its
    turn ends when the content came before the tools (Qwen3 writes system text first, Qwen3.5 tools first).
    """
    last = max((mark.position for mark in trace.marks if mark.item is not None and mark.item >= turns), default=None)
    if last is None:
        return
    span = next((span for span in spans if span.end > last), None)
    if span is not None:
        yield CharAnchor(next(place for place in (span.start, span.content, span.end) if place > last), AnchorKind.TOOLS_END)
