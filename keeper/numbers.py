"""Amounts in running text: digits or English number words, with where they stand. doma86 and 1st are no amounts."""

import re
from dataclasses import dataclass
from decimal import Decimal

ONE = "one|two|three|four|five|six|seven|eight|nine"
TEEN = "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
TEN = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
ONES = dict(zip(ONE.split("|"), range(1, 10), strict=True))
TENS = dict(zip(TEN.split("|"), range(20, 100, 10), strict=True))
SIMPLE = {"zero": 0, "dozen": 12, **ONES, **dict(zip(TEEN.split("|"), range(10, 20), strict=True)), **TENS}
SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000}

SMALL = rf"(?:(?:{TEN})(?:[\s-](?:{ONE}))?|zero|dozen|{TEEN}|{ONE})"
GROUP = rf"(?:(?:{ONE}|a)\s+hundred(?:\s+(?:and\s+)?{SMALL})?|{SMALL})"
LARGE = rf"{GROUP}(?:\s+(?:thousand|million)(?:,?\s+(?:and\s+)?{GROUP})?)*"
WORDS = re.compile(rf"\b(?:(?:minus|negative)\s+)?{LARGE}\b", re.IGNORECASE)
DIGITS = re.compile(r"(?<![\w.,])(?:(?<![\d)]\s)[-−–])?\$?\d[\d,]*(?:\.\d+)?(?!\w)")
NOT_A_NUMBER = re.compile(r"\s+(?:of|another|day|morning|evening|night|by one)\b", re.IGNORECASE)  # one of, one another, one day


@dataclass(frozen=True, slots=True)
class Amount:
    """A number in a text, from character `start` up to `end`."""

    value: Decimal
    start: int
    end: int


def amounts(text: str) -> tuple[Amount, ...]:
    """Every amount in the text, in order."""
    found = [Amount(_digits(m.group()), m.start(), m.end()) for m in DIGITS.finditer(text)]
    found += [Amount(_words(m.group()), m.start(), m.end()) for m in WORDS.finditer(text) if not _pronoun(m, text)]
    return tuple(sorted(found, key=lambda amount: amount.start))


def _digits(text: str) -> Decimal:
    return Decimal(text.rstrip(",").replace(",", "").replace("$", "").replace("−", "-").replace("–", "-"))


def _pronoun(found: "re.Match[str]", text: str) -> bool:
    alone = found.group().lower() == "one"
    return alone and (bool(NOT_A_NUMBER.match(text, found.end())) or text[: found.start()].lower().endswith("no "))


def _words(text: str) -> Decimal:
    """ "three hundred and forty-two" -> 342: a scale multiplies what came before it, thousand and million close their group."""
    total = group = 0
    negative = False
    for word in re.findall(r"[a-z]+", text.lower()):
        if word in SIMPLE:
            group += SIMPLE[word]
        elif word == "hundred":
            group = (group or 1) * 100
        elif word in SCALES:
            total, group = total + (group or 1) * SCALES[word], 0
        else:
            negative = negative or word in ("minus", "negative")
    return Decimal(-(total + group) if negative else total + group)
