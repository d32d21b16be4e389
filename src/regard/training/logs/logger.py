"""Loggers of users: functions that are called for each event of a training run.

A logger is a function `logger(event, values)`. The events, and what `values` has:

start       settings (the sections of config.toml), resumed
step        metrics, such as {"training/loss": 2.1}: every training.log_every steps, means over these steps
evaluation  metrics, such as {"evaluation/bleu": 31.2}, and best: whether it is the best evaluation so far
checkpoint  path: the folder of a checkpoint that was written
end         status: "ended", "stopped" (it can be resumed) or "failed"

Each event also has run, the run folder, and step, the number of training steps so far. With several processes
(torchrun), the first one calls the logger. If a logger raises an error, the error is printed, the logger is
not called again, and training continues.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError, message, printable
from regard.files.requirements import install_command

Logger = Callable[[str, Mapping[str, Any]], object]
"""A function that is called with the name and the values of each event of a training run."""


class Loggers:
    """The loggers of a run. A logger that raises an error is left out from then on.

    complain: a function that prints a message.

    >>> loggers = Loggers([lambda event, values: print(event, values)], print)
    >>> loggers("step", run="runs/x", step=50, metrics={"training/loss": 2.5})
    step {'run': 'runs/x', 'step': 50, 'metrics': {'training/loss': 2.5}}
    """

    def __init__(self, loggers: Sequence[Logger], complain: Callable[[str], None]):
        self.loggers, self.complain = list(loggers), complain

    def __bool__(self) -> bool:
        return bool(self.loggers)

    def __call__(self, event: str, **values: Any) -> None:
        for logger in list(self.loggers):
            try:
                logger(event, values)
            except Exception as error:  # code of the user, which must not end the training
                self.loggers.remove(logger)
                function = getattr(logger, "__qualname__", type(logger).__qualname__)
                name = f"the logger {getattr(logger, '__module__', '')}:{function}"
                name = logger.name if isinstance(logger, Board) else name
                text = printable(f"{type(error).__name__}: {error}").strip()
                self.complain(f"{name} failed: {text}; training continues without it")


def import_logger(name: str) -> Logger:
    """Import the logger that --logger names, "module:function". Modules of the current folder are found too.

    >>> import_logger("builtins:print")
    <built-in function print>
    """
    module, _, function = name.partition(":")
    expected = "module:function, such as tracking:log for the function log() of tracking.py"
    if not module or not function.isidentifier():
        raise ArgumentError(
            message("--logger", f"the value {printable(name)!r} is invalid", expected=expected)
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        logger = getattr(importlib.import_module(module), function)
    except Exception as error:  # code of the user
        problem = f"{name} cannot be imported: {type(error).__name__}: {printable(str(error))}"
        raise ArgumentError(message("--logger", problem, expected=expected)) from error
    if not callable(logger):
        raise ArgumentError(message("--logger", f"{name} is not a function", expected=expected))
    return logger


class Board:
    """A logger that writes the metrics of a training run, such as the loss over the steps, for TensorBoard.

    folder: the folder for the files. It is created with the first metrics.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "board"
    >>> board = Board(folder)
    >>> board("step", {"step": 50, "metrics": {"training/loss": 2.5}})
    >>> board("end", {"step": 50, "status": "ended"})
    >>> len(list(folder.iterdir()))
    1
    """

    def __init__(self, folder: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ArgumentError(
                message("Log(board=...)", "TensorBoard is not installed", hint=install_command("board"))
            ) from error
        self.folder, self.name = folder, f"writing TensorBoard files to {folder.name}"
        self._open = SummaryWriter
        self._writer: SummaryWriter | None = None

    def __call__(self, event: str, values: Mapping[str, Any]) -> None:
        if "metrics" in values:
            if self._writer is None:
                if self.folder.is_symlink():  # which may lead outside the run folder
                    problem = "is a symbolic link, not a folder"
                    raise OSError(errno.EINVAL, problem, str(self.folder))
                self.folder.mkdir(parents=True, exist_ok=True)
                # A resumed run repeats the steps after its checkpoint. purge_step hides the earlier points of
                # these steps.
                self._writer = self._open(str(self.folder), purge_step=values["step"])
            for name, value in values["metrics"].items():
                self._writer.add_scalar(name, value, values["step"])
        elif self._writer is not None and event == "checkpoint":
            self._writer.flush()
        elif self._writer is not None and event == "end":
            self._writer.close()
            self._writer = None
