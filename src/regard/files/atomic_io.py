"""Files that are on the disk whole, or not there: what a killed process or a full disk cannot halve.

Whatever is begun carries a name that leftover() knows, beside the name it will have once it is whole.
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
"""Bytes that are written and hashed at a time, while they are still near the processor."""

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)

LONGEST_NAME = 200
"""Bytes of a file name from which another name can still be made: file systems allow 255."""

HINTS = {
    errno.ENOSPC: "make room on this disk",
    errno.EDQUOT: "make room: your quota on this disk is used up",
    errno.EROFS: "give a folder on a disk that can be written to",
    errno.EACCES: "give a folder that you may write to",
    errno.EPERM: "give a folder that you may write to",
}
"""What to do about what the system says."""


class Written(NamedTuple):
    """What a file should be found to be."""

    size: int
    sha256: str


class Leftover(NamedTuple):
    """A name that something has while it is not in its place: for which name, and "part" or "earlier"."""

    name: str
    kind: str


def write(path: Path, blocks: Iterable[bytes | memoryview]) -> Written:
    """Write a new file and see it onto the disk; it is hashed on the way, and not read again for that.

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
                count = os.write(handle, left[:BLOCK])  # may take less than it was given
                digest.update(left[:count])
                size, left = size + count, left[count:]
        os.fsync(handle)
    finally:
        os.close(handle)
    return Written(size, digest.hexdigest())


def link(path: Path, new: Path) -> None:
    """Give a file that is never changed a second name; copy it where the file system has no hard links.

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
    """Give a file this content: whoever reads it finds the old or the new one, whatever happens.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace(Path(folder) / "latest", b"step-000100")
    ...     replace(Path(folder) / "latest", b"step-000200")
    ...     [(path.name, path.read_bytes()) for path in Path(folder).iterdir()]
    [('latest', b'step-000200')]
    """
    made = beside(path, "part")
    try:
        write(made, [content])
        os.replace(made, path)
    except BaseException:
        with contextlib.suppress(OSError):
            made.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def write_whole(path: Path, content: bytes) -> None:
    """replace(), whose error names the file."""
    with naming_file(path):
        replace(path, content)


@contextlib.contextmanager
def naming_file(path: str | Path) -> Iterator[None]:
    """Turn an OSError while a file is written into a DataError that names the file and the reason.

    BrokenPipeError passes: the reader of a pipe has left, which is no failure.

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
            hint = "" if folder.is_dir() else f"make the folder first: {shown(folder)}"
        reason = error.strerror or str(error) or type(error).__name__
        raise DataError(message(shown(path), f"cannot be written: {reason}", hint=hint)) from None


def write_all(handle: int, content: bytes) -> None:
    """Write all of the content: the system may take less than it is given."""
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


def flush_folder(folder: Path) -> None:
    """See the names in a folder onto the disk."""
    if os.name == "posix":  # elsewhere, folders cannot be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def beside(path: Path, kind: str) -> Path:
    """A name of its own for what is not in its place yet ("part") or no more ("earlier")."""
    name = path.name
    if len(os.fsencode(name)) > LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
    return path.with_name(f".{name}.{secrets.token_hex(4)}.{kind}")


def leftover(name: str) -> Leftover | None:
    """What a name from beside() was for; None of any other name.

    >>> leftover(beside(Path("runs/step-000100"), "part").name)
    Leftover(name='step-000100', kind='part')
    >>> leftover(".gitignore")
    """
    found = re.fullmatch(r"\.(.+)\.[0-9a-f]{8}\.(part|earlier)", name)
    return Leftover(found[1], found[2]) if found else None


def remove(path: Path) -> None:
    """Delete a file, a folder with all that is in it, or a link without what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def failed(call: str, problem: str, error: OSError, size: int = 0, kept: str = "") -> DataError:
    """The error for something that could not be written: the system's words, and what to do.

    >>> print(failed("runs/x", "no checkpoint of step 7", OSError(28, "No space left on device"), 25_000_000))
    runs/x: no checkpoint of step 7: No space left on device
    hint: make room on this disk, 25 MB and some more
    """
    hint = HINTS.get(error.errno or 0, "check this disk, or choose a folder on another disk")
    if size and error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint += f", {max(1, round(size / 1e6)):,} MB and some more"
    cause = error.strerror or str(error) or type(error).__name__
    return DataError(message(call, f"{problem}: {cause}", hint=hint + kept))
