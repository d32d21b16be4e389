"""Read untrusted files, which may be damaged or come from others: a run folder, a cache, a .seen file.

Such a file is opened without following a symbolic link, must be a regular file (a FIFO would block, a device
has no end), and may not be larger than a limit for its kind. Failures are OSError or ValueError; each caller
raises its own error, which names the file.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import Any

__all__ = ["LIMITS", "open_named", "open_regular", "parse_json", "read_limited"]

LIMITS = {
    "config": 1 << 20,
    "json": 1 << 24,
    "log": 1 << 26,
    "log line": 1 << 20,
    "pointer": 1 << 10,
    "seen": 1 << 31,
    "seen header": 1 << 26,
    "tensor header": 1 << 26,
    "tokenizer": 1 << 26,
}
"""Largest size in bytes of each kind of file, far above what Regard writes. Files of weights have no limit of
their own: their header is checked against the size of the file before anything is allocated."""

KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISLNK, "a symbolic link"),
)


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a regular file without following a symbolic link; for open(path, mode, opener=open_regular).

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
    return _opened(path, flags | getattr(os, "O_NOFOLLOW", 0))


def open_named(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Like open_regular(), for a file that the user named: it may be a symbolic link."""
    return _opened(path, flags)


def _opened(path: str | os.PathLike[str], flags: int) -> int:
    # With O_NONBLOCK, opening a FIFO returns at once; it has no effect on regular files.
    for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        # ELOOP (EMLINK on some systems) for a symbolic link, ENXIO for a socket, EISDIR for a folder.
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
    """Read a whole file of a kind in LIMITS.

    named: whether the user named this file; then a symbolic link is followed.
    """
    limit = LIMITS[kind]
    with open(path, "rb", opener=open_named if named else open_regular) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"is larger than the limit of {limit:,} bytes", os.fspath(path))
        return file.read(size)  # not read(limit), which would allocate that much


def parse_json(content: bytes | str) -> Any:
    """Parse JSON; raise ValueError for any problem, including deep nesting and duplicate keys.

    >>> parse_json(b'{"step": 1, "step": 2}')
    Traceback (most recent call last):
    ValueError: duplicate key 'step'
    """
    try:
        return json.loads(content, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("too many levels of nesting") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"duplicate key {key[:40]!r}")
        content[key] = value
    return content
