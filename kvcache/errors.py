"""What can go wrong in the cache. Every error carries its data; nothing here is raised for a plain miss."""


class CacheError(Exception):
    """Base of the cache's errors."""


class DamagedEntry(CacheError):
    """Stored bytes do not match their checksum, header or size; they never reach the context."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
        self.reason = reason


class EntryGone(CacheError):
    """An entry that a match named was dropped before it was loaded; the caller takes a shorter match."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is no longer stored")
        self.what = what


class BadCacheConfig(CacheError):
    """A setting that cannot work; `name` is the field of CacheConfig."""

    def __init__(self, name: str, value: object, why: str) -> None:
        super().__init__(f"cache setting {name}={value!r}: {why}")
        self.name = name
        self.value = value


class DiskTrouble(CacheError):
    """The cache folder cannot be used now (full, read-only, locked); parking stops and serving goes on."""


class IndexBroken(CacheError):
    """The index cannot be read; it is set aside and rebuilt from the files' headers."""
