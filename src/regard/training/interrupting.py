"""Interrupting: Ctrl-C and SIGTERM ask for the end, and the trainer ends when all is written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interruption", "interruptible"]


class Interruption:
    """Whether the end was asked for, and by what: "Ctrl-C" or "SIGTERM"; "" while it was not.

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
    """Take the first Ctrl-C or SIGTERM as a wish inside a `with`; a second one ends at once, as usual."""
    asked = Interruption()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        asked.cause = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"

    if threading.current_thread() is not threading.main_thread():
        yield asked  # signals come to the main thread alone
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
