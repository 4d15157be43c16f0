"""Scores of the ledger model as a table and as JSON."""

from collections.abc import Sequence

from bench.ledger.evaluate import KINDS, Score
from bench.report import Column, Report, Row, percent

COLUMNS = (
    Column("size", "held-out episodes"),
    Column("kind", "kind"),
    Column("right", "right", "{:,}".format),
    Column("asked", "asked", "{:,}".format),
    Column("share", "share", percent(1)),
    Column("bar", "bar", percent(0)),
    Column("met", "met"),
)


def report(scores: Sequence[Score], model: str, episodes: int, first_seed: int) -> Report:
    """A row for each size and kind of answer, with the bar it is to reach."""
    notes = (
        f"{episodes} episodes of each size, seeds from {first_seed}; whole answers, every token, temperature 0",
        "tokens of the conversation, beside the keeper's own two texts (the tool's schema, the notes request)",
    )
    rows = [row for score in scores for row in _rows(score)]
    return Report(f"The ledger model: {model}", COLUMNS, rows, notes, extra={"sizes": [score.as_json() for score in scores]})


def _rows(score: Score) -> list[Row]:
    return [
        {
            "size": score.size.name,
            "kind": kind,
            "right": score.right[kind],
            "asked": score.asked[kind],
            "share": score.share(kind) if score.asked[kind] else None,
            "bar": score.size.bars[kind],
            "met": ("yes" if score.share(kind) >= score.size.bars[kind] else "no") if score.asked[kind] else None,
        }
        for kind in KINDS
    ]
