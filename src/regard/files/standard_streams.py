"""The standard streams: closed streams are opened again, and signal handlers write without blocking."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress

OUTPUTS = (1, 2)
"""The file descriptors of standard output and standard error."""


def open_closed_streams() -> None:
    """Open standard output and standard error if the process was started without them: `regard tour >&-`.

    Without this, the next file that is opened gets the file descriptor of the closed stream, and what is
    printed is written to this file. Writing to standard output fails with the error EBADF. What is written to
    standard error is dropped, because there is no other place for messages.
    """
    for number, flags in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # it gets the lowest free file descriptor, which is `number`
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115 - it stays open
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8")  # noqa: SIM115 - it stays open


def write_at_once(text: str) -> None:
    """Write a line to standard error without blocking. Signal handlers call this; print() is not safe there.

    If nobody reads standard output or standard error, and the pipe is full, the text and all later output are
    dropped; see drop_unread_output().
    """
    drop_unread_output()
    with suppress(OSError):  # after SIGHUP, the terminal may be closed
        os.write(OUTPUTS[-1], f"{text}\n".encode())


def drop_unread_output() -> None:
    """Redirect standard output and standard error to the null device if a write to them would block now.

    This is the case if they are pipes that are full because nobody reads them, or a terminal whose output is
    paused. A write that a signal has interrupted continues with the null device, so it does not block either.
    """
    if not hasattr(select, "poll"):  # Windows
        return
    for handle in OUTPUTS:
        with suppress(OSError):
            os.fstat(handle)
            poll = select.poll()
            poll.register(handle, select.POLLOUT)
            if not poll.poll(0):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, handle)
                os.close(null)
