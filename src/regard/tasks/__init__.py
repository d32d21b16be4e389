"""Tasks, such as translation, language modelling, text classification and image captioning.

`regard train` trains a model for a task. To add a task, add a folder for it here, and one line to TASKS in
task_table.py.

A task is a subclass of RunTask (runs/run_task.py). It defines its settings, data, model, loss and metrics,
and the object that load() returns.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["names_on_use"]


def names_on_use(package: str, **modules: str) -> Callable[[str], Any]:
    """Return the function __getattr__ of a package that imports its public names on first use.

    So the settings of a task can be imported without its models, which need torch.

    package: the name of the package.
    modules: the module of each public name; ".plan" is the module plan of the package.
    """

    def attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return attribute
