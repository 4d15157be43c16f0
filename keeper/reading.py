"""What the sentences of a text say about a name: set to a number, up or down by one, or something this reader cannot follow.

It is a second pair of eyes for the checks, not a second note-taker. It speaks up only where a sentence is plain: one name, one
amount, one direction, no hedge. All else is UNCLEAR, and of an unclear text nothing can be contradicted. English only: in another
language every sentence is unclear or a bare mention, so the checks ask less and leave out nothing.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from keeper.items import LABEL
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
IT_REACHES = 3  # sentences
ASSIGNED = re.compile(r"=\s*$")
POINTS_AT = re.compile(r"\b(?:to|at)\s*$", re.IGNORECASE)  # "fell to 3" sets, "fell by 3" changes


def named(name: str, text: str) -> bool:
    """Whether `name` stands in `text` as a word of its own, in any letter case."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) is not None


class Told:
    """Texts and the names that matter in them; facts() says what they tell about one name. Each text is looked through once."""

    def __init__(self, texts: Iterable[str], names: Iterable[str]) -> None:
        keys = sorted({name.casefold() for name in names if name}, key=len, reverse=True)
        self._names = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, keys))})(?!\w)", re.IGNORECASE) if keys else None
        self._texts = [[(sentence, self._in(sentence)) for sentence in split(text)] for text in texts]
        self._places: dict[str, list[tuple[int, int]]] = {}
        for number, sentences in enumerate(self._texts):
            for place, (_, found) in enumerate(sentences):
                for key in found:
                    self._places.setdefault(key, []).append((number, place))

    def _in(self, text: str) -> frozenset[str]:
        return frozenset(found.casefold() for found in self._names.findall(text)) if self._names else frozenset()

    def facts(self, name: str) -> tuple[Fact, ...]:
        """What the texts say about `name`, in order. Questions say nothing.

        A sentence that says "it" and names nothing goes on about the one name of a sentence shortly before it.
        """
        key = name.casefold()
        return tuple(
            fact for number, place in self._places.get(key, ()) for fact in self._around(key, self._texts[number], place)
        )

    def _around(self, key: str, sentences: Sequence[tuple[str, frozenset[str]]], place: int) -> Iterator[Fact]:
        sentence, found = sentences[place]
        if not _asks(sentence):
            yield self._fact(key, sentence, found)
        if len(found) > 1:
            return
        for following, names in sentences[place + 1 : place + 1 + IT_REACHES]:
            if names:
                return
            if PRONOUN.search(following) and _states(following) and not _asks(following):
                yield _read(following, following)

    def _fact(self, key: str, sentence: str, found: frozenset[str]) -> Fact:
        """The clause that names it, or the whole sentence where a clause alone says nothing."""
        clauses = [(clause, self._in(clause)) for clause in CLAUSE.split(sentence)]
        mine = [(clause, names) for clause, names in clauses if key in names]
        if len(mine) == 1 and len(mine[0][1]) == 1:
            fact = _read(mine[0][0], sentence)
            return _read(sentence, sentence) if fact.kind is Kind.MENTION and len(found) == 1 else fact
        return _read(sentence, sentence) if len(found) == 1 else Fact(Kind.UNCLEAR, sentence)


def _asks(sentence: str) -> bool:
    return sentence.rstrip("\"'”’)").endswith("?")


def _states(clause: str) -> bool:
    return bool(amounts(clause) or UP_RE.search(clause) or DOWN_RE.search(clause))


def _read(clause: str, sentence: str) -> Fact:
    """One clause about one name; "Item 3:" before it is no amount of it."""
    label = LABEL.match(clause)
    clause = clause[label.end() :] if label else clause
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
