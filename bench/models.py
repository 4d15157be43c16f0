"""Sizes of models' state by name (--as), and sizes as people write them."""

import re

from bench.errors import BadOption
from kvcache.budgeted import Sizes

MODELS = {
    "qwen3.5-27b": Sizes(token=65_536, checkpoint=156_893_184),
    "qwen3.6-27b": Sizes(token=65_536, checkpoint=156_893_184),
    "qwen3.5-0.8b": Sizes(token=12_288, checkpoint=20_201_932),
    "synthetic:tiny": Sizes(token=1_024, checkpoint=233_644),
}
"""Attention KV a token and one checkpoint: f16 keys and values, f32 recurrent state (docs/benchmarks.md says how measured)."""

UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def sizes(name: str) -> Sizes:
    """Raises BadOption for a name that is not there."""
    if name not in MODELS:
        raise BadOption("--as", f"{name}: must be one of {', '.join(sorted(MODELS))}")
    return MODELS[name]


def parse_size(text: str, option: str) -> int:
    """Bytes of a size such as 4GiB, 512M or 1000000; units are powers of 1024. Raises BadOption unless it is above 0."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    if not found:
        raise BadOption(option, f"{text!r} is no size (as 4GiB or 512M)")
    nbytes = int(float(found[1]) * UNITS[found[2].upper()])
    if nbytes <= 0:
        raise BadOption(option, "a budget of 0 holds nothing; give at least one byte")
    return nbytes
