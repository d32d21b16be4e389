"""Journal: the log of a training run as JSON lines. It stays readable if the process is killed."""

from __future__ import annotations

import errno
import json
import math
import os
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from regard.files.untrusted import open_regular

HELD = 1000
"""Maximum number of records that are kept in memory while the log file cannot be written. Older records are
dropped."""

BLOCK = 1 << 16


class Journal:
    """A log file with one record (JSON object) per line.

    When a run is resumed from a checkpoint, the records after this checkpoint are removed with rewind().

    path: the file to which records are appended. None: nothing is written.
    complain: a function that is called with a message when writing fails for the first time. Records that
        were not written are written together with the next record.

    The file is opened again for each record and then closed. This costs little, because records are rare.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
    >>> journal = Journal(path, print)
    >>> journal.write({"kind": "training", "loss": float("nan")})
    >>> position = journal.position()
    >>> journal.write({"kind": "lost"})
    >>> journal.rewind(position)
    >>> print(path.read_text(), end="")
    {"kind": "training", "loss": "NaN"}
    """

    def __init__(self, path: Path | None, complain: Callable[[str], None]):
        self.path = path
        self.complain = complain
        self._held: deque[bytes] = deque(maxlen=HELD)
        self._whole = False
        self._failed = False
        self._size = path.stat(follow_symlinks=False).st_size if path is not None and path.is_file() else 0

    def write(self, record: Mapping[str, object]) -> None:
        """Append a record to the file. If it cannot be written, the next call tries again."""
        if self.path is None:
            return
        self._held.append(json.dumps(strict(record), allow_nan=False).encode("ascii") + b"\n")
        self._flush()

    def position(self) -> int:
        """Flush the log file to the disk, and return its size in bytes, for a later rewind()."""
        if self.path is None:
            return 0
        self._flush(to_disk=True)
        return self._size

    def rewind(self, position: int) -> None:
        """Truncate the log file to `position` bytes, and remove an incomplete last line.

        If the file is shorter than `position`, records are missing. Then complain() is called with a message.
        """
        self._held.clear()
        if self.path is None:
            return
        try:
            with self._opened() as file:
                size = file.seek(0, os.SEEK_END)
                if size > position:
                    file.truncate(position)
                self._size = _cut_to_lines(file)
                self._whole = True
        except OSError as error:
            self._fail(error)
            return
        if size < position:
            self.complain(
                f"{self.path.name} has only {size:,} of the {position:,} bytes it had at the checkpoint; "
                "training continues without the missing records"
            )

    def _opened(self) -> BinaryIO:
        assert self.path is not None
        return open(self.path, "a+b", buffering=0, opener=open_regular)

    def _flush(self, to_disk: bool = False) -> None:
        """Append the records that are not written yet, all of them or none."""
        try:
            with self._opened() as file:
                if not self._whole:
                    self._size, self._whole = _cut_to_lines(file), True
                content, end = b"".join(self._held), file.seek(0, os.SEEK_END)
                if content and file.write(content) != len(content):
                    file.truncate(end)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._held.clear()
                self._size = end + len(content)
                if to_disk:
                    os.fsync(file.fileno())
        except OSError as error:
            self._whole = False
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if not self._failed and self.path is not None:
            self._failed = True
            self.complain(
                f"{self.path.name} cannot be written: {error.strerror or error}; training continues, "
                "and writing is tried again with the next record"
            )


def _cut_to_lines(file: BinaryIO) -> int:
    """Remove the last line if it has no newline, because a process was killed; return the file size."""
    size = end = file.seek(0, os.SEEK_END)
    while end:
        start = max(end - BLOCK, 0)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        file.truncate(end)
    return end


def strict(value: object) -> object:
    """Convert a value to types that standard JSON can store: dict, list, str, int, float, bool and None.

    NaN and infinity become the strings "NaN" and "Infinity", because JSON has no such numbers. Unpaired
    surrogates in text become U+FFFD. Other objects become text.

    >>> strict({"loss": float("inf"), "folder": Path("runs"), "text": "\\ud800"})
    {'loss': 'Infinity', 'folder': 'runs', 'text': '\ufffd'}
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, Mapping):
        return {str(strict(str(name))): strict(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [strict(each) for each in value]
    if hasattr(value, "tolist"):  # scalars and arrays of NumPy and torch have tolist()
        return strict(value.tolist())
    return strict(str(value))
