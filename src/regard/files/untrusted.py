"""Read untrusted files: files that may be damaged or written by someone else, such as the files of a run.

- A symbolic link is not followed, unless the user named this file.
- The file must be a regular file. Reading a FIFO could wait forever, and some devices have no end.
- The file must not be larger than the limit for its kind (see LIMITS).

The functions raise OSError or ValueError. naming_damage() converts these errors to one that names the file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any

from regard.errors import DataError, message

LIMITS = {
    "captions": 1 << 28,
    "config": 1 << 20,
    "image": 1 << 26,
    "json": 1 << 24,
    "log": 1 << 26,
    "log line": 1 << 20,
    "pointer": 1 << 10,
    "seen": 1 << 31,
    "seen header": 1 << 26,
    "tensor header": 1 << 26,
    "tokenizer": 1 << 26,
}
"""Maximum size in bytes of each kind of file, much larger than any file that Regard writes.

Only "captions" and "image" are files of the user. For comparison, the largest caption file of COCO has 144
MB.

There is no limit for tensor files. Instead, their header is compared with the size of the file before memory
is allocated.
"""

KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISLNK, "a symbolic link"),
)


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a regular file, but not through a symbolic link. Use: open(path, mode, opener=open_regular).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     os.symlink("/dev/zero", f"{folder}/log.jsonl")
    ...     try:
    ...         open(f"{folder}/log.jsonl", "rb", opener=open_regular)
    ...     except OSError as error:
    ...         print(error.strerror)
    is a symbolic link, not a regular file
    """
    if not hasattr(os, "O_NOFOLLOW") and os.path.islink(path):
        raise _not_regular(path, os.lstat(path).st_mode)
    return open_named(path, flags | getattr(os, "O_NOFOLLOW", 0))


def open_named(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a regular file, and follow symbolic links. Use this function for a file that the user named."""
    # With O_NONBLOCK, opening a FIFO does not wait for a writer. The flag has no effect on regular files.
    for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        # ELOOP (on some systems EMLINK): a symbolic link. ENXIO: a socket. EISDIR: a folder.
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR):
            raise _not_regular(path, os.lstat(path).st_mode) from None
        raise
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise _not_regular(path, mode)
    return handle


def _not_regular(path: str | os.PathLike[str], mode: int) -> OSError:
    kind = next((name for test, name in KINDS if test(mode)), "a device")
    return OSError(errno.EINVAL, f"is {kind}, not a regular file", os.fspath(path))


def read_limited(path: str | os.PathLike[str], kind: str, *, named: bool = False) -> bytes:
    """Read a whole file. Raise OSError if it is larger than the limit for its kind.

    kind: a key of LIMITS.
    named: whether the user named this file. If True, a symbolic link is followed.
    """
    limit = LIMITS[kind]
    with open(path, "rb", opener=open_named if named else open_regular) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"is larger than the limit of {limit:,} bytes", os.fspath(path))
        return file.read(size)  # read(size), because read(limit) would allocate `limit` bytes


def parse_json(content: bytes | str) -> Any:
    """Parse JSON. Raise ValueError for invalid JSON, for duplicate keys and for too deep nesting.

    >>> parse_json(b'{"step": 1, "step": 2}')
    Traceback (most recent call last):
    ValueError: duplicate key 'step'
    """
    try:
        return json.loads(content, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("too many levels of nesting") from None


@contextlib.contextmanager
def naming_damage(
    path: str | os.PathLike[str], problem: str = "is damaged", hint: str = ""
) -> Iterator[None]:
    """Context manager: convert the errors of reading a file to a DataError that names the file.

    FileNotFoundError is not converted.

    problem: what is wrong if the content of the file is not valid.

    >>> with naming_damage("data.json", hint="delete the file"):
    ...     parse_json("{")
    Traceback (most recent call last):
    regard.errors.DataError: data.json: is damaged: Expecting property name ...
    hint: delete the file
    """
    try:
        yield
    except (DataError, FileNotFoundError):
        raise
    except OSError as error:
        raise DataError(message(os.fspath(path), f"cannot be read: {error.strerror}", hint=hint)) from None
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        reason = f": {error}" if isinstance(error, ValueError) and str(error) else ""
        raise DataError(message(os.fspath(path), f"{problem}{reason}", hint=hint)) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"duplicate key {key[:40]!r}")
        content[key] = value
    return content


def strict(value: object) -> object:
    """Convert a value to types that standard JSON can store: dict, list, str, int, float, bool and None.

    NaN and infinity become the strings "NaN" and "Infinity", because JSON has no such numbers. Unpaired
    surrogates in text become U+FFFD. Other objects become text.

    >>> from pathlib import Path
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
