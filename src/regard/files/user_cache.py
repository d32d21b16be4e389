"""The folder in which Regard stores files that it can create again, such as downloads and encoded data."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """Return the cache folder: $REGARD_CACHE, or else $XDG_CACHE_HOME/regard, or else ~/.cache/regard."""
    override = os.environ.get("REGARD_CACHE")
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(override) if override else default / "regard"
