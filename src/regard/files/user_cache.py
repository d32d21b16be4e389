"""The folder in which Regard stores files that it can create again, such as downloads and encoded data."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
import warnings
from pathlib import Path

from regard.errors import RegardWarning, message, shown

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """Return the cache folder: $REGARD_CACHE, or else $XDG_CACHE_HOME/regard, or else ~/.cache/regard.

    If REGARD_CACHE is not set and the folder cannot be written, as in a read-only container, the result is a
    temporary folder, which is removed when the process ends. A warning says so once.
    """
    if override := os.environ.get("REGARD_CACHE"):
        return Path(override)
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return _temporary_folder(shown(error.filename or folder), error.strerror or str(error))
    except RuntimeError:  # Path.home()
        return _temporary_folder("the cache folder", "the user has no home folder")
    return folder if os.access(folder, os.W_OK) else _temporary_folder(shown(folder), "no write permission")


@functools.cache
def _temporary_folder(place: str, reason: str) -> Path:
    """Create a temporary cache folder, and warn that it is used because `place` cannot be written."""
    folder = tempfile.mkdtemp(prefix="regard-cache-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if os.environ.get("RANK", "0") == "0":  # of several processes (torchrun), only the first one prints
        problem = f"cannot be written ({reason}), so the cache is {folder} until the process ends"
        hint = "to keep a cache, set the environment variable REGARD_CACHE to a writable folder"
        warnings.warn(message(place, problem, hint=hint), RegardWarning, stacklevel=3)
    return Path(folder)
