"""new_folder(): write a folder with all its files, or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from regard.errors import ArgumentError, DataError, message, shown
from regard.files.atomic_io import Leftover, beside, failed, flush_folder, leftover, remove
from regard.files.folder_lock import NAME as LOCK
from regard.files.folder_lock import locked


def check_new(out: Path) -> None:
    """Raise ArgumentError if there is a file, or a folder that is not empty, at the path of a new folder."""
    if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        hint = "choose a folder that does not exist"
        raise ArgumentError(message(f"--output {shown(out)}", "the path exists and is not empty", hint=hint))


@contextmanager
def new_folder(out: Path, problem: str, sizes: Mapping[str, int] | None = None) -> Iterator[Path]:
    """Write a new folder: the `with` block writes into a temporary folder, which is renamed at the end.

    If the block raises an error or is interrupted, no folder is written. After a kill, the temporary folder
    remains, and the next call for the same folder deletes it.

    out: the new folder. It must not exist, or be empty.
    problem: what the error message says if a write fails, such as "the new run could not be written".
    sizes: the sizes of the largest files in bytes, if known, for the hint of a full disk.
    """
    check_new(out)
    place = Path(os.path.abspath(out))
    temporary = beside(place, "part")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        for path in place.parent.iterdir():  # of earlier commands that were killed
            left = leftover(path.name)
            if left == Leftover(place.name, "part") and path.is_dir() and not path.is_symlink():
                with suppress(DataError, OSError):  # a locked folder is still being written
                    with locked(path):
                        pass
                    remove(path)
        temporary.mkdir()
        with locked(temporary):
            yield temporary
            (temporary / LOCK).unlink(missing_ok=True)
            flush_folder(temporary)
            if place.is_dir():
                place.rmdir()  # the folder exists, but it is empty
            os.rename(temporary, place)
        try:
            flush_folder(place.parent)
        except OSError:
            remove(place)  # so that the same command can be run again
            raise
    except (OSError, DataError) as error:  # a DataError of Checkpoints names the temporary folder
        cause = error.__cause__ if isinstance(error, DataError) else error
        if not isinstance(cause, OSError):
            raise
        raise failed(shown(out), problem, cause, sum((sizes or {}).values())) from None
    finally:
        with suppress(OSError):
            remove(temporary)
