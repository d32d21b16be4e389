"""Draw the steps of a neural Turing machine: inputs and answers, and below them the heads on the tape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from regard.errors import ArgumentError, message
from regard.viewing.pictures.canvas import SIZE, Canvas, same_size
from regard.viewing.pictures.colors import DARK, QUIET, label
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.tape_run import TapeRun
from regard.viewing.terminal import Thumbnails, pooled_down

__all__ = ["slot_history", "tape_animation", "tape_panels"]

WIDE, HIGH = 330.0, 260.0
"""The largest width and height of a panel, in points."""

FINEST, COARSEST = 1.5, 11.0
"""The smallest and the largest size of a cell, in points."""

FRAMES = 400
"""The largest number of steps of an animation."""

SHOWN_ROWS, SHOWN_COLUMNS = 24, 76
"""The largest number of rows and columns of a panel in the terminal."""

VISIBLE = 0.125
"""In the terminal, weights up to this one are drawn like 0."""

MOST_RANGES = 4
"""The largest number of ranges of slots in a title on the terminal."""


def tape_panels(run: TapeRun) -> Picture:
    """Draw all steps: inputs above write weights, answers above read weights (Graves et al. 2014, figure 6).

    The horizontal axis is time. Answers are drawn only at the steps that are scored. If there are several
    heads, the largest weight of all heads is drawn for each slot.
    """
    return Picture([_canvas(run, run.steps)], _terminal(run))


def tape_animation(run: TapeRun, seconds: float = 0.25) -> Picture:
    """Draw an animation with a frame for each step. A frame shows all steps so far."""
    if run.steps > FRAMES:
        problem = f"the sequence has {run.steps:,} steps"
        raise ArgumentError(message("an animation of the tape", problem, expected=f"at most {FRAMES} steps"))
    frames = [_canvas(run, step + 1, animated=True) for step in range(run.steps)]
    return Picture(same_size(frames), _terminal(run), seconds)


def _panels(run: TapeRun) -> dict[str, NDArray[numpy.float64]]:
    """Return the four matrices to draw, (rows, T), by name.

    The order is inputs, answers, write weights, read weights. The first two are drawn above the last two.
    """
    first, last = run.slots
    answers = numpy.where(run.scored[:, None], run.answers, 0.0)
    return {
        "inputs": numpy.clip(run.inputs.T, -1, 1),
        "answers": answers.T,
        "write weights": run.write.max(0)[:, first:last].T,
        "read weights": run.read.max(0)[:, first:last].T,
    }


def _canvas(run: TapeRun, until: int, animated: bool = False) -> Canvas:
    """Draw the first `until` steps."""
    panels = _panels(run)
    first, last = run.slots
    wide = min(max(WIDE / run.steps, FINEST), COARSEST)
    high = min(max(HIGH / max(last - first, 1), FINEST), COARSEST)
    title = label(run.title, 90) or "A neural Turing machine at work"
    canvas = Canvas(title, "inputs and answers above, write and read weights below; time from left to right")
    above = max(len(panels["inputs"]), len(panels["answers"])) * COARSEST
    for number, (name, values) in enumerate(panels.items()):
        height = COARSEST if number < 2 else high
        left = (number % 2) * (run.steps * wide + 28)
        top = (above - len(values) * height) if number < 2 else above + 30
        shown = values.copy()
        shown[:, until:] = 0.0
        canvas.words(left, top - 9, name, SIZE)
        canvas.cells(left, top, shown, wide, height, gap=0.5 if min(wide, height) > 4 else 0)
        if animated:
            x = left + (until - 1) * wide
            canvas.box(x - 0.5, top + len(values) * height + 2, wide, 2.5, DARK)
    bottom = above + 30 + (last - first) * high
    canvas.words(
        -9,
        above + 30 + (bottom - above - 30) / 2,
        f"slots {first} to {last - 1}",
        8,
        anchor="middle",
        angle=90,
        color=QUIET,
    )
    canvas.words(0, bottom + 12, f"time, {run.steps:,} steps", 8, color=QUIET)
    canvas.scale(90, bottom + 12, 1.0)
    canvas.head(title, _about(run, until - 1) if animated else "")
    if run.notes and not animated:
        canvas.foot(*run.notes)
    return canvas


def _about(run: TapeRun, step: int) -> str:
    """Return a line of text about one step: its input, the slots of the heads, and its answer."""
    bits = "".join(f"{each:.0f}" if each in (0, 1) else f" {each:.2f} " for each in run.inputs[step])
    answer = "".join("1" if each > 0.5 else "0" for each in run.answers[step])
    text = f"step {step + 1} of {run.steps}: input {bits}, writes slot {run.strongest('write')[step]}"
    text = f"{text}, reads slot {run.strongest('read')[step]}"
    return f"{text}, answers {answer}" if run.scored[step] else text


def _terminal(run: TapeRun) -> RenderableType:
    """Return the panels for the terminal. Slots that no head uses are left out: their rows would be blank."""
    first, last = run.slots
    most_N = numpy.maximum(run.write.max((0, 1)), run.read.max((0, 1)))[first:last]
    used = numpy.flatnonzero(most_N > VISIBLE).tolist() or list(range(last - first))
    slots = _ranges([first + slot for slot in used])
    heading = [Text(label(run.title, 90), "bold")] if run.title else []
    names = {
        "write weights": f"write weights, slots {slots}",
        "read weights": f"read weights, slots {slots}",
    }
    drawn = [
        Thumbnails(
            names.get(name, name),
            (pooled_down(numpy.abs(values[used] if name in names else values), SHOWN_ROWS, SHOWN_COLUMNS),),
        )
        for name, values in _panels(run).items()
    ]
    return Group(*heading, *drawn, *(Text(each, "dim") for each in run.notes))


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending integers as text: the ranges that they form, or the smallest and largest of many.

    >>> _ranges([0, 1, 2, 7, 120, 121])
    '0 to 2, 7, 120 to 121'
    """
    starts = [each for each in numbers if each - 1 not in numbers]
    ends = [each for each in numbers if each + 1 not in numbers]
    if len(starts) > MOST_RANGES:
        return f"{numbers[0]} to {numbers[-1]} ({len(numbers)} of them are used)"
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True))


