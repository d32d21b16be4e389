"""Whole files: several that belong together, written all or not at all, over none that is there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from regard.data.reading import shown
from regard.errors import DataError, message

__all__ = ["check_free", "written_together"]


def check_free(paths: Sequence[Path], overwrite: bool) -> None:
    """Refuse to write over what is there, unless that is wanted."""
    there = [shown(path) for path in paths if path.exists()]
    if there and not overwrite:
        hint = "--overwrite replaces it, --out names another folder"
        raise DataError(message(there[0], "is there already", hint=hint))


@contextlib.contextmanager
def written_together(paths: Sequence[Path]) -> Iterator[list[TextIO]]:
    """Files that take their names when all of them are whole; what is broken off leaves nothing behind."""
    parts = [path.with_name(f"{path.name}.part") for path in paths]
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(open(part, "w", encoding="utf-8", newline="\n")) for part in parts]
        for part, path in zip(parts, paths, strict=True):
            os.replace(part, path)
    except OSError as error:
        place = shown(error.filename or paths[0].parent)
        raise DataError(message(place, f"cannot be written ({error.strerror or error})")) from None
    finally:
        for part in parts:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
