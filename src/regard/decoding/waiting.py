"""Waiting: a progress bar for work that turns out to take long, on a terminal, and nothing otherwise."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import Progress

__all__ = ["Waiting"]


class Waiting:
    """Show how far some work is, once it has taken `patience` seconds and if stderr is a terminal.

    >>> from regard.decoding.waiting import Waiting
    >>> with Waiting("translating", total=2) as waiting:
    ...     waiting.advance(2)
    """

    def __init__(self, what: str, total: int, patience: float = 1.0, console: Console | None = None):
        self.what, self.total, self.patience = what, total, patience
        self.console = Console(stderr=True) if console is None else console
        self.began = time.monotonic()
        self.done = 0
        self.bar: Progress | None = None

    def __enter__(self) -> Waiting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def advance(self, count: int) -> None:
        """So much more is done."""
        self.done += count
        if self.bar is None and self.console.is_terminal and time.monotonic() - self.began >= self.patience:
            self.bar = Progress(console=self.console, transient=True)
            self.bar.add_task(self.what, total=self.total)
            self.bar.start()
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=self.done)
