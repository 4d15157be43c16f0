"""What the bench cannot do anything about: shown as one line, exit code 2."""

from pathlib import Path


class BenchError(Exception):
    """Base of the bench's errors; its text is the one line a person sees."""


class TraceError(BenchError):
    """A broken or foreign trace line. `line` counts from 1; 0 stands for the whole file."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")
        self.path, self.line, self.reason = path, line, reason


class BadOption(BenchError):
    """An option value that cannot work."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option, self.reason = option, reason


class Unreachable(BenchError):
    """A server that does not answer, or not as expected."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url}: {reason}")
        self.url, self.reason = url, reason
