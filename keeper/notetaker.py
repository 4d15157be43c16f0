"""Taking notes: asking inside the conversation the server has already read, checking the reply, asking again at most twice.

The request is one more user message after the turns to be noted (asked before them, the model goes on with its own turns and the
rule is lost: lesson 1). draft.py takes the replies together. After the last re-ask the first reply stands without the lines in
question (lesson 12); there is no other, slower path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keeper.checks import Finding, Turns, check
from keeper.draft import Draft, fold, settle
from keeper.errors import UpstreamFailed
from keeper.message import Message, assistant, user
from keeper.notes import Notes, apply, read
from keeper.strategies.base import Situation

REQUEST = """\
NOTES REQUEST. Do not go on with the work. Write down only what the turns {since} changed, one change a line, nothing else:
name = value by who
name = old + 5 = 12 by who (a worked-out value: the noted value, each change, the result)
name unchanged (a noted name that was mentioned and did not change)
- name (removes a line)
+ RULE text (a standing rule or method, word for word)
? question (still to be answered)
x question (answered)
NONE (nothing changed){already}"""
ALREADY = '\nThe exchange that begins "{beginning}" is in the NOTES already: leave it out.'
AGAIN = (
    "Some lines are in question. Write these again, corrected, or the same again if they are right; nothing else:\n{questions}"
)


@dataclass(frozen=True, slots=True)
class Taken:
    """The notes after a request, and how they came about, for the audit: replies word for word, findings, lines left out."""

    notes: Notes
    replies: tuple[str, ...]
    findings: tuple[Finding, ...]
    left_out: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "replies": list(self.replies),
            "findings": [{"check": f.check, "key": f.key, "said": f.said} for f in self.findings],
            "left_out": list(self.left_out),
        }


def request_message(notes: Notes | None, already: str = "") -> Message:
    """The notes request; `already` is how an exchange begins that stays in view and is noted ('': none does)."""
    since = "since the NOTES" if notes is not None else "so far"
    mark = ALREADY.format(beginning=already) if already else ""
    return user(REQUEST.format(since=since, already=mark))


async def take_notes(situation: Situation, view: Sequence[Message], notes: Notes, turns: Turns, request: Message) -> Taken:
    """Asks for the changes that `turns`, the end of `view`, made to `notes`. Raises UpstreamFailed where the first call fails."""
    tokens = situation.config.notes_reply
    asked, draft, replies, findings = [*view, request], Draft(), list[str](), list[Finding]()
    for attempt in range(situation.config.re_asks + 1):
        try:
            reply = await situation.ask(asked, tokens)
        except UpstreamFailed:
            if not attempt:
                raise
            break  # what the earlier replies gave stands
        situation.add("re_asks" if attempt else "note_calls")
        lines = read(reply.message.text)
        found = check(notes, lines, turns)
        draft = fold(draft, lines, found, first=not attempt)
        replies.append(reply.message.text)
        findings += found
        if replies[-1].strip() and not draft.asked:
            break
        questions = AGAIN.format(questions="\n".join(f"- {finding.said}" for finding in draft.asked))
        asked += [assistant(replies[-1] or "NONE"), user(questions) if draft.asked else request]
        if situation.count(asked) + tokens > situation.config.window:
            break
    lines, left_out = settle(draft)
    situation.add("left_out", len(left_out))
    return Taken(apply(notes, lines), tuple(replies), tuple(findings), left_out)
