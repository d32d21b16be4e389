"""Writing files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from regard.errors import ArgumentError, DataError, message
from regard.viewing.shades import clean

__all__ = ["check_ending", "write_whole"]


def check_ending(path: Path, ending: str, hint: str) -> None:
    """Raise where a file's name does not end as it should."""
    if path.suffix.lower() != ending:
        hint = f"{hint}: {clean(path.stem) or 'page'}{ending}"
        problem = f"{clean(path.name)!r} does not end in {ending}"
        raise ArgumentError(message("save()", problem, expected=ending, hint=hint))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its place, flush it, and move it there."""
    temporary = path.with_name(f".{secrets.token_hex(8)}{path.suffix}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        hint = "" if path.parent.is_dir() else f"make the folder first: {path.parent}"
        raise DataError(message(str(path), f"cannot be written: {error.strerror}", hint=hint)) from None
    finally:
        temporary.unlink(missing_ok=True)
