"""The algorithmic tasks of Graves et al. 2014 (section 4), and `overwrite`, by name.

A task generates random sequences of a given size, and converts sequences written by users to tensors. It also
computes how many slots the tape needs for a sequence. To add a task, write its class and add one line to
TAPE_TASKS.
"""

from __future__ import annotations

from typing import Any

from regard.data.copy_tasks import Copy, PrioritySort, RepeatCopy
from regard.data.recall_tasks import AssociativeRecall, DynamicNGrams, Overwrite
from regard.data.tape_task import LARGEST_SIZE, Sizes, TapeTask
from regard.errors import ArgumentError, UnknownName, message

__all__ = ["TAPE_TASKS", "DynamicNGrams", "Sizes", "TapeTask", "build_tape_task"]

TAPE_TASKS: dict[str, type[TapeTask]] = {
    each.name: each for each in (Copy, RepeatCopy, AssociativeRecall, DynamicNGrams, PrioritySort, Overwrite)
}
"""Name of an algorithmic task -> its class."""


def build_tape_task(name: str, **options: Any) -> TapeTask:
    """Return an algorithmic task, such as copy.

    name: a name in TAPE_TASKS.
    options: arguments of the class of the task. An argument that is None is ignored.

    >>> build_tape_task("copy", length=(1, 5)).longest
    {'length': 5}
    """
    if name not in TAPE_TASKS:
        raise UnknownName("task", name, TAPE_TASKS)
    kind = TAPE_TASKS[name]
    known = tuple(each for each in kind.__dataclass_fields__)  # type: ignore[attr-defined]
    chosen = {option: value for option, value in options.items() if value is not None}
    for option in chosen:
        if option not in known:
            raise UnknownName(f"option of the task {name}:", option, known)
    for option, value in chosen.items():
        if isinstance(value, tuple | list):
            low, high = value
            least = 0 if option == "changes" else 1
            if not least <= low <= high <= LARGEST_SIZE:
                expected = f"two numbers, the smaller first, from {least} to {LARGEST_SIZE:,}"
                raise ArgumentError(
                    message(f"data.{option}", f"the range {low} to {high} is invalid", expected=expected)
                )
            chosen[option] = (low, high)
    task = kind(**chosen)
    for end in (0, 1):
        task.check_sizes({name: each[end] for name, each in task.ranges.items()}, "[data]")
    return task
