"""Distinctive tokens: the words of a text that are rare enough to show where a later step got them from.

A token has 5 to 64 characters, holds a letter, and keeps the punctuation of paths and identifiers (`. / @ - _`)
inside it; common words are out; matching ignores case. The colon is not kept: grep prints `path:12:text`, and the
path is what a later step repeats.

The same token in a result and in a later step is evidence of reuse, not proof. A fact put in other words (a
paraphrase, a number worked out, "the second file") is out of reach of token matching: its result counts as present.
"""

import re

SCANNED_CHARACTERS = 262_144
"""Of a text longer than twice this, only so many characters at each end are read for tokens: a bound on time."""

_TOKEN = re.compile(r"\b(?=[\d_./@\-]*[^\W\d_])\w[\w./@\-]{3,62}\w\b")

COMMON = frozenset(
    """
    about above actually added adding after again against allow allowed almost along already alright alternatively
    although always among another anything appear appears applied apply around assume available based because become
    before begin behavior being below better between build called calling calls cannot carefully cause causes certain
    change changed changes changing check checked checking checks class clear clearly command commands common complete
    completed contain contains content contents correct correctly could create created creates creating current
    currently default define defined defines definition delete describe describes details different directory display
    doesn during either empty encountered ensure error errors every everything exact exactly example except exception
    execute executed existing exists expect expected explore failed failing fails failure false field fields files final
    finally finding finds first fixed fixes follow following follows found further general given going handle handled
    handles handling having helps however identify implement implementation implemented import include included includes
    incorrect indicates information inside instead instructions interactive investigate issue issues itself known later
    latest least likely lines listed local locate located location looking looks makes making matches maybe message
    method methods might missing modified modify modifying module multiple named names necessary needed needs never
    newer nothing number object occurs older option options order original other otherwise output outputs overall
    parameter parameters passed passing perform place please point possible present previous previously print probably
    problem process properly provide provided provides python quite rather reading really reason related relevant remove
    removed removing replace replaced reproduce request require required requirements requires resolve resolved response
    result resulting results return returncode returned returns review right running search second seems select several
    should shown shows similar simple simply since single something source specific specifically specified standard
    start started starting state statement steps still string strings successfully suggest suggests support takes tasks
    testing tests their there therefore these thing things think third those thought three through times together trying
    types under understand unless until update updated updates using usually valid value values various verify version
    warning where whether which while whole within without words working works would write writing written wrong years
    yield
    """.split()  # noqa: SIM905 - a list of quoted words would be four times as long
)


def tokens(text: str) -> frozenset[str]:
    """The distinctive tokens of `text`, in lower case."""
    if len(text) > 2 * SCANNED_CHARACTERS:
        text = text[:SCANNED_CHARACTERS] + " " + text[-SCANNED_CHARACTERS:]
    return frozenset(_TOKEN.findall(text.lower())) - COMMON


def spans(text: str) -> list[tuple[str, int, int]]:
    """(token, start, end) of every distinctive token in `text`, in order; character offsets into `text` as it stands.

    `str.lower` can change a text's length (İ); the scan then runs on the text as it is, so offsets stay true.
    """
    lowered = text.lower()
    scanned = lowered if len(lowered) == len(text) else text
    found = ((m.group().lower(), m.start(), m.end()) for m in _TOKEN.finditer(scanned))
    return [(token, start, end) for token, start, end in found if token not in COMMON]
