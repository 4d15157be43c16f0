"""Folders that are used unless others are given."""

import os
from pathlib import Path


def archive_folder() -> Path:
    """Where the archive is unless a folder is given: keeper under the user's data folder."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "kvalet" / "keeper"
