"""The entry point of `regard` and `python -m regard`. It handles Ctrl-C before it imports anything slow."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from types import FrameType

from regard.files.standard_streams import drop_unread_output, open_closed_streams, write_at_once

__all__ = ["main"]

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 + SIGINT."""

RETRY = 0.05
"""Seconds between two attempts to handle a Ctrl-C that arrived during an import."""

STARTING = ("torch", "regard.tasks.translation")
"""Modules that a command imports before it does any work. Their import takes seconds, and there is nothing to
clean up yet, so Ctrl-C ends the process at once."""

_announced: list[bool] = []
"""The list is empty until "stopping ..." has been printed. So the text is printed only once."""


def main() -> None:
    """Run the command line. At any moment, Ctrl-C ends it with exit status 130 and without a traceback."""
    # Replace only Python's default handler of SIGINT: a shell can start the command with SIGINT ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        # While Python exits, it restores the default handler of the system, so SIGINT would kill the process
        # without a message. The first registered function is called last, when all threads have ended.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    open_closed_streams()
    from regard.cli import main as command_line

    command_line()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C: exit at once, or raise KeyboardInterrupt inside a command.

    Exit at once if there is nothing to clean up: before a command runs, while it imports a module listed in
    STARTING, and after it has returned. Otherwise print "stopping ..." and raise KeyboardInterrupt. During
    any other import, the imported code might catch the exception. So the exception is not raised then;
    instead, this function is called again every RETRY seconds, until the import has ended.
    """
    in_command = importing = False
    while frame is not None:
        module, function = str(frame.f_globals.get("__name__", "")), frame.f_code.co_name
        importing = importing or frame.f_code.co_filename == "<frozen importlib._bootstrap>"
        command = module.startswith("regard.cli.")
        in_command = in_command or (command and function != "<module>")
        frame = frame.f_back
    if not in_command or (importing and _starting()):
        write_at_once("regard: interrupted")
        os._exit(INTERRUPTED)
    if not _announced:
        _announced.append(True)
        write_at_once("stopping ...")
    drop_unread_output()
    if not importing:
        raise KeyboardInterrupt
    import _thread
    import threading

    again = threading.Timer(RETRY, _thread.interrupt_main)
    again.daemon = True
    again.start()


def _starting() -> bool:
    """Whether a module listed in STARTING is being imported at this moment."""
    specs = (getattr(sys.modules.get(name), "__spec__", None) for name in STARTING)
    return any(getattr(spec, "_initializing", False) for spec in specs)


if __name__ == "__main__":
    main()
