"""The closed vocabulary of the ledger's domain: who and what a story can name.

Counter names come from a fixed list of two-syllable words, each one token: binding an open-ended name spelled in several
tokens was what an earlier recipe could not learn in an hour, so the domain is narrowed here and not in the test.
"""

import random

CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
PEOPLE = ("Ada", "Bo", "Cleo", "Dov", "Esme", "Finn", "Gia", "Hugo", "Ines", "Jon", "Kira", "Leo")
PLACES = ("the harbour", "the mill", "the north gate", "the market", "the bakery", "the old bridge", "the library", "the quay")
VALUES = range(10, 100)
TAKEN = {"none", "more", "line", "take", "gate", "some", "same", "give", "rule", "name"}  # words of the texts around them


def counter_names(count: int = 64, seed: int = 7) -> tuple[str, ...]:
    """The fixed list of counter names: `count` distinct words of two syllables, in a seeded order."""
    syllables = [c + v for c in CONSONANTS for v in VOWELS]
    words = [a + b for a in syllables for b in syllables if a != b and a + b not in TAKEN]
    return tuple(random.Random(seed).sample(words, count))
