"""Interrupting: Ctrl-C, SIGTERM and SIGHUP request a stop; the trainer saves a checkpoint, then stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["EXIT_STATUS", "Interruption", "interruptible"]

CAUSES = {
    getattr(signal, name): cause
    for name, cause in {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP"}.items()
    if hasattr(signal, name)  # Windows has no SIGHUP
}
"""The signals that request a stop, and the name of each for people."""

EXIT_STATUS = {cause: 128 + number for number, cause in CAUSES.items()}
"""The exit status of a run that was stopped: 128 plus the number of the signal, as in shells."""


class Interruption:
    """Whether a stop was requested, and by what: "Ctrl-C", "SIGTERM" or "SIGHUP"; "" if it was not.

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
def interruptible() -> Iterator[Interruption]:
    """Inside a `with`, take the first of these signals as a request to stop; a second one ends the process.

    SIGHUP stays ignored where it is ignored already: so nohup starts a process.
    """
    asked = Interruption()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        asked.cause = CAUSES[number]

    if threading.current_thread() is not threading.main_thread():
        yield asked  # Python delivers signals to the main thread only
        return
    hangup = getattr(signal, "SIGHUP", None)
    ignored = hangup is not None and signal.getsignal(hangup) is signal.SIG_IGN
    before = {number: signal.signal(number, ask) for number in CAUSES if number != hangup or not ignored}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