def slot_history(run: TapeRun, slot: int) -> Picture:
    """Draw the contents of one slot after each step: what is written, erased and replaced.

    The weights of the write heads and of the read heads on this slot are drawn below.
    """
    slots = run.read.shape[2]
    if run.memory is None:
        raise ArgumentError(message("slot_history()", "the contents of the tape were not recorded"))
    if not 0 <= slot < slots:
        raise ArgumentError(message("--slot", f"there is no slot {slot}", expected=f"0 to {slots - 1}"))
    values_TM = run.memory[1:, slot]
    most = float(numpy.abs(values_TM).max()) or 1.0
    heads = numpy.stack((run.write[:, :, slot].max(0), run.read[:, :, slot].max(0)))
    wide = min(max(WIDE * 1.6 / run.steps, FINEST), COARSEST)
    title = f"The contents of slot {slot}"
    canvas = Canvas(title, "one column for each step; below, the weights of the write and read heads")
    gap = 0.5 if wide > 4 else 0
    canvas.cells(0, 0, values_TM.T / most, wide, COARSEST, gap=gap)
    bottom = values_TM.shape[1] * COARSEST + 12
    canvas.cells(0, bottom, heads, wide, COARSEST, gap=gap)
    for row, name in enumerate(("write", "read")):
        canvas.words(-6, bottom + (row + 0.5) * COARSEST, name, 8, anchor="end", color=QUIET)
    canvas.words(0, bottom + 2 * COARSEST + 12, f"time, {run.steps:,} steps", 8, color=QUIET)
    canvas.scale(90, bottom + 2 * COARSEST + 12, most, -most)
    canvas.head(title, label(run.title, 100))
    names = ("contents", numpy.abs(values_TM.T) / most), ("write and read weights", heads)
    drawn = [Thumbnails(name, (pooled_down(each, SHOWN_ROWS, SHOWN_COLUMNS),)) for name, each in names]
    return Picture([canvas], Group(Text(title, "bold"), *drawn))
