"""The option --task, for runs whose task is not part of Regard."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.tasks.task_table import task_of

if TYPE_CHECKING:
    from regard.runs.run_task import RunTask

__all__ = ["import_from_here", "task_of_run"]

OwnTask = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME",
        help="Task of the run, as package.module:Class, if it is not part of Regard.",
    ),
]


def import_from_here(task: str | None) -> None:
    """If the task is package.module:Class, let Python import this module from the current folder."""
    if isinstance(task, str) and ":" in task and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def task_of_run(folder: Path, task: str | None) -> type[RunTask]:
    """Return the class of the task of a run folder. task: the value of --task; None without --task."""
    import_from_here(task)
    return task_of(folder, task)
