"""Byte sizes as people write them: 4GiB, 512 MiB, 2G, 1000."""

import re
from typing import Any

UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(ib|b)?", re.IGNORECASE)


def parse_size(value: Any) -> int:
    """Bytes of `4GiB`, `4G` (both powers of 1024), `4GB` (powers of 1000), `4096` or a plain int. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if not found:
        raise ValueError("a size is a number of bytes, or a number with KiB, MiB, GiB, TiB, KB, MB, GB or TB")
    number, letter, suffix = found[1], found[2].lower(), (found[3] or "").lower()
    unit = DECIMAL[letter + "b"] if letter and suffix == "b" else UNITS[letter]
    return int(float(number) * unit)


def show_size(nbytes: int) -> str:
    """`nbytes` with the largest binary unit that leaves a number of at least 1: 1536 -> 1.5 KiB."""
    for letter, unit in (("T", 2**40), ("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {letter}iB"
    return f"{nbytes} B"
