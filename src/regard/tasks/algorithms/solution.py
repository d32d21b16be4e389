"""Solution: the answer of a model to one sequence, its number of wrong bits, and the heads on the tape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from regard.errors import ArgumentError, message
from regard.layers.tape_heads import MEMORY_ROLE, READ_SITE, WRITE_SITE
from regard.tasks.algorithms.data import named_sizes
from regard.viewing import Seen, Site
from regard.viewing.html_document import safe
from regard.viewing.result import Result
from regard.viewing.tape_run import TapeRun

__all__ = ["Solution"]

LEAST_CHANCE = 2.0**-149
"""Lower limit of the probability of a right bit, so that its logarithm is finite. It is the smallest float32
number above 0."""


@dataclass(frozen=True, eq=False, repr=False)
class Solution(Result):
    """The answer of a model to one sequence.

    The sequence has T steps, each with X input bits and Y output bits. The tape has N slots of M numbers.

    task: the name of the task, such as "copy".
    sizes: the sizes of the sequence, such as {"length": 20}.
    inputs: (T, X), the input of each step.
    targets: (T, Y), the right answer.
    scored: (T,), True at the steps whose answers are scored.
    chances: (T, Y), the probability that a bit of the answer is 1.
    write: (W, T, N), the weights of W write heads on the slots; None for a model without a tape.
    read: (R, T, N), the weights of R read heads on the slots; None for a model without a tape.
    memory: (T + 1, N, M), the tape before the first step and after each step; None if it was not recorded.
    notes: messages about the sequence.

    >>> ones = numpy.ones((2, 3))
    >>> solution = Solution("copy", {"length": 1}, ones, ones, numpy.array([False, True]), ones * 0.5)
    >>> solution.bits, solution.wrong_bits, solution.answer, solution.target
    (3.0, 3, ['000'], ['111'])
    """

    task: str
    sizes: dict[str, int]
    inputs: NDArray[numpy.float64]
    targets: NDArray[numpy.float64]
    scored: NDArray[numpy.bool_]
    chances: NDArray[numpy.float64]
    write: NDArray[numpy.float64] | None = None
    read: NDArray[numpy.float64] | None = None
    memory: NDArray[numpy.float64] | None = None
    notes: tuple[str, ...] = ()
    page_title = "A sequence on the tape"
    most = 100

    @cached_property
    def bits(self) -> float:
        """The cross-entropy in bits: the sum over all scored bits of -log2 p(right value)."""
        right = numpy.where(self.targets > 0.5, self.chances, 1 - self.chances)[self.scored]
        return float(-numpy.log2(numpy.maximum(right, LEAST_CHANCE)).sum()) + 0.0  # not -0.0

    @property
    def wrong_bits(self) -> int:
        """The number of scored bits for which the model prefers the wrong value."""
        return int(((self.chances > 0.5) != (self.targets > 0.5))[self.scored].sum())

    @property
    def answer(self) -> list[str]:
        """The answer of the model: the most probable bits of each scored step, such as "01101001"."""
        return [_text(each) for each in self.chances[self.scored]]

    @property
    def target(self) -> list[str]:
        """The right answer: for each scored step, the bits as text, such as "01101001"."""
        return [_text(each) for each in self.targets[self.scored]]

    @property
    def title(self) -> str:
        count = int(self.scored.sum()) * self.targets.shape[1]
        wrong = f"{self.wrong_bits:,} of {count:,} bits wrong"
        return f"{self.task}, {named_sizes(self.sizes)}: {wrong}, {self.bits:.4g} bits"

    def tape_run(self) -> TapeRun:
        """Return the recorded positions of the heads on the tape at each step, to draw or save them.

        Raises ArgumentError if the model has no tape, or if its heads were not recorded.
        """
        if self.read is None or self.write is None:
            problem = "this model has no tape, or its heads were not recorded"
            raise ArgumentError(message("Solution.tape_run()", problem, hint="use a model with name = ntm"))
        arrays = self.inputs, self.chances, self.scored, self.write, self.read, self.memory
        return TapeRun(*arrays, title=self.title, notes=self.notes)

    def seen(self, title: str = "") -> Seen:
        """Return the weights of the heads on the slots of the tape, to draw, explore or save them.

        Each head has a matrix with a row for each step and a column for each slot.

        title: the title of drawings. Default: the task, the sizes and the scores.
        """
        rows = tuple(f"{step}" for step in range(1, len(self.inputs) + 1))
        sites: tuple[Site, ...] = ()
        columns: tuple[str, ...] = ()
        for name, weights in ((READ_SITE, self.read), (WRITE_SITE, self.write)):
            if weights is not None:
                columns = tuple(f"{slot}" for slot in range(weights.shape[2]))
                own = weights.astype(numpy.float32)
                sites = (*sites, Site(name, own, rows, columns, role=MEMORY_ROLE))
        numbers = tuple(range(len(columns))), tuple(range(len(rows)))
        return Seen(sites, columns, rows, *numbers, title or self.title, self.notes, -self.bits)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer, its scores and the positions of the heads as a dict for JSON.

        The position of a head at a step is the index of the slot on which the head has the largest weight.
        """
        heads = {}
        for name, weights in (("read", self.read), ("write", self.write)):
            if weights is not None:
                heads[name] = weights.argmax(-1).tolist()
        return {
            "task": self.task,
            "sizes": dict(self.sizes),
            "answer": self.answer,
            "target": self.target,
            "probabilities": [[round(float(each), 6) for each in row] for row in self.chances[self.scored]],
            "bits": self.bits,
            "wrong_bits": self.wrong_bits,
            "slots": heads,
            "notes": list(self.notes),
        }

    def drawing(self) -> TapeRun:
        return self.tape_run()

    def page_entry(self) -> TapeRun:
        return self.tape_run()

    def __str__(self) -> str:
        return " ".join(self.answer)

    def __repr__(self) -> str:
        return f"Solution({self.title!r})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.read is None or self.write is None:
            yield Text(self.title, "bold")
            yield Text(f"answer {' '.join(self.answer)}")
            yield Text(f"right  {' '.join(self.target)}", "dim")
        else:
            yield self.tape_run()

    def _repr_html_(self) -> str:
        return f"<p>{safe(self.title)}</p>" if self.read is None else self.tape_run()._repr_html_()


def _text(values: NDArray[numpy.float64]) -> str:
    return "".join("1" if each > 0.5 else "0" for each in values)
