"""A progress bar for work that takes longer than a second. Without a terminal, nothing is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

PATIENCE = 1.0
"""Seconds before the progress bar is shown."""


@contextmanager
def advancing(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error. Call the yielded function with the amount of work done so far.

    label: the text before the bar, for example "reading".
    total: the total amount of work, in any unit (pairs or bytes); 0 if unknown.

    >>> with advancing("reading", total=10) as reached:
    ...     reached(5)
    """
    console = Console(stderr=True)
    began = time.monotonic()
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(Text(label).plain, total=total or None)

    def reached(done: int) -> None:
        if time.monotonic() - began >= PATIENCE:
            bar.start()
            bar.update(task, completed=done)

    try:
        yield reached
    finally:
        bar.stop()
