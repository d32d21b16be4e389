"""Write a group of files together: if an error occurs, no file is changed."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from regard.errors import DataError, message, shown
from regard.files.atomic_io import beside, naming_file, write_all

__all__ = ["check_free", "written_together"]


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
    are renamed to `paths`. If the block raises an error, or a rename fails, the files at `paths` keep their
    old content.
    """
    parts = [beside(path, "part") for path in paths]
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
    """A temporary file that will be renamed to `path`. Its error messages name `path`, which users know."""

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
    """Rename all temporary files to their final paths. If a rename fails, restore the previous files."""
    earlier = [beside(path, "earlier") for path in paths]
    done: list[tuple[Path, Path]] = []
    try:
        for part, path, backup in zip(parts, paths, earlier, strict=True):
            with naming_file(path):
                with contextlib.suppress(OSError):  # no previous file, or the disk has no hard links
                    os.link(path, backup, follow_symlinks=False)
                os.replace(part, path)
                done.append((path, backup))
    except BaseException:
        for path, backup in done:
            with contextlib.suppress(OSError):
                os.replace(backup, path) if os.path.lexists(backup) else path.unlink()
        raise
    finally:
        for backup in earlier:
            with contextlib.suppress(OSError):
                backup.unlink(missing_ok=True)
