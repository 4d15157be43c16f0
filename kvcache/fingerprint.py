"""What makes state usable: the same weights and every setting that changes its bytes or their meaning (guarantee 3)."""

import json
from collections.abc import Mapping
from hashlib import blake2b

from kvcache.chain import root_id

Settings = Mapping[str, str | int | float | bool | None]
"""K/V types, flash attention, rope and YaRN, LoRAs (as hashes), grid, llama.cpp build: names are free, order is not."""


def settings_root(settings: Settings) -> bytes:
    """Chain id of the empty prefix under these settings. Needs no weights, so it is known before they are hashed;

    weights are kept apart by `fingerprint`, which names the folder and stands in every file.
    """
    return root_id(settings_text(settings).encode())


def fingerprint(weights: bytes, settings: Settings) -> bytes:
    """16 bytes that stand for a model file's hash (weights.py) and the settings."""
    return blake2b(weights + settings_text(settings).encode(), digest_size=16).digest()


def settings_text(settings: Settings) -> str:
    """The settings as canonical JSON: what is hashed, and what `kvalet cache stat` shows."""
    return json.dumps(dict(settings), sort_keys=True, separators=(",", ":"))
