"""Open trained runs for commands, and the commands to suggest for a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import ArgumentError, message, printable, shell_word, shown
from regard.runs.run_folder import config_of
from regard.tasks.task_table import TASKS, find_task, load, task_of

if TYPE_CHECKING:
    from regard.runs.run_task import RunTask

WITH_TASK = ("show", "evaluate", "view", "average")
"""The commands that read a trained run and have the option --task."""


def set_threads(options: Mapping[str, Any]) -> None:
    """Set the number of CPU threads of the option --threads; if it is not set, the fastest on a CPU.

    options: the values of all options of the command: threads and device.
    """
    from regard.runs.cpu_threads import choose_threads
    from regard.runs.devices import choose_device

    choose_threads(choose_device(options["device"]), options["threads"], short=True)


def encoding_of(run: Path, files: Iterable[str] | None, encoding: str | None) -> str | None:
    """Return the encoding of the input files of a command: that of the training data if they are not UTF-8.

    files: the names of the files. - is standard input, which is not tested.
    encoding: the value of --encoding. If it is set, it is the result.
    """
    from regard.data.line_io import say
    from regard.tasks.file_checks import is_utf_8

    trained = config_of(run).get("data", {}).get("encoding")
    if encoding is not None or not isinstance(trained, str) or all(map(is_utf_8, files or ())):
        return encoding
    say(f"note: the files are read as {printable(trained)}, the encoding of the training data")
    return trained


def open_run(run: Path, options: Mapping[str, Any], **more: Any) -> Any:
    """Load the translator of a run, and report checkpoints that were skipped because they are damaged.

    options: the values of all options of the command.
    more: keyword arguments of Translator, and `precision`. The default precision is float32, because most
        commands measure something.
    """
    return open_task("translation", run, options, **{"precision": "float32", **more})


def open_task(task: str, run: Path, options: Mapping[str, Any], **more: Any) -> Any:
    """Load the trained model of a run, and report checkpoints that were skipped because they are damaged.

    Raises ArgumentError if the run is of another task; the hint is a command that works with the run.

    task: the task that the command is for, such as "translation".
    options: the values of all options of the command.
    more: further arguments of regard.tasks.task_table.load().
    """
    from regard.runs.run_task import task_name

    kind = task_in_regard(run, task)
    if not issubclass(kind, find_task(task)):
        hint = f"for this run: {kind.settings_type.next_command.format(run=shell_word(run))}"
        problem = f"this is not a run of the task {task}, but of the task {task_name(kind)!r}"
        raise ArgumentError(message(shown(run), problem, hint=hint))
    from regard.data.line_io import say

    set_threads(options)
    loaded = load(run, checkpoint=options["checkpoint"], device=options["device"], **more)
    for note in loaded.notes:
        say(note)
    return loaded


def task_in_regard(run: Path, expected: str) -> type[RunTask]:
    """Return the class of the task of a run. Raise an error if the task is not part of Regard.

    Commands without the option --task use this function.

    expected: the tasks whose runs the command accepts, for the error message.
    """
    from regard.runs.run_folder import config_of

    name = config_of(run).get("task")
    if isinstance(name, str) and ":" in name and name not in TASKS:
        hint = f"for this run, if you trust the code of its task: regard show {shell_word(run)} --task {name}"
        problem = f"this is not a run of the task {expected}, but of the task {name!r}"
        raise ArgumentError(message(shown(run), problem, hint=hint))
    return task_of(run)


def one_sentence(
    command: str, sentence: str | None, text: str | None, usage: str = 'RUN --text "..."'
) -> str:
    """Return the sentence to translate: the positional argument, or the value of --text.

    usage: the arguments that the hint of the error shows after the command.

    Raises ArgumentError if the command line has both of them or neither, or if the sentence is empty.

    >>> one_sentence("regard view", None, "나는 고양이로소이다")
    '나는 고양이로소이다'
    """
    if sentence is not None and text is not None:
        problem = "a sentence is also given as an argument"
        raise ArgumentError(
            message("--text", problem, expected="the sentence as an argument, or --text, but not both")
        )
    if sentence is not None and os.path.isfile(sentence):
        problem = "this is a file, but the argument is a sentence"
        hint = f"to use the name itself as the sentence: --text {shell_word(sentence)}"
        raise ArgumentError(message(shown(sentence), problem, expected="one sentence", hint=hint))
    sentence = text if sentence is None else sentence
    if not (sentence or "").strip():
        problem = "the sentence is missing" if sentence is None else "the sentence is empty"
        raise ArgumentError(message(command, problem, hint=f"{command} {usage}"))
    return str(sentence)


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
    command: the command to suggest, with {run} in place of the run folder; by default, that of the settings.

    >>> from regard.tasks.task_table import find_task
    >>> next_command(find_task("language"), "runs/x", "regard show {run}")
    'regard show runs/x'
    >>> next_command(find_task("algorithms"), "my runs/x")
    "regard solve 'my runs/x' --draw"
    """
    command = command or task.settings_type.next_command
    option = own_task(task)
    if option and command.split()[1] not in WITH_TASK:
        command = "regard show {run}"
    return command.format(run=shell_word(run)) + option


def resume_command(task: type[RunTask] | str, run: str | Path) -> str:
    """Return the command that resumes a run, such as "regard train --output runs/x --resume".

    task: the task, or its name. If it is not part of Regard, the command has the option --task.
    run: the run folder.
    """
    return f"regard train --output {shell_word(run)} --resume{own_task(task)}"


def own_task(task: type[RunTask] | str) -> str:
    """Return the option --task for a task that is not part of Regard; "" for others."""
    name = task if isinstance(task, str) else f"{task.__module__}:{task.__qualname__}"
    return f" --task {printable(name)}" if ":" in name and not name.startswith("regard.") else ""
