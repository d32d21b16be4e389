"""Interrupts: after Ctrl-C, SIGTERM or SIGHUP, the trainer saves a checkpoint and stops."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from regard.files.standard_streams import drop_unread_output, write_at_once

CAUSES = {
    getattr(signal, name): cause
    for name, cause in {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP"}.items()
    if hasattr(signal, name)  # Windows has no SIGHUP
}
"""The signals that request a stop, with their names in messages, such as "Ctrl-C"."""

EXIT_STATUS = {cause: 128 + number for number, cause in CAUSES.items()}
"""The exit status of a run that was stopped: 128 plus the number of the signal, as in shells."""

NOTICE = "stopping: saving a checkpoint (press Ctrl-C again to stop without saving)"
"""The message that is printed when the first signal arrives."""


class Interruption:
    """A flag that becomes true when a signal such as Ctrl-C requests a stop of the training.

    Both bool(flag) and flag() return its value. interruptible() sets the flag.

    cause: what requested the stop: "Ctrl-C", "SIGTERM" or "SIGHUP". "" if no stop was requested.

    >>> bool(Interruption())
    False
    """

    def __init__(self) -> None:
        self.cause = ""

    def __bool__(self) -> bool:
        return bool(self.cause)

    def __call__(self) -> bool:
        return bool(self.cause)


@contextmanager
def interruptible(notice: str = NOTICE) -> Iterator[Interruption]:
    """Handle Ctrl-C, SIGTERM and SIGHUP inside the `with` block, and yield a flag that these signals set.

    The first signal prints `notice` and sets the flag. Then the trainer stops after the current step. The
    second signal raises KeyboardInterrupt (Ctrl-C) or SystemExit (SIGTERM and SIGHUP) at once. If SIGHUP is
    already ignored, as under nohup, it stays ignored. Outside the main thread, no signals are handled,
    because Python delivers signals only to the main thread.

    A process whose output nobody reads waits in a write when the pipe is full. A signal drops this output, so
    that the process can stop.
    """
    interruption = Interruption()

    def request_stop(number: int, frame: FrameType | None) -> None:
        if interruption:
            drop_unread_output()
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        interruption.cause = CAUSES[number]
        if os.environ.get("RANK", "0") == "0":  # only the first process prints
            write_at_once(notice)
        else:
            drop_unread_output()

    if threading.current_thread() is not threading.main_thread():
        yield interruption  # Python delivers signals to the main thread only
        return
    hangup = getattr(signal, "SIGHUP", None)
    ignored = hangup is not None and signal.getsignal(hangup) is signal.SIG_IGN
    before = {
        number: signal.signal(number, request_stop) for number in CAUSES if number != hangup or not ignored
    }
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
