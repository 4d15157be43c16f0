"""Settings of the cache: plain values. Bytes are bytes; 0 switches a tier off everywhere."""

from dataclasses import dataclass
from pathlib import Path

from kvcache.errors import BadCacheConfig

MIB = 1 << 20
GIB = 1 << 30
CODECS = ("auto", "raw", "zstd")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Budgets and habits of one Store.

    `transit_bytes` bounds what waits for the writer when the RAM tier is off (with RAM on, waiting entries are part of
    `ram_bytes`). `write_bytes_per_day` bounds what all processes on `dir` write in 24 hours; 0 = no bound. The default
    wears out a 600 TBW disk in about 8 years at full use.
    """

    ram_bytes: int
    disk_bytes: int = 0
    dir: Path | None = None
    grid: int = 64
    codec: str = "auto"
    eviction: str = "lru"
    park_min_tokens: int = 256
    transit_bytes: int = 256 * MIB
    write_bytes_per_day: int = 200 * GIB
    readers: int = 4

    def __post_init__(self) -> None:
        """Raises BadCacheConfig, so that no Store has to doubt its settings."""
        for name in ("ram_bytes", "disk_bytes", "park_min_tokens", "transit_bytes", "write_bytes_per_day"):
            if getattr(self, name) < 0:
                raise BadCacheConfig(name, getattr(self, name), "it must be 0 or more")
        for name in ("grid", "readers"):
            if getattr(self, name) < 1:
                raise BadCacheConfig(name, getattr(self, name), "it must be 1 or more")
        if self.codec not in CODECS:
            raise BadCacheConfig("codec", self.codec, f"it must be one of {', '.join(CODECS)}")
        if self.disk_bytes and self.dir is None:
            raise BadCacheConfig("dir", None, "a disk budget needs a folder")
