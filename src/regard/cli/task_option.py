"""The option --task, for runs whose task is not part of Regard."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.errors import shell_word
from regard.tasks.task_table import task_of

if TYPE_CHECKING:
    from regard.runs.run_task import RunTask

__all__ = ["import_from_here", "next_command", "resume_command", "task_of_run"]

WITH_TASK = ("show", "evaluate", "view", "average")
"""The commands that read a trained run and have the option --task."""

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
    """Return the class of the task of a run folder.

    task: the value of --task; None without --task.
    """
    import_from_here(task)
    return task_of(folder, task)


def next_command(task: type[RunTask], run: str | Path, command: str | None = None) -> str:
    """Return the command to suggest for a trained run, with --task if the task is not part of Regard.

    task: the class of the task.
    run: the run folder.
    command: the command to suggest, with {run} in place of the run folder. Default:
        RunSettings.next_command.

    >>> from regard.tasks.task_table import find_task
    >>> next_command(find_task("language"), "runs/x", "regard show {run}")
    'regard show runs/x'
    >>> next_command(find_task("algorithms"), "my runs/x")
    "regard solve 'my runs/x' --draw"
    """
    command = command or task.settings_type.next_command
    own = _own_option(task)
    if own and command.split()[1] not in WITH_TASK:
        command = "regard show {run}"
    return command.format(run=shell_word(run)) + own


def resume_command(task: type[RunTask], run: str | Path) -> str:
    """Return the command that resumes the training of a run, such as "regard train --output runs/x --resume".

    task: the class of the task. If it is not part of Regard, the command has the option --task.
    run: the run folder.
    """
    return f"regard train --output {shell_word(run)} --resume{_own_option(task)}"


def _own_option(task: type[RunTask]) -> str:
    place = f"{task.__module__}:{task.__qualname__}"
    return "" if place.startswith("regard.") else f" --task {place}"
