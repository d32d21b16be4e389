"""Write files atomically: a file is always complete, or it does not exist.

This is true even if the process is killed or the disk is full. A file is written under a temporary name and
renamed when it is complete. If a write is interrupted, the temporary file remains; leftover() recognises its
name.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from regard.errors import DataError, message, shown

BLOCK = 2**20
"""Number of bytes that are written at a time and then hashed. The hash is faster because the bytes are still
in the CPU cache."""

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)

LONGEST_NAME = 200
"""Maximum number of bytes of a file name that beside() uses in the name of a temporary file.

A longer file name is replaced by a hash, because file systems allow only 255 bytes in a name.
"""

HINTS = {
    errno.ENOSPC: "free some space on this disk",
    errno.EDQUOT: "free some space: your quota on this disk is used up",
    errno.EROFS: "choose a folder on a disk that is not read-only",
    errno.EACCES: "choose a folder with write permission",
    errno.EPERM: "choose a folder with write permission",
}
"""The hint of the error message for each error code of the operating system."""


class Written(NamedTuple):
    """The size in bytes and the SHA-256 hash of a file that was written."""

    size: int
    sha256: str


class Leftover(NamedTuple):
    """The result of leftover(): what a temporary file is for, according to its name.

    name: the name of the file that is being written or replaced.
    kind: "part" if the temporary file has the new content of that file. "earlier" if it has the old content,
        which is kept while the file is replaced.
    """

    name: str
    kind: str


def write(path: Path, blocks: Iterable[bytes | memoryview]) -> Written:
    """Write blocks of bytes to a new file, flush it to the disk, and return its size and hash.

    Raise FileExistsError if there is a file at `path` already.

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
                count = os.write(handle, left[:BLOCK])  # os.write() may write fewer bytes
                digest.update(left[:count])
                size, left = size + count, left[count:]
        os.fsync(handle)
    finally:
        os.close(handle)
    return Written(size, digest.hexdigest())


def link(path: Path, new: Path) -> None:
    """Create a hard link `new` to a file, or copy the file if the file system has no hard links.

    Use this only for files that are never changed. Both names belong to the same file, so a change through
    one name is visible through the other.

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
    """Write or replace a file atomically: a reader finds either the old content or the new content.

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
    """Write or replace a file atomically. If writing fails, raise a DataError that names the file."""
    with naming_file(path):
        replace(path, content)


@contextlib.contextmanager
def naming_file(path: str | Path) -> Iterator[None]:
    """Context manager: convert an OSError to a DataError that names the file and the reason.

    BrokenPipeError is not converted: it only means that the reader of a pipe has closed the pipe.

    >>> with naming_file("page.html"):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    regard.errors.DataError: page.html: cannot be written: No space left on device
    hint: free some space on this disk
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        folder = Path(path).parent
        hint = ""
        with contextlib.suppress(OSError):  # is_dir() fails if the name is too long
            full = HINTS[error.errno] if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            hint = full if folder.is_dir() else f"create the folder first: {shown(folder)}"
        reason = error.strerror or str(error) or type(error).__name__
        raise DataError(message(shown(path), f"cannot be written: {reason}", hint=hint)) from None


def write_all(handle: int, content: bytes) -> None:
    """Write all of `content` to an open file descriptor. One os.write() may write only a part of it."""
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


def flush_folder(folder: Path) -> None:
    """Flush a folder to the disk, so that new and renamed files survive a power failure."""
    if os.name == "posix":  # Windows cannot open a folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def beside(path: Path, kind: str) -> Path:
    """Return the path of a temporary file for the file at `path`, in the same folder. No file is created.

    kind: "part" if the temporary file is for the new content of the file, "earlier" if it is for the old
        content. leftover() returns this kind.
    """
    name = path.name
    if len(os.fsencode(name)) > LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
    return path.with_name(f".{name}.{secrets.token_hex(4)}.{kind}")


def leftover(name: str) -> Leftover | None:
    """Parse a temporary file name that beside() created. Return None for any other name.

    >>> leftover(beside(Path("runs/step-000100"), "part").name)
    Leftover(name='step-000100', kind='part')
    >>> leftover(".gitignore")
    """
    match = re.fullmatch(r"\.(.+)\.[0-9a-f]{8}\.(part|earlier)", name)
    return Leftover(match[1], match[2]) if match else None


def remove(path: Path) -> None:
    """Delete a file, or a folder with its contents. If the path is a symbolic link, delete only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def failed(call: str, problem: str, error: OSError, size: int = 0, kept: str = "") -> DataError:
    """Return a DataError for a failed write, with a message "call: problem: reason" and a hint.

    call: the beginning of the message, such as the path of the file.
    problem: what failed.
    error: the error of the operating system. Its text is the reason, and its number selects the hint.
    size: the number of bytes that should have been written. If the disk is full, the hint says how much space
        to free. 0 if the number is unknown.
    kept: text that is appended to the hint.

    >>> print(failed("runs/x", "no checkpoint of step 7", OSError(28, "No space left on device"), 25_000_000))
    runs/x: no checkpoint of step 7: No space left on device
    hint: free some space on this disk, at least 25 MB
    """
    hint = HINTS.get(error.errno or 0, "check this disk, or choose a folder on another disk")
    if size and error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint += f", at least {max(1, round(size / 1e6)):,} MB"
    cause = error.strerror or str(error) or type(error).__name__
    return DataError(message(call, f"{problem}: {cause}", hint=hint + kept))


def check_free(paths: Sequence[Path], overwrite: bool) -> None:
    """Raise DataError if there is already a file or folder at one of `paths`, unless `overwrite` is true."""
    existing = [shown(path) for path in paths if os.path.lexists(path)]
    if existing and not overwrite:
        hint = "use --overwrite to replace it, or --output to choose another folder"
        raise DataError(message(existing[0], "the path already exists", hint=hint))


@contextlib.contextmanager
def written_together(paths: Sequence[Path]) -> Iterator[list[TextIO]]:
    """Write several text files together: either all of them are written, or none.

    The `with` block gets one open temporary file for each path. At the end of the block, the temporary files
    are renamed to `paths`. If the block raises an error, or the disk is full, the files at `paths` keep their
    old content.
    """
    parts = [beside(path, "part") for path in paths]
    try:
        for path in paths:
            with naming_file(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir():  # before the first file is renamed, because a file cannot replace a folder
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with naming_file(paths[0].parent / " and ".join(path.name for path in paths)):
            with contextlib.ExitStack() as stack:
                files: list[TextIO] = [
                    stack.enter_context(part.open("w", encoding="utf-8", newline="\n")) for part in parts
                ]
                yield files
                for file in files:
                    file.flush()
                    os.fsync(file.fileno())
            for part, path in zip(parts, paths, strict=True):
                os.replace(part, path)
    finally:
        for part in parts:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
