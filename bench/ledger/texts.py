"""The fixed texts that the model has learnt by heart, and their digest: when one changes, the model must be trained again."""

from hashlib import blake2b
from pathlib import Path

from bench.ledger.rendering import TOOLS
from keeper.message import user
from keeper.notes import Entry, Notes
from keeper.notetaker import request_message
from keeper.retrieved import HEADING
from keeper.window import ACKNOWLEDGED, ALREADY_NOTED, beginning

TEMPLATE = Path(__file__).with_name("ledger.jinja")


def texts() -> tuple[str, ...]:
    """Each text once, in the form in which the model reads it."""
    notes = Notes(("a rule",), (Entry("noma", "12", "Ada"), Entry("givo", "34", "Bo")))
    return (
        TEMPLATE.read_text(encoding="utf-8"),
        TOOLS,
        request_message(None).text,
        request_message(notes, beginning(user("At the mill noma = 12 by Ada."))).text,
        notes.render(),
        notes.render(1),
        notes.reminder(),
        HEADING,
        ALREADY_NOTED,
        ACKNOWLEDGED,
    )


def digest() -> str:
    """16 hex digits over texts(), as the model card states them."""
    return blake2b("\0".join(texts()).encode(), digest_size=8).hexdigest()
