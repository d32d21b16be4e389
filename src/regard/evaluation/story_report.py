"""StoryReport: the error rate of each task, as in the tables of the papers on memory networks.

A task is a set of questions of one kind, for example qa1 of the bAbI corpus.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from regard.errors import printable

__all__ = ["StoryReport", "TaskErrors", "story_report", "task_order"]

FAILED = 0.05
"""A task is failed if its error rate is larger than this (Weston et al. 2015)."""


@dataclass(frozen=True)
class TaskErrors:
    """The number of questions of a task, and how many of them were answered wrongly.

    task: the name of the task, for example "qa1".
    """

    task: str
    questions: int
    wrong: int

    @property
    def error(self) -> float:
        """The error rate of the task: the fraction of its questions that were answered wrongly."""
        return self.wrong / self.questions if self.questions else 0.0


@dataclass(frozen=True)
class StoryReport:
    """The error rates of a model on one or more tasks. A task is a set of questions, for example qa1 of bAbI.

    tasks: the number of questions and of errors of each task. The tasks are sorted by name: qa2 before qa10.

    >>> report = story_report(["qa1", "qa1", "qa2"], [True, False, True])
    >>> report.error, round(report.accuracy, 3), report.failed
    (0.25, 0.667, 1)
    """

    tasks: tuple[TaskErrors, ...]

    @property
    def error(self) -> float:
        """The unweighted mean of the error rates of the tasks, which papers on bAbI report."""
        return sum(each.error for each in self.tasks) / len(self.tasks) if self.tasks else 0.0

    @property
    def accuracy(self) -> float:
        """The fraction of all questions that were answered correctly."""
        questions = sum(each.questions for each in self.tasks)
        return 1 - sum(each.wrong for each in self.tasks) / questions if questions else 0.0

    @property
    def failed(self) -> int:
        """The number of tasks with an error rate above 5 %, which papers on bAbI call failed."""
        return sum(each.error > FAILED for each in self.tasks)

    def to_dict(self) -> dict[str, Any]:
        """Return the error rates of all tasks and their means as a dict for JSON; 0.05 is 5 % errors."""
        tasks = {
            each.task: {"error": each.error, "questions": each.questions, "wrong": each.wrong}
            for each in self.tasks
        }
        return {"error": self.error, "accuracy": self.accuracy, "failed": self.failed, "tasks": tasks}

    def errors(self) -> Mapping[str, float]:
        """Return a dict from the name of each task to its error rate, for example {"qa1": 0.05}."""
        return {each.task: each.error for each in self.tasks}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("task", overflow="fold")
        for name in ("questions", "wrong", "error"):
            table.add_column(name, justify="right")
        for each in self.tasks:
            style = "red" if each.error > FAILED else ""
            error = Text(f"{100 * each.error:.1f} %", style)
            table.add_row(Text(printable(each.task)), f"{each.questions:,}", f"{each.wrong:,}", error)
        yield table
        mean = f"mean error {100 * self.error:.1f} %, accuracy {100 * self.accuracy:.1f} %"
        more = f", {self.failed} of {len(self.tasks)} tasks with more than 5 % errors"
        yield Text(mean + (more if len(self.tasks) > 1 else ""), "bold")


def story_report(tasks: Sequence[str], correct: Sequence[bool]) -> StoryReport:
    """Count the wrong answers of each task.

    tasks: for each question, the name of its task, for example "qa1".
    correct: whether each question was answered correctly.
    """
    counts: dict[str, list[int]] = {}
    for task, right in zip(tasks, correct, strict=True):
        both = counts.setdefault(task, [0, 0])
        both[0] += 1
        both[1] += not right
    return StoryReport(tuple(TaskErrors(task, *counts[task]) for task in sorted(counts, key=task_order)))


def task_order(task: str) -> list[tuple[int, int, str]]:
    """Return a sort key for the name of a task, so that numbers in names are compared as numbers.

    >>> sorted(["qa10", "qa2", "qa1"], key=task_order)
    ['qa1', 'qa2', 'qa10']
    """
    parts = re.findall(r"[0-9]+|[^0-9]+", task)
    return [(0, int(each), "") if each.isdecimal() and len(each) < 18 else (1, 0, each) for each in parts]
