"""Atomic file writing: after a killed process or a full disk, a file is complete or does not exist.

Files are written under a temporary name, which leftover() recognises, and renamed when complete.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from regard.errors import DataError, message, shown

__all__ = [
    "Leftover",
    "Written",
    "beside",
    "failed",
    "flush_folder",
    "leftover",
    "link",
    "naming_file",
    "remove",
    "replace",
    "write",
    "write_all",
    "write_whole",
]

BLOCK = 2**20
"""Bytes written and hashed at a time, so that they are still in the CPU cache."""

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)

LONGEST_NAME = 200
"""Maximum bytes of a name to which a suffix is added: file systems allow 255 in all."""

HINTS = {
    errno.ENOSPC: "free some space on this disk",
    errno.EDQUOT: "free some space: your quota on this disk is used up",
    errno.EROFS: "choose a folder on a disk that is not read-only",
    errno.EACCES: "choose a folder with write permission",
    errno.EPERM: "choose a folder with write permission",
}
"""Hints for errors of the operating system."""


class Written(NamedTuple):
    """The size and the hash of a file that was written."""

    size: int
    sha256: str


class Leftover(NamedTuple):
    """A parsed temporary name: the final name, and "part" (being written) or "earlier" (being replaced)."""

    name: str
    kind: str


def write(path: Path, blocks: Iterable[bytes | memoryview]) -> Written:
    """Write a new file, flush it to the disk, and return its size and hash.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder) / "greeting", [b"good ", b"morning"]).size
    12
    """
    digest, size = hashlib.sha256(), 0
    handle = os.open(path, NEW, 0o666)
    try:
        for block in blocks:
            left = memoryview(block)
            while left:
                count = os.write(handle, left[:BLOCK])  # may write fewer bytes
                digest.update(left[:count])
                size, left = size + count, left[count:]
        os.fsync(handle)
    finally:
        os.close(handle)
    return Written(size, digest.hexdigest())


def link(path: Path, new: Path) -> None:
    """Hard-link a file that is never changed; copy it if the file system has no hard links.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write(Path(folder) / "old", [b"weights"])
    ...     link(Path(folder) / "old", Path(folder) / "new")
    ...     (Path(folder) / "new").read_bytes()
    b'weights'
    """
    try:
        os.link(path, new)
    except (OSError, AttributeError, NotImplementedError):
        with path.open("rb") as file:
            write(new, iter(lambda: file.read(BLOCK), b""))


def replace(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically: readers find the old or the new content.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace(Path(folder) / "latest", b"step-000100")
    ...     replace(Path(folder) / "latest", b"step-000200")
    ...     [(path.name, path.read_bytes()) for path in Path(folder).iterdir()]
    [('latest', b'step-000200')]
    """
    temporary = beside(path, "part")
    try:
        write(temporary, [content])
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def write_whole(path: Path, content: bytes) -> None:
    """replace(), with a DataError that names the file if writing fails."""
    with naming_file(path):
        replace(path, content)


@contextlib.contextmanager
def naming_file(path: str | Path) -> Iterator[None]:
    """Turn an OSError while a file is written into a DataError that names the file and the reason.

    BrokenPipeError is not converted: the reader of a pipe has closed it, which is not a failure.

    >>> with naming_file("page.html"):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    regard.errors.DataError: page.html: cannot be written: No space left on device
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        folder = Path(path).parent
        hint = ""
        with contextlib.suppress(OSError):  # a name that is too long cannot be looked up either
            hint = "" if folder.is_dir() else f"create the folder first: {shown(folder)}"
        reason = error.strerror or str(error) or type(error).__name__
        raise DataError(message(shown(path), f"cannot be written: {reason}", hint=hint)) from None


def write_all(handle: int, content: bytes) -> None:
    """Write all of the content; os.write() alone may write only a part."""
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


def flush_folder(folder: Path) -> None:
    """Flush the names of the files in a folder to the disk."""
    if os.name == "posix":  # elsewhere, folders cannot be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def beside(path: Path, kind: str) -> Path:
    """A unique temporary name beside a path: "part" while it is written, "earlier" while it is replaced."""
    name = path.name
    if len(os.fsencode(name)) > LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
    return path.with_name(f".{name}.{secrets.token_hex(4)}.{kind}")


def leftover(name: str) -> Leftover | None:
    """Parse a temporary name from beside(); None for any other name.

    >>> leftover(beside(Path("runs/step-000100"), "part").name)
    Leftover(name='step-000100', kind='part')
    >>> leftover(".gitignore")
    """
    match = re.fullmatch(r"\.(.+)\.[0-9a-f]{8}\.(part|earlier)", name)
    return Leftover(match[1], match[2]) if match else None


def remove(path: Path) -> None:
    """Delete a file, a folder with its contents, or a symbolic link without its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def failed(call: str, problem: str, error: OSError, size: int = 0, kept: str = "") -> DataError:
    """Build the error for a failed write. size: bytes to write. kept: added to the hint.

    >>> print(failed("runs/x", "no checkpoint of step 7", OSError(28, "No space left on device"), 25_000_000))
    runs/x: no checkpoint of step 7: No space left on device
    hint: free some space on this disk, at least 25 MB
    """
    hint = HINTS.get(error.errno or 0, "check this disk, or choose a folder on another disk")
    if size and error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint += f", at least {max(1, round(size / 1e6)):,} MB"
    cause = error.strerror or str(error) or type(error).__name__
    return DataError(message(call, f"{problem}: {cause}", hint=hint + kept))
