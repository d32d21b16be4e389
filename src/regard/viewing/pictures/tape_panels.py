"""Draw the heads of a neural Turing machine over time, alone, or below its inputs and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from regard.errors import ArgumentError, message
from regard.viewing.as_arrays import checked_weights
from regard.viewing.pictures.canvas import SIZE, Canvas, same_size
from regard.viewing.pictures.colors import DARK, QUIET, label
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.tape_run import TapeRun
from regard.viewing.terminal import Thumbnails, pooled_down

__all__ = ["slot_history", "tape", "tape_animation", "tape_panels"]

BAND = 330.0
"""Maximum width and maximum height of a matrix of tape(), in points."""

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


def tape(read: Any, write: Any = None, title: str = "", about: str = "") -> Picture:
    """Draw the read and write weights of a Neural Turing Machine over time (Graves et al. 2014, figure 6).

    read: (T, N), the weights of the read head at each of T time steps, for N memory slots.
    write: (T, N), the weights of the write head. Default: they are not drawn.
    title: a title.
    about: a line below the title.

    The horizontal axis is time, the vertical axis the memory slots, as in the paper.

    >>> import numpy
    >>> from regard.viewing import tape
    >>> print(tape(numpy.eye(4), numpy.eye(4)[::-1]))
    write
          ██
        ██
      ██
    ██
    read
    ██
      ██
        ██
          ██
    """
    inputs = {name: each for name, each in (("write", write), ("read", read)) if each is not None}
    arrays = {name: checked_weights("tape()", each, "TN", None)[0] for name, each in inputs.items()}
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) > 1 or not all(array.size for array in arrays.values()):
        problem = ", ".join(f"{name} has shape {array.shape}" for name, array in arrays.items())
        raise ArgumentError(
            message("tape()", problem, expected="read and write of the same shape (T, N); T and N at least 1")
        )
    steps, places = shapes.pop()
    cell = min(max(BAND / max(steps, places), FINEST), COARSEST)
    canvas = Canvas(label(title, 90) or "Read and write weights over time", about)
    most = max(float(array.max(initial=0.0)) for array in arrays.values()) or 1.0
    left, wide, high = 0.0, min(steps * cell, BAND), min(places * cell, BAND)
    for name, array in arrays.items():
        canvas.words(left, -10, name, SIZE)
        small = pooled_down(array.T, int(BAND / cell) or 1, int(BAND / cell) or 1) / most
        _cells(canvas, left, 0, small, wide / small.shape[1], high / small.shape[0])
        canvas.words(left, high + 10, f"time, {steps:,} steps", 8, color=QUIET)
        left += wide + 24
    _side(canvas, high / 2, f"memory, {places:,} slots")
    canvas.scale(0, high + 28, most)
    canvas.head(label(title, 90), label(about, 110))
    drawn = [Thumbnails(name, (pooled_down(array.T, 16, 60) / most,)) for name, array in arrays.items()]
    return Picture([canvas], Group(*_heading(title), *drawn))


def _cells(
    canvas: Canvas, x: float, y: float, levels: NDArray[numpy.float64], width: float, height: float
) -> None:
    """Draw a panel of cells, with gaps between them if they are large enough."""
    canvas.cells(x, y, levels, width, height, gap=0.5 if min(width, height) > 4 else 0)


def _side(canvas: Canvas, y: float, text: str) -> None:
    """Write a text from bottom to top, on the left of the panels."""
    canvas.words(-9, y, text, 8, anchor="middle", angle=90, color=QUIET)


def _heading(title: str) -> list[Text]:
    return [Text(label(title, 90), "bold")] if title else []


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
        _cells(canvas, left, top, shown, wide, height)
        if animated:
            x = left + (until - 1) * wide
            canvas.box(x - 0.5, top + len(values) * height + 2, wide, 2.5, DARK)
    bottom = above + 30 + (last - first) * high
    _side(canvas, above + 30 + (bottom - above - 30) / 2, f"slots {first} to {last - 1}")
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
    return Group(*_heading(run.title), *drawn, *(Text(each, "dim") for each in run.notes))


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
    _cells(canvas, 0, 0, values_TM.T / most, wide, COARSEST)
    bottom = values_TM.shape[1] * COARSEST + 12
    _cells(canvas, 0, bottom, heads, wide, COARSEST)
    for row, name in enumerate(("write", "read")):
        canvas.words(-6, bottom + (row + 0.5) * COARSEST, name, 8, anchor="end", color=QUIET)
    canvas.words(0, bottom + 2 * COARSEST + 12, f"time, {run.steps:,} steps", 8, color=QUIET)
    canvas.scale(90, bottom + 2 * COARSEST + 12, most, -most)
    canvas.head(title, label(run.title, 100))
    names = ("contents", numpy.abs(values_TM.T) / most), ("write and read weights", heads)
    drawn = [Thumbnails(name, (pooled_down(each, SHOWN_ROWS, SHOWN_COLUMNS),)) for name, each in names]
    return Picture([canvas], Group(Text(title, "bold"), *drawn))
