"""steps(): draw one attention call step by step, from query and keys to output, as grids of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text

from regard.errors import ArgumentError, UnknownName, message
from regard.viewing.as_arrays import as_numpy
from regard.viewing.pictures.canvas import QUIET, Canvas, label, width_of
from regard.viewing.pictures.matrix import grid
from regard.viewing.pictures.picture_files import Picture, finished

FORMULAS = {
    "dot": "query · key",
    "scaled_dot": "query · key / √D",
    "cosine": "query · key / (|query| |key|)",
}
"""The score functions without learned parameters, and their formulas."""

WIDTH, GAP = 36.0, 26.0
"""WIDTH: smallest width of a cell. GAP: distance between grids. Both in points."""

ROWS, COLUMNS = 12, 8
"""Maximum number of words (ROWS), and of components of a vector (COLUMNS), that are drawn."""


class Step(NamedTuple):
    """One grid of numbers in the picture of an attention call.

    name: the name above the grid, for example "weights".
    about: a description beside the name, for example "softmax of each row".
    numbers: the numbers in the cells.
    rows, columns: the labels of rows and columns.
    """

    name: str
    about: str
    numbers: NDArray[numpy.float64]
    rows: tuple[str, ...]
    columns: tuple[str, ...] = ()


def steps(
    query: Any,
    key: Any,
    value: Any,
    score: str = "scaled_dot",
    *,
    scores: Any = None,
    rows: Sequence[object] | None = None,
    columns: Sequence[object] | None = None,
    title: str = "",
    about: str = "",
) -> Picture:
    """Draw one attention call step by step, with the numbers in the cells.

    query: (T, D), the query vectors.
    key: (S, D), the key vectors.
    value: (S, E), the value vectors.
    score: the score function: "dot", "scaled_dot" or "cosine".
    scores: (T, S), the scores, if you computed them with another score function. Use -inf for masked keys.
        Then `score` can be any text, such as a formula. It is written above the scores.
    rows, columns: T words for the queries, S words for the keys.
    title: the title of the picture.
    about: a line below the title.

    Only the first 12 queries, the first 12 keys and the first 8 components of each vector are drawn. The
    computation uses all of them.

    >>> from regard.viewing import steps
    >>> print(steps([[1.0, 0.0]], [[2.0, 0.0], [0.0, 2.0]], [[5.0], [7.0]], "dot", rows=["it"], columns="ab"))
    query: T=1, D=2
    it   1.00   0.00
    keys: S=2, D=2
    a    2.00   0.00
    b    0.00   2.00
    scores: query · key
            a      b
    it   2.00   0.00
    weights: softmax of each row
            a      b
    it   0.88   0.12
    values: S=2, E=1
    a    5.00
    b    7.00
    output: weights × values
    it   5.24
    """
    parts = {"query": query, "key": key, "value": value}
    arrays = {name: _matrix(name, array) for name, array in parts.items()}
    computed = _scores(arrays["query"], arrays["key"], score, scores)
    queries, keys = _names("q", rows, computed, 0), _names("k", columns, computed, 1)
    weights, (query, key, value) = _softmax(computed), arrays.values()
    grids = [
        Step("query", f"T={len(queries)}, D={query.shape[1]}", query, queries),
        Step("keys", f"S={len(keys)}, D={key.shape[1]}", key, keys),
        Step("scores", FORMULAS.get(score, score), computed, queries, keys),
        Step("weights", "softmax of each row", weights, queries, keys),
        Step("values", f"S={len(keys)}, E={value.shape[1]}", value, keys),
        Step("output", "weights × values", weights @ value, queries),
    ]
    canvas = Canvas()
    top, left, lowest = 0.0, 0.0, 0.0
    grids = [
        each._replace(
            numbers=each.numbers[:ROWS, : ROWS if each.columns else COLUMNS],
            rows=each.rows[:ROWS],
            columns=each.columns[:ROWS],
        )
        for each in grids
    ]
    for number, step in enumerate(grids):
        if number == 3:  # weights, values and output are in a second row
            top, left = lowest + GAP + 22, 0.0
        part = _grid(step)
        across = -part.bounds[0]
        canvas.put(part, left + across, top)
        left += across + part.bounds[2] + GAP
        lowest = max(lowest, top + part.bounds[3])
    left_out = _left_out(arrays, computed)
    canvas.foot(left_out)
    terminal = Group(*map(_Printed, grids), *([Text(left_out, "dim")] if left_out else []))
    content = "query, keys, scores, weights, values and output of one attention call, as grids of numbers"
    name = "One attention call, step by step"
    return finished(canvas, terminal, title, about, name=name, content=content)


def _matrix(name: str, data: Any) -> NDArray[numpy.float64]:
    try:
        array = numpy.asarray(as_numpy(data), float)
    except (TypeError, ValueError) as error:
        raise ArgumentError(message("steps()", f"{name} is not an array of numbers: {error}")) from None
    if array.ndim != 2:
        letters = {"query": "(T, D)", "key": "(S, D)", "value": "(S, E)", "scores": "(T, S)"}[name]
        hint = f"select one head of one sentence: {name}[sentence, head]"
        raise ArgumentError(
            message("steps()", f"{name} has shape {array.shape}", expected=letters, hint=hint)
        )
    if not array.size:
        problem = f"{name} is empty, shape {array.shape}"
        raise ArgumentError(message("steps()", problem, expected="at least one row and one column"))
    return array


def _scores(
    query: NDArray[numpy.float64], key: NDArray[numpy.float64], score: str, scores: Any
) -> NDArray[numpy.float64]:
    """Return `scores`. If it is None, compute the scores with the score function named `score`."""
    shape = (len(query), len(key))
    if scores is not None:
        array = _matrix("scores", scores)
        if array.shape != shape:
            raise ArgumentError(message("steps()", f"scores have shape {array.shape}", expected=f"{shape}"))
        return array
    if score not in FORMULAS:
        raise UnknownName("score without learned parameters", score, FORMULAS)
    if query.shape[1] != key.shape[1]:
        problem = f"query has D={query.shape[1]} and key has D={key.shape[1]}"
        hint = "use the same width for both, or compute the scores yourself and pass them as scores=..."
        raise ArgumentError(message("steps()", problem, hint=hint))
    if score == "cosine":
        query, key = (
            each / numpy.maximum(numpy.linalg.norm(each, axis=1)[:, None], 1e-12) for each in (query, key)
        )
    return query @ key.T / (query.shape[1] ** 0.5 if score == "scaled_dot" else 1.0)


def _softmax(scores: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    largest = scores.max(1, keepdims=True)
    raised = numpy.exp(scores - numpy.where(numpy.isfinite(largest), largest, 0.0))
    sums = raised.sum(1, keepdims=True)
    return raised / numpy.where(sums > 0, sums, 1.0)


def _names(
    letter: str, words: Sequence[object] | None, scores: NDArray[numpy.float64], axis: int
) -> tuple[str, ...]:
    size = scores.shape[axis]
    if words is None:
        return tuple(f"{letter}{number}" for number in range(size))
    if len(words) != size:
        name, letter = (("rows", "T"), ("columns", "S"))[axis]
        raise ArgumentError(
            message("steps()", f"{name} has {len(words)} words", expected=f"{letter} = {size}")
        )
    return tuple(label(word, 14) for word in words)


def _grid(step: Step) -> Canvas:
    """Return a canvas with the grid of one step. The first cell is at (0, 0). The name is above the grid."""
    finite = numpy.where(numpy.isfinite(step.numbers), step.numbers, 0.0)
    most = float(numpy.abs(finite).max()) or 1.0
    levels = finite / most * 0.85  # keep the cells light enough to read the numbers
    texts = [[_formatted(number) for number in row] for row in step.numbers.tolist()]
    canvas = grid(levels, step.rows, step.columns, texts, least=WIDTH)
    title = -24.0 if step.columns else -9.0
    canvas.words(0, title, step.name, 11)
    canvas.words(width_of(step.name, 11) + 6, title, step.about, 8, color=QUIET)
    return canvas


def _formatted(number: float) -> str:
    if not numpy.isfinite(number):
        return "−∞" if number < 0 else "∞" if number > 0 else "?"
    shown = f"{number:.2f}" if abs(number) < 100 else f"{number:.3g}"
    return shown.replace("-", "−") if float(shown) else "0.00"


@dataclass(frozen=True)
class _Printed:
    """The grid of one step as lines of text, with as many columns as the terminal is wide enough for."""

    step: Step

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        step = self.step
        side = max(map(cell_len, step.rows))
        width = max(7, *(cell_len(word) + 2 for word in (*step.columns, "")))
        every = step.numbers.shape[1]
        shown = every
        if side + every * width > options.max_width:
            shown = max(1, (options.max_width - side - 2) // width)
        mark, fits = ("", "") if shown == every else (" …", f" (the first {shown} of {every} columns fit)")
        yield Text.assemble((step.name, "bold"), (f": {step.about}{fits}", "dim"))
        if step.columns:
            words = (" " * (width - cell_len(word)) + word for word in step.columns[:shown])
            yield Text(" " * side + "".join(words) + mark, no_wrap=True, overflow="crop")
        for word, numbers in zip(step.rows, step.numbers, strict=True):
            cells = "".join(_formatted(number).rjust(width) for number in numbers[:shown])
            yield Text(word + " " * (side - cell_len(word)) + cells + mark, no_wrap=True, overflow="crop")


def _left_out(arrays: dict[str, NDArray[numpy.float64]], scores: NDArray[numpy.float64]) -> str:
    """Return a note that says how much is drawn, or "" if everything is drawn.

    Example: "drawn: the first 12 of 20 queries; the computation uses all".
    """
    sizes = (("queries", scores.shape[0], ROWS), ("keys", scores.shape[1], ROWS))
    wide = (
        ("components of each key", arrays["key"].shape[1], COLUMNS),
        ("components of each value", arrays["value"].shape[1], COLUMNS),
    )
    parts = [f"the first {most} of {size} {name}" for name, size, most in (*sizes, *wide) if size > most]
    return f"drawn: {', '.join(parts)}; the computation uses all" if parts else ""
