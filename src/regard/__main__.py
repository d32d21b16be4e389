"""The entry point of `regard` and `python -m regard`: it handles Ctrl-C before anything slow is imported."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

__all__ = ["main"]

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 + SIGINT."""

RETRY = 0.05
"""Seconds to wait before an interrupt that arrived during an import is raised again."""

STARTING = ("torch", "regard.tasks.translation")
"""Modules that a command imports before it does any work. They take seconds."""

_announced: list[bool] = []
"""Not empty once "stopping ..." has been printed."""


def main() -> None:
    """Run the command line; Ctrl-C exits with status 130 and no traceback at any moment."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if the shell ignores it
        signal.signal(signal.SIGINT, _interrupt)
    from regard.cli import main as command_line

    command_line()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Exit at once outside a command; inside one, raise KeyboardInterrupt, but never during an import.

    Before a command runs, while it imports STARTING, and after it has returned, there is nothing to clean up.
    An exception in the middle of another import may be replaced or swallowed by the imported code, so it is
    raised after the import; "stopping ..." is printed immediately.
    """
    in_command = importing = False
    while frame is not None:
        module, function = str(frame.f_globals.get("__name__", "")), frame.f_code.co_name
        importing = importing or frame.f_code.co_filename == "<frozen importlib._bootstrap>"
        command = module.startswith("regard.cli.") and module != "regard.cli.lazy_commands"
        in_command = in_command or (command and function != "<module>")
        frame = frame.f_back
    if not in_command or (importing and _starting()):
        os.write(2, b"regard: interrupted\n")
        os._exit(INTERRUPTED)
    if not _announced:
        _announced.append(True)
        os.write(2, b"stopping ...\n")
    if not importing:
        raise KeyboardInterrupt
    import _thread
    import threading

    again = threading.Timer(RETRY, _thread.interrupt_main)
    again.daemon = True
    again.start()


def _starting() -> bool:
    """Whether one of the modules STARTING is being imported."""
    specs = (getattr(sys.modules.get(name), "__spec__", None) for name in STARTING)
    return any(getattr(spec, "_initializing", False) for spec in specs)


if __name__ == "__main__":
    main()
