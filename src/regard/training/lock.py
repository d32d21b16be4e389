"""Lock: a run folder that one training holds, so that no other writes there at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from regard.errors import DataError, message
from regard.untrusted import open_regular

__all__ = ["locked"]

NAME = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder inside a `with`; a DataError says so where another process holds it.

    The system lets go of it when the process ends, however it ends. Where a system or a disk has no such
    locks, nothing is held.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, locked(Path(place)):
    ...     try:
    ...         with locked(Path(place)):
    ...             pass
    ...     except DataError as error:
    ...         print(str(error).splitlines()[-1])
    hint: wait until it has ended, or give another --out
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with _opened(folder / NAME) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(20).decode("ascii", "replace").strip() or "another process"
            problem = f"a training is under way in this folder: {holder}"
            hint = "wait until it has ended, or give another --out"
            raise DataError(message(str(folder), problem, hint=hint)) from None
        except OSError:
            pass
        file.truncate(0)
        file.write(f"process {os.getpid()}\n".encode())
        yield


def _opened(path: Path) -> BinaryIO:
    try:
        return open(path, "a+b", buffering=0, opener=open_regular)
    except OSError as error:
        problem, hint = f"cannot be opened: {error.strerror}", "remove it if no training is running here"
        raise DataError(message(str(path), problem, hint=hint)) from None
