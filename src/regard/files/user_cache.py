"""The folder in which Regard stores files that it can create again, such as encoded pairs."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from regard.errors import DataError, RegardWarning, message, shown
from regard.files.atomic_io import leftover

KINDS = {
    "encoded sentence pairs": re.compile(r"[0-9a-f]{32}\.safetensors"),
    "weights of image encoders": re.compile(r"efficientnet-lite0-[0-9a-f]{8}-\d+\.safetensors"),
}
"""What is in the cache folder -> names of its files. Other files are not from Regard."""

LEFT_OVER = 24 * 60 * 60.0
"""Age in seconds after which an unfinished file counts as left over, e.g. from a process that was killed."""


@dataclass(frozen=True)
class CacheEntry:
    """A file that Regard has written to its cache folder.

    kind: a key of KINDS, or "unfinished" for a temporary file.
    size: size in bytes.
    is_used: whether another process may be writing it.
    """

    path: Path
    kind: str
    size: int
    is_used: bool = False

    def delete(self) -> None:
        """Delete the file. If another process has deleted it, do nothing."""
        self.path.unlink(missing_ok=True)


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


def cache_error(error: OSError, path: Path) -> DataError:
    """Return the DataError for a file of the cache that cannot be written.

    path: the file or folder, if `error` does not name one.

    >>> cache_error(OSError(28, "No space left on device"), Path("cache")).message.problem
    'the cache cannot be used: No space left on device'
    """
    hint = (
        "set the environment variable REGARD_CACHE to a writable folder with free space; regard cache shows "
        "what the cache has, and regard cache clear deletes it"
    )
    problem = f"the cache cannot be used: {error.strerror or error}"
    return DataError(message(shown(error.filename or path), problem, hint=hint))


def cache_entries(folder: Path) -> Iterator[CacheEntry]:
    """Yield what Regard has written to a cache folder; other files in the folder are skipped.

    Folders and symbolic links are not from Regard.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        temporary = leftover(path.name)
        name = temporary.name if temporary else path.name
        kind = next((kind for kind, pattern in KINDS.items() if pattern.fullmatch(name)), None)
        if kind is None or path.is_symlink() or not path.is_file():
            continue
        try:
            size, age = path.stat().st_size, time.time() - path.stat().st_mtime
        except FileNotFoundError:  # another process has deleted it
            continue
        yield CacheEntry(path, "unfinished" if temporary else kind, size, bool(temporary) and age < LEFT_OVER)
