"""Folder lock: only one process at a time can train in a run folder.

The training process also detects if its run folder is moved, removed or replaced.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import lock_descriptor

from regard.errors import DataError, message, shell_word
from regard.files.untrusted import open_regular

NAME = ".lock"


class FolderMoved(DataError):
    """Raised if the run folder was moved, removed or replaced during training.

    place: the new path of the folder; None if it was not moved or the path is unknown.
    """

    def __init__(self, text: str, place: Path | None = None):
        super().__init__(text)
        self.place = place


class FolderLock:
    """The lock of a run folder, held by this process. Use locked() to create it.

    The operating system releases the lock when the process ends, even if the process is killed. On Windows,
    and on disks without file locks, nothing is locked, but check() still detects a folder that was moved.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        # While this folder is open, no other folder can get its inode number. So check() compares inode
        # numbers to detect that the folder was replaced.
        self._folder = os.open(folder, os.O_RDONLY) if os.name == "posix" else None
        self._identity = os.stat(folder if self._folder is None else self._folder)
        self._file: int | None = None
        try:
            self._file = self._acquire() if os.name == "posix" else None
        except BaseException:
            self.release()
            raise

    def check(self) -> None:
        """Check that this process still holds the lock.

        Raise FolderMoved if the folder was moved, removed or replaced. If the lock file was deleted or
        replaced, create and lock it again, or raise DataError if another process holds the new lock.
        """
        try:
            current = os.stat(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            raise self._moved("removed") from None
        except OSError:
            return  # for example, the disk does not respond; the next write will raise the error
        if not os.path.samestat(self._identity, current):
            raise self._moved("replaced by another folder")
        if self._file is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._file), os.lstat(self.folder / NAME)):
                return
        before, self._file = self._file, self._acquire()
        os.close(before)

    def release(self) -> None:
        """Release the lock. The lock file remains, but the process id in it is deleted."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, 0)
            os.close(self._file)
        if self._folder is not None:
            os.close(self._folder)
        self._file = self._folder = None

    def _acquire(self) -> int:
        """Open and lock the lock file and write the id of this process to it. Return its file descriptor.

        Raise DataError if another process holds the lock.
        """
        path = self.folder / NAME
        try:
            handle = open_regular(path, os.O_RDWR | os.O_CREAT)  # raises OSError for a FIFO
        except OSError as error:
            problem = f"cannot be opened: {error.strerror}"
            hint = "delete this lock file if no training is running in the folder"
            raise DataError(message(str(path), problem, hint=hint)) from None
        is_free = True
        with contextlib.suppress(OSError):  # the disk may not support file locks
            is_free = lock_descriptor(handle, blocking=False)
        if not is_free:
            holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip() or "another process"
            os.close(handle)
            problem = f"another training is running in this folder: {holder}"
            hint = "wait until it has ended, or use another --output"
            raise DataError(message(str(self.folder), problem, hint=hint))
        # If the file was replaced between opening and locking, the next check() locks the new file.
        with contextlib.suppress(OSError):  # the process id is only for error messages
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()}\n".encode())
        return handle

    def _moved(self, how: str) -> FolderMoved:
        hint, place = "restore the folder, or use another --output", self._new_place()
        if place is not None:
            how, hint = f"moved to {place}", f"regard train --output {shell_word(place)} --resume"
        problem = f"the run folder was {how} while training"
        return FolderMoved(message(str(self.folder), problem, hint=hint), place)

    def _new_place(self) -> Path | None:
        """Return the current path of the locked folder, or None if the system cannot report it."""
        try:
            if sys.platform == "darwin":
                import fcntl

                name = fcntl.fcntl(self._folder, fcntl.F_GETPATH, bytes(1024))
                place = Path(os.fsdecode(name.rstrip(b"\0")))
            else:
                place = Path(os.readlink(f"/proc/self/fd/{self._folder}"))
            return place if os.path.samestat(os.stat(place), self._identity) else None
        except OSError:
            return None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[FolderLock]:
    """Lock a run folder during the `with` block. Raise DataError if the folder is locked already.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, locked(Path(place)):
    ...     try:
    ...         with locked(Path(place)):
    ...             pass
    ...     except DataError as error:
    ...         print(str(error).splitlines()[-1])
    hint: wait until it has ended, or use another --output
    """
    lock = FolderLock(folder)
    try:
        yield lock
    finally:
        lock.release()
