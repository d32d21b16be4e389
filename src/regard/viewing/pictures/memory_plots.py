"""Draw the attention of Memory Networks (hops()) and of Neural Turing Machines (tape()) over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from regard.errors import ArgumentError, message
from regard.viewing.as_arrays import check_words, checked_weights
from regard.viewing.pictures.canvas import SIZE, Canvas
from regard.viewing.pictures.colors import QUIET, label
from regard.viewing.pictures.matrix import grid, numbers_of
from regard.viewing.pictures.picture_files import Picture
from regard.viewing.terminal import Thumbnails, draw, pooled_down

__all__ = ["hops", "tape"]

LONGEST = 60
"""Maximum width of a sentence of a story in character cells of the terminal.

Longer sentences are truncated."""

TERMINAL, HOP_CELLS, SHORTEST = 78, 7, 24
"""Sizes in character cells for hops() in the terminal.

TERMINAL: width of the drawing. HOP_CELLS: width of the column of a hop. SHORTEST: minimum width of the
    sentences, even if the drawing becomes wider than TERMINAL."""

BAND, FINEST, COARSEST = 330.0, 1.5, 12.0
"""Sizes in points for tape().

BAND: maximum width and maximum height of a matrix.
FINEST, COARSEST: minimum and maximum size of a cell."""


def hops(
    weights: Any,
    sentences: Sequence[object],
    question: str = "",
    answer: str = "",
    title: str = "",
) -> Picture:
    """Draw how much each hop attends to each sentence of a story (Sukhbaatar et al. 2015).

    weights: (K, S), the weights of K hops for S sentences.
    sentences: the S sentences of the story.
    question: the question about the story, written above the matrix.
    answer: the answer of the model, written below the matrix.
    title: a title.

    >>> from regard.viewing import hops
    >>> print(hops([[0.1, 0.9], [0.8, 0.2]], ["Mary took the milk", "Mary went home"], "where is the milk?"))
    where is the milk?
                        hop 1  hop 2
    Mary took the milk  .10    .80 ▓
        Mary went home  .90 █  .20 ░
                       0  ░▒▓█ 1
    """
    array, most = checked_weights("hops()", weights, "TS", None)
    check_words("hops()", "sentences", sentences, array, axis=1)
    names = [f"hop {number}" for number in range(1, len(array) + 1)]
    labels = [label(each, LONGEST) for each in sentences]
    canvas = grid(array.T / most, labels, names, numbers_of(array.T), longest=LONGEST)
    canvas.title = label(title or question, 90) or "Hops over a story"
    below = [f"answer: {label(answer, LONGEST)}"] if answer else []
    for line in below:
        canvas.words(canvas.bounds[0], canvas.bounds[3] + 14, line)
    canvas.head(label(title, 90), label(question, 100))
    room = max(TERMINAL - HOP_CELLS * len(names), SHORTEST)
    drawn = draw(array.T, labels, names, question or title or None, numbers=True, longest_row=room)
    return Picture([canvas], Group(drawn, *map(Text, below)))


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
    (steps, places) = shapes.pop()
    cell = min(max(BAND / max(steps, places), FINEST), COARSEST)
    canvas = Canvas(label(title, 90) or "Read and write weights over time", about)
    most = max(float(array.max(initial=0.0)) for array in arrays.values()) or 1.0
    left = 0.0
    for name, array in arrays.items():
        canvas.words(left, -10, f"{name}", SIZE)
        small = pooled_down(array.T, int(BAND / cell) or 1, int(BAND / cell) or 1)
        wide, high = (min(size * cell, BAND) for size in (steps, places))
        canvas.cells(
            left, 0, small / most, wide / small.shape[1], high / small.shape[0], gap=0.5 if cell > 4 else 0
        )
        canvas.words(left, high + 10, f"time, {steps:,} steps", 8, color=QUIET)
        left += wide + 24
    high = min(places * cell, BAND)
    canvas.words(-9, high / 2, f"memory, {places:,} slots", 8, anchor="middle", angle=90, color=QUIET)
    canvas.scale(0, high + 28, most)
    canvas.head(label(title, 90), label(about, 110))
    drawn = [Thumbnails(name, (pooled_down(array.T, 16, 60) / most,)) for name, array in arrays.items()]
    heading = [Text(label(title, 90), "bold")] if title else []
    return Picture([canvas], Group(*heading, *drawn))
