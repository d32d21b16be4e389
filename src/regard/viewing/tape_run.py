"""TapeRun: the inputs, outputs, heads and tape of a neural Turing machine at each step of one sequence."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType

from regard.errors import ArgumentError, message
from regard.viewing.as_arrays import checked_weights
from regard.viewing.html_document import file_to_write

__all__ = ["TapeRun"]

POINTED = 0.02
"""Slots at the ends of the tape are not drawn if no head has a weight above POINTED on them at any step."""

FEWEST = 8
"""Pictures show at least this many slots, or all slots if the tape has fewer."""


@dataclass(frozen=True, eq=False, repr=False)
class TapeRun:
    """The steps of a neural Turing machine on one sequence: print it, show it in a notebook, or save it.

    inputs: (T, X), the input of each step.
    answers: (T, Y), the output of each step: the probability that a bit of the answer is 1.
    scored: (T,), True at the steps whose answers are scored.
    write: (W, T, N), the weights of W write heads on N slots.
    read: (R, T, N), the weights of R read heads on N slots.
    memory: (T + 1, N, M), the slots before the first step and after each step. None if not recorded.
    title: the text above pictures.
    notes: the texts below pictures.

    >>> eye = numpy.eye(3)
    >>> run = TapeRun(eye, eye, [False, False, True], eye[None], eye[None])
    >>> run.slots, run.strongest("write")
    ((0, 3), [0, 1, 2])
    """

    inputs: NDArray[numpy.float64]
    answers: NDArray[numpy.float64]
    scored: NDArray[numpy.bool_]
    write: NDArray[numpy.float64]
    read: NDArray[numpy.float64]
    memory: NDArray[numpy.float64] | None = None
    title: str = ""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("inputs", "answers"):
            object.__setattr__(self, name, numpy.asarray(getattr(self, name), numpy.float64))
        object.__setattr__(self, "scored", numpy.asarray(self.scored, bool))
        for name in ("write", "read"):
            weights, _ = checked_weights("TapeRun()", getattr(self, name), "HTN", None)
            object.__setattr__(self, name, weights)
        steps = len(self.inputs)
        arrays = {"answers": len(self.answers), "scored": len(self.scored)}
        arrays |= {"write": self.write.shape[1], "read": self.read.shape[1]}
        if self.memory is not None:
            object.__setattr__(self, "memory", numpy.asarray(self.memory, numpy.float64))
            arrays["memory"] = len(self.memory) - 1
        wrong = {name: count for name, count in arrays.items() if count != steps}
        if wrong or not steps or self.inputs.ndim != 2 or self.answers.ndim != 2:
            problem = ", ".join(f"{name} has {count} steps" for name, count in wrong.items())
            problem = problem or f"inputs has shape {self.inputs.shape}"
            expected = f"as many steps as inputs ({steps}), at least 1; inputs (T, X) and answers (T, Y)"
            raise ArgumentError(message("TapeRun()", problem, expected=expected))

    @property
    def steps(self) -> int:
        return len(self.inputs)

    @property
    def slots(self) -> tuple[int, int]:
        """The range of slots in pictures, as (start, stop). The slot `stop` is not included.

        Slots at the ends of the tape are left out if the weights of all heads on these slots are always
        small.
        """
        most_N = numpy.maximum(self.write.max((0, 1)), self.read.max((0, 1)))
        places = numpy.flatnonzero(most_N > POINTED)
        first, last = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, len(most_N))
        last = min(max(last, first + FEWEST), len(most_N))
        return max(min(first, last - FEWEST), 0), last

    def strongest(self, kind: str, head: int = 0) -> list[int]:
        """Return, for each step, the index of the slot with the largest weight of one head.

        kind: "write" or "read".
        head: the index of the head among the heads of this kind.
        """
        weights_TN = {"write": self.write, "read": self.read}[kind][head]
        return [int(each) for each in weights_TN.argmax(1)]

    def most_changed_slot(self) -> int:
        """Return the index of the slot whose contents were replaced most.

        Each step changes the contents of a slot by some amount. Slots are compared by their second largest
        change, because this change is small for a slot that was written only once.
        """
        if self.memory is None:
            raise ArgumentError(message("TapeRun", "the contents of the tape were not recorded"))
        changes_TN = numpy.abs(numpy.diff(self.memory, axis=0)).sum(-1)
        second = numpy.sort(changes_TN, axis=0)[-2] if len(changes_TN) > 1 else changes_TN[0]
        return int(second.argmax())

    def picture(self) -> Any:
        """Return a Picture of the inputs, the answers, and the weights of the heads on the tape at each step.

        The picture looks like figure 6 of Graves et al. (2014). If it is saved as .gif, it is an animation.
        """
        return importlib.import_module("regard.viewing.pictures.tape_panels").tape_panels(self)

    def animation(self, seconds: float = 0.25) -> Any:
        """Return an animated Picture with a frame for each step.

        seconds: how long a frame is shown.
        """
        return importlib.import_module("regard.viewing.pictures.tape_panels").tape_animation(self, seconds)

    def slot_picture(self, slot: int | None = None) -> Any:
        """Return a Picture of the contents of one slot after each step.

        slot: the number of the slot. Default: the slot whose contents were replaced most.
        """
        module = importlib.import_module("regard.viewing.pictures.tape_panels")
        return module.slot_history(self, self.most_changed_slot() if slot is None else slot)

    def save(self, path: str | Path) -> tuple[str, ...]:
        """Write a picture, an animation (.gif) or an HTML page.

        An existing file is replaced only when the new file is complete.

        path: the file; it ends in .png, .svg, .pdf, .gif or .html.

        Returns hints for the user about characters that no installed font has.
        """
        suffix = file_to_write(path).suffix.lower()
        if suffix == ".html":
            importlib.import_module("regard.viewing.tape_page").save_tape_page(path, [self])
            return ()
        hints: tuple[str, ...] = (self.animation() if suffix == ".gif" else self.picture()).save(path)
        return hints

    def __repr__(self) -> str:
        return f"TapeRun({self.steps} steps, {self.read.shape[2]} slots)"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self.picture().terminal

    def _repr_html_(self) -> str:
        return str(importlib.import_module("regard.viewing.tape_page").tape_fragment(self))
