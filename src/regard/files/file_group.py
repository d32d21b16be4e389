"""Whole files: several that belong together, written all or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from regard.errors import DataError, message, shown
from regard.files.atomic_io import naming_file, write_all

__all__ = ["check_free", "written_together"]


def check_free(paths: Sequence[Path], overwrite: bool) -> None:
    """Refuse to write over what is there, unless that is wanted."""
    there = [shown(path) for path in paths if os.path.lexists(path)]
    if there and not overwrite:
        hint = "--overwrite replaces it, --out names another folder"
        raise DataError(message(there[0], "is there already", hint=hint))


@contextlib.contextmanager
def written_together(paths: Sequence[Path]) -> Iterator[list[TextIO]]:
    """Open files that take their names once all of them are whole; after an error, none has changed."""
    parts = [path.with_name(f"{path.name}.part") for path in paths]
    try:
        with contextlib.ExitStack() as stack:
            files: list[TextIO] = []
            for part, path in zip(parts, paths, strict=True):
                with naming_file(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    raw = stack.enter_context(_Part(part, path))
                files.append(stack.enter_context(_text(raw)))
            yield files
            for file, path in zip(files, paths, strict=True):
                file.flush()
                with naming_file(path):
                    os.fsync(file.fileno())
        _replace_all(parts, paths)
    finally:
        for part in parts:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


class _Part(io.FileIO):
    """A file that will get another name; that is the name in the error of a write."""

    def __init__(self, part: Path, path: Path):
        super().__init__(part, "w")
        self.path = path

    def write(self, content: Any) -> int:
        with naming_file(self.path):
            write_all(self.fileno(), content)
        return len(content)


def _text(raw: _Part) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", newline="\n")


def _replace_all(parts: Sequence[Path], paths: Sequence[Path]) -> None:
    """Move all parts to their places; where one cannot be, the earlier files come back."""
    earlier = [path.with_name(f".{secrets.token_hex(8)}.earlier") for path in paths]
    done: list[tuple[Path, Path]] = []
    try:
        for part, path, kept in zip(parts, paths, earlier, strict=True):
            with naming_file(path):
                with contextlib.suppress(OSError):  # there is no earlier file, or no links on this disk
                    os.link(path, kept, follow_symlinks=False)
                os.replace(part, path)
                done.append((path, kept))
    except BaseException:
        for path, kept in done:
            with contextlib.suppress(OSError):
                os.replace(kept, path) if os.path.lexists(kept) else path.unlink()
        raise
    finally:
        for kept in earlier:
            with contextlib.suppress(OSError):
                kept.unlink(missing_ok=True)
