"""Where downloads, drawn data and computed answers of this user are kept."""

import os
from pathlib import Path


def user_cache() -> Path:
    """$XDG_CACHE_HOME/alidpfl, else ~/.cache/alidpfl. It need not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "alidpfl"
