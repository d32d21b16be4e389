"""TapeRun: the steps of a neural Turing machine on one sequence, drawn as heads over a tape; and tape()."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from regard.errors import ArgumentError, message
from regard.viewing.as_arrays import checked_weights
from regard.viewing.html_document import article_page, fragment_of, image_uri, safe
from regard.viewing.pictures.canvas import DARK, QUIET, SIZE, Canvas, label
from regard.viewing.pictures.picture_files import Illustrated, Picture, finished
from regard.viewing.terminal import Thumbnails, pooled_down

POINTED = 0.02
"""Slots at the ends of the tape are not drawn if no head has a weight above POINTED on them at any step."""

FEWEST = 8
"""Pictures show at least this many slots, or all slots if the tape has fewer."""

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


@dataclass(frozen=True, eq=False, repr=False)
class TapeRun(Illustrated):
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

    def picture(self) -> Picture:
        """Return a Picture of the inputs, the answers, and the weights of the heads on the tape at each step.

        The picture looks like figure 6 of Graves et al. (2014): inputs above write weights, answers above
        read weights; the horizontal axis is time. Answers are drawn only at the steps that are scored. If
        there are several heads, the largest weight of all heads is drawn for each slot. If the picture is
        saved as .gif, it is an animation.
        """
        return Picture([_canvas(self, self.steps)], _terminal(self), animation=self.animation)

    def animation(self, seconds: float = 0.25) -> Picture:
        """Return an animated Picture with a frame for each step, which shows all steps so far.

        seconds: how long a frame is shown.
        """
        if self.steps > FRAMES:
            problem, expected = f"the sequence has {self.steps:,} steps", f"at most {FRAMES} steps"
            raise ArgumentError(message("an animation of the tape", problem, expected=expected))
        frames = [_canvas(self, step + 1, animated=True) for step in range(self.steps)]
        return Picture(frames, _terminal(self), seconds)

    def slot_picture(self, slot: int | None = None) -> Picture:
        """Return a Picture of the contents of one slot after each step: what is written and replaced.

        The weights of the write heads and of the read heads on this slot are drawn below.

        slot: the number of the slot. Default: the slot whose contents were replaced most.
        """
        slot, slots = self.most_changed_slot() if slot is None else slot, self.read.shape[2]
        if self.memory is None:
            raise ArgumentError(message("TapeRun", "the contents of the tape were not recorded"))
        if not 0 <= slot < slots:
            raise ArgumentError(message("--slot", f"there is no slot {slot}", expected=f"0 to {slots - 1}"))
        return _slot_history(self, slot, self.memory[1:, slot])

    def html(self) -> Iterator[str]:
        """Yield the HTML of the sequence: its title, the picture, and its notes."""
        drawn = self.picture()
        width, height = drawn.frames[0].size
        about = f"inputs, answers, and the weights of the write and read heads at {self.steps} steps"
        source = image_uri("svg+xml", drawn.svg().encode())
        yield f'<h2 dir="auto">{safe(self.title)}</h2>' if self.title else ""
        yield f'<img src="{source}" alt="{safe(about)}" width="{width:.0f}" height="{height:.0f}">'
        yield from (f'<p class="quiet" dir="auto">{safe(each)}</p>' for each in self.notes)

    def page(self) -> str:
        return article_page("Sequences on the tape", ("<article>", *self.html(), "</article>"))

    def __repr__(self) -> str:
        return f"TapeRun({self.steps} steps, {self.read.shape[2]} slots)"

    def _repr_html_(self) -> str:
        return fragment_of(self.html())


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
    canvas = Canvas()
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
    drawn = [Thumbnails(name, (pooled_down(array.T, 16, 60) / most,)) for name, array in arrays.items()]
    name = "Read and write weights over time"
    return finished(canvas, Group(*_heading(title), *drawn), title, about, name=name, content=about)


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


def _slot_history(run: TapeRun, slot: int, values_TM: NDArray[numpy.float64]) -> Picture:
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
