"""TASKS, a dict of all tasks by name, and load(), a function that loads a run folder of any task."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from regard.errors import ArgumentError, UnknownName, message

if TYPE_CHECKING:
    from regard.runs.run_task import RunTask
    from regard.tasks.algorithms import AlgorithmsRun
    from regard.tasks.answering import AnsweringRun
    from regard.tasks.captioning import CaptioningRun
    from regard.tasks.classification import ClassificationRun
    from regard.tasks.language import LanguageRun
    from regard.tasks.translation import TranslationRun

TASKS = {
    "translation": "regard.tasks.translation.task:TranslationTask",
    "language": "regard.tasks.language.task:LanguageTask",
    "classification": "regard.tasks.classification.task:ClassificationTask",
    "captioning": "regard.tasks.captioning.task:CaptioningTask",
    "answering": "regard.tasks.answering.task:AnsweringTask",
    "algorithms": "regard.tasks.algorithms.task:AlgorithmsTask",
}
"""The module and class of each task, by name. The module is imported when the task is used."""

SETTINGS = {name: f"regard.tasks.{name}.settings:{name.capitalize()}Settings" for name in TASKS}
"""The module and class of the settings of each task in TASKS, by name. These modules do not import torch."""

DEFAULT = "translation"
"""The default task of `regard train`, if neither --task nor config.toml sets a task."""

OWN = "package.module:Class"
"""The form of the name of a task that is not in TASKS: the module, a colon, and the class."""


def find_task(name: str) -> type[RunTask]:
    """Return the class of a task.

    name: a name in TASKS, or, for a task of the user, its class as text: "package.module:Class".

    >>> find_task("translation").__name__
    'TranslationTask'
    """
    if not isinstance(name, str):
        raise UnknownName("task", name, TASKS, hint=f"for a task of your own: {OWN}")
    place = TASKS.get(name, name)
    module_name, colon, class_name = place.partition(":")
    if not colon:
        raise UnknownName("task", name, TASKS, hint=f"for a task of your own: {OWN}")
    from regard.runs.run_task import RunTask

    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but it imports a module that does not exist
        hint = "start regard in the folder that contains the package, or install the package"
        if module_name.endswith(".py"):
            dotted = module_name.removesuffix(".py").replace("/", ".").strip(".")
            hint = f"write the name of the module, without .py: --task {dotted}:{class_name}"
        raise ArgumentError(message("--task", f"there is no module {module_name!r}", hint=hint)) from None
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, RunTask)):
        problem = f"{module_name} has no class {class_name!r} that is a subclass of regard.runs.RunTask"
        raise ArgumentError(message("--task", problem))
    return found


def task_of(folder: str | Path, task: str | type[RunTask] | None = None) -> type[RunTask]:
    """Return the class of the task of a run folder, which is named in its config.toml.

    folder: the run folder. It may come from another person. So a module that is named in config.toml is
        imported only if it is in TASKS, or if `task` names it too.
    task: the name or class of the task. Required if the task is not in TASKS.
    """
    if isinstance(task, type):
        return task
    run_folder = importlib.import_module("regard.runs.run_folder")
    name = run_folder.config_of(Path(folder)).get("task", DEFAULT)
    place = str(Path(folder) / run_folder.CONFIG)
    if not isinstance(name, str) or (name not in TASKS and ":" not in name):
        raise UnknownName(f"task in {place}:", name, TASKS)
    if name not in TASKS and task is None:
        problem = f"the task of this run is {name!r}, which is not part of Regard"
        raise ArgumentError(
            message(place, problem, hint=f"if you trust the code: --task {name}, or task={name!r}")
        )
    if task is not None and task != name:
        hint = f"--task {name}, or task={name!r}"
        raise ArgumentError(message(place, f"the task of this run is {name!r}, not {task!r}", hint=hint))
    return find_task(name)


@overload
def load(folder: str | Path, *, task: Literal["translation"], **options: Any) -> TranslationRun: ...
@overload
def load(folder: str | Path, *, task: Literal["language"], **options: Any) -> LanguageRun: ...
@overload
def load(folder: str | Path, *, task: Literal["classification"], **options: Any) -> ClassificationRun: ...
@overload
def load(folder: str | Path, *, task: Literal["captioning"], **options: Any) -> CaptioningRun: ...
@overload
def load(folder: str | Path, *, task: Literal["answering"], **options: Any) -> AnsweringRun: ...
@overload
def load(folder: str | Path, *, task: Literal["algorithms"], **options: Any) -> AlgorithmsRun: ...
@overload
def load(folder: str | Path, *, task: str | type[RunTask] | None = ..., **options: Any) -> Any: ...
def load(
    folder: str | Path,
    *,
    checkpoint: str | int = "best",
    device: str = "auto",
    task: str | type[RunTask] | None = None,
    seed: int | None = None,
    **options: Any,
) -> Any:
    """Load a trained run of any task, such as a translator, a language model or an image captioner.

    folder: the run folder, --output of `regard train`.
    checkpoint: "best", "latest", or the number of a step.
    device: cpu, cuda (or gpu), mps, or auto for the fastest available.
    task: the task of the run, for type checkers and editors: load(folder, task="translation") returns a
        TranslationRun. A run of another task is an error. Required for a task of your own: its class, or
        package.module:Class.
    seed: one of the seeds of a run that was trained with --seeds; load(folder, seed=2) loads the run folder
        folder/seed-2.
    options: further arguments of the returned object; for translation, those of regard.decoding.Translator,
        for example search=Beam(size=5), engine="ctranslate2", which searches with CTranslate2 on the CPU, and
        precision: "auto" (default), "float32", "bfloat16", "float16" or "int8". "auto" is float16 on NVIDIA
        GPUs from Ampere on, otherwise float32. Half precision is faster on a GPU, int8 weights on a CPU, but
        rounding can change translations.

    >>> import regard, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try:
    ...         regard.load(folder)
    ...     except regard.DataError as error:
    ...         print(str(error).splitlines()[-1])
    hint: give a run folder, which regard train --output writes
    """
    if not isinstance(folder, str | os.PathLike):
        problem = f"folder is of type {type(folder).__name__}"
        raise ArgumentError(message("load()", problem, expected="a path: str or pathlib.Path"))
    if seed is not None:
        folder = importlib.import_module("regard.runs.run_folder").folder_of_seed(Path(folder), seed)
    kind = task_of(folder, task)
    stored = importlib.import_module("regard.runs.stored_runs").open_stored(kind, Path(folder), checkpoint)
    return kind.load(stored, device, **options)
