"""What the sentences of a text say about a name: set to a number, up or down by one, or something this reader cannot follow.

It is a second pair of eyes for the checks, not a second note-taker. It speaks up only where a sentence is plain: one name, one
amount, one direction, no hedge. All else is UNCLEAR, and of an unclear text nothing can be contradicted. English only: in another
language every sentence is unclear or a bare mention, so the checks ask less and leave out nothing.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from keeper.numbers import amounts
from keeper.sentences import split


class Kind(StrEnum):
    SET = "set"
    CHANGE = "change"
    MENTION = "mention"  # the name stands there and nothing is said to happen to it
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Fact:
    """One sentence (or clause) about a name. `amount` is the new value, or the signed change."""

    kind: Kind
    sentence: str
    amount: Decimal | None = None


UP = "added|adds|add|rose|rises|gained|gains|grew|increased|increases|raised|up|more|put|received|deposited|higher|plus"
DOWN = (
    "taken|took|takes|fell|falls|lost|loses|dropped|decreased|decreases|lowered|down|less|fewer|removed|withdrew|withdrawn|lower|"
    "minus|spent|subtracted|sank|deducted|decremented"
)
SETS = (
    "recorded|records|set|sets|stands|stood|wrote|written|holds|held|noted|entered|fixed|counted|reads|became|equals|is|was|starts|"
    "started"
)
HEDGES = (
    "not|never|almost|nearly|would|could|should|might|may|wanted|planned|refused|if|unless|twice|half|halved|doubled|tripled|"
    "third|quarter|percent|times|each|every|about|roughly|as much as|as many as|more than|less than|said|claimed|thought"
)
UP_RE, DOWN_RE, SETS_RE, HEDGES_RE = (re.compile(rf"\b(?:{words})\b", re.IGNORECASE) for words in (UP, DOWN, SETS, HEDGES))
CLAUSE = re.compile(r"(?:,\s+(?:and|but|then|while)\s+|;\s*|\s+and then\s+|,\s+)", re.IGNORECASE)
PRONOUN = re.compile(r"\b(?:it|its|this counter|that counter)\b", re.IGNORECASE)
ASSIGNED = re.compile(r"=\s*$")
POINTS_AT = re.compile(r"\b(?:to|at)\s*$", re.IGNORECASE)  # "fell to 3" sets, "fell by 3" changes


def named(name: str, text: str) -> bool:
    """Whether `name` stands in `text` as a word of its own, in any letter case."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) is not None


def facts(name: str, texts: Iterable[str], names: Collection[str] = ()) -> tuple[Fact, ...]:
    """What `texts` say about `name`, in order. `names` are the other tracked names, which an "it" may point to instead.

    Questions say nothing. A sentence that says "it" and names no tracked name goes on about the name of the one before.
    """
    others = [other for other in names if other.casefold() != name.casefold()]
    return tuple(fact for text in texts for fact in _of_text(name, split(text), others))


def _of_text(name: str, sentences: Sequence[str], others: Sequence[str]) -> Iterable[Fact]:
    speaking = False  # the last sentence that named anything named this name
    for sentence in sentences:
        mine, foreign = named(name, sentence), any(named(other, sentence) for other in others)
        if mine or foreign:
            speaking = mine and not foreign
        if sentence.rstrip("\"'”’)").endswith("?"):
            continue
        if mine:
            yield _fact(name, sentence, others)
        elif speaking and PRONOUN.search(sentence) and not foreign and _states(sentence):
            yield _read(sentence, sentence)


def _fact(name: str, sentence: str, others: Sequence[str]) -> Fact:
    """The clause that names it, or the whole sentence where a clause alone says nothing."""
    clauses = [clause for clause in CLAUSE.split(sentence) if named(name, clause)]
    whole = not any(named(other, sentence) for other in others)
    if len(clauses) == 1 and not any(named(other, clauses[0]) for other in others):
        fact = _read(clauses[0], sentence)
        return _read(sentence, sentence) if fact.kind is Kind.MENTION and whole else fact
    return _read(sentence, sentence) if whole else Fact(Kind.UNCLEAR, sentence)


def _states(clause: str) -> bool:
    return bool(amounts(clause) or UP_RE.search(clause) or DOWN_RE.search(clause))


def _read(clause: str, sentence: str) -> Fact:
    """One clause about one name."""
    found = amounts(clause)
    if not _states(clause):
        return Fact(Kind.MENTION, sentence)
    if len(found) != 1 or HEDGES_RE.search(clause):
        return Fact(Kind.UNCLEAR, sentence)
    amount, before = found[0].value, clause[: found[0].start]
    up, down = bool(UP_RE.search(clause)), bool(DOWN_RE.search(clause))
    if ASSIGNED.search(before):
        return Fact(Kind.SET, sentence, amount)
    if up != down and amount >= 0 and not POINTS_AT.search(before):
        return Fact(Kind.CHANGE, sentence, amount if up else -amount)
    setting = POINTS_AT.search(before) or (SETS_RE.search(clause) and not (up or down))
    return Fact(Kind.SET, sentence, amount) if setting and not (up and down) else Fact(Kind.UNCLEAR, sentence)


def outcome(noted: Decimal | None, found: Iterable[Fact]) -> Decimal | None:
    """The value after all that was read, starting from the noted one; None where a step is unclear and nothing was set since."""
    value = noted
    for fact in found:
        if fact.kind is Kind.SET:
            value = fact.amount
        elif fact.kind is Kind.CHANGE:
            value = None if value is None or fact.amount is None else value + fact.amount
        elif fact.kind is Kind.UNCLEAR:
            value = None
    return value
