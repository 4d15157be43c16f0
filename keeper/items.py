"""The content's own numbers: "Item 332", "Ticket #5", "Day 12" at the start of a message.

Search counts in these alone. Message numbers are never shown: a model that saw both asked for "everything before 332" in one
and got it in the other, and trusted the answer over its own correct notes (lesson 9 of the keeper's source).
"""

import re

LABELS = "item|batch|ticket|day|chapter|entry|episode|story|round|task|part|section|issue|case|record|delivery"
LABEL = re.compile(rf"\W{{0,8}}(?:{LABELS})\s*(?:no\.?|number)?\s*#?\s*(\d{{1,9}})\b(?!\s*\?)", re.IGNORECASE)


def item_number(text: str) -> int | None:
    """The number that a message's first line gives itself, or None. "What was X at item 12?" gives none."""
    found = LABEL.match(text[:200])
    return int(found.group(1)) if found else None
