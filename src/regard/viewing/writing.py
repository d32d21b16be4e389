"""Writing files that are there whole or not at all, with errors that name the file."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from regard.errors import ArgumentError, DataError, message
from regard.viewing.shades import clean

__all__ = ["check_ending", "naming_file", "write_all", "write_whole"]


def check_ending(path: Path, ending: str, hint: str) -> None:
    """Raise where a file's name does not end as it should."""
    if path.suffix.lower() != ending:
        hint = f"{hint}: {clean(path.stem) or 'page'}{ending}"
        problem = f"{clean(path.name)!r} does not end in {ending}"
        raise ArgumentError(message("save()", problem, expected=ending, hint=hint))


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
            hint = "" if folder.is_dir() else f"make the folder first: {clean(str(folder))}"
        reason = error.strerror or str(error) or type(error).__name__
        raise DataError(message(clean(str(path)), f"cannot be written: {reason}", hint=hint)) from None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its place, flush it, and move it there."""
    # Not a name made of the file's own: with 255 bytes already, it could not be any longer.
    temporary = path.with_name(f".{secrets.token_hex(8)}{path.suffix}")
    with naming_file(path):
        try:
            with temporary.open("xb", buffering=0) as file:
                write_all(file.fileno(), content)
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def write_all(handle: int, content: bytes) -> None:
    """Write all of the content: the system may take less than it is given."""
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]
