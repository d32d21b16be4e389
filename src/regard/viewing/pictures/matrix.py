"""Matrices of weights, darker cells for larger weights: matrix(), hops(), heads() and long_map()."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from regard.errors import ArgumentError, message
from regard.viewing.as_arrays import check_words, checked_matrix, checked_weights
from regard.viewing.pictures.canvas import DARK, QUIET, SIZE, Canvas, label, shades, width_of
from regard.viewing.pictures.picture_files import Picture, finished
from regard.viewing.pooled_attention import Pooled, block_side
from regard.viewing.seen import Site
from regard.viewing.terminal import Legend, Matrix, Thumbnails, draw, pooled_down

LONG = 48
"""If a matrix has more rows (or columns) than this, the cells are smaller, and labels that do not fit are
left out."""

EDGE = 720.0
"""Height of a matrix with more than LONG rows, and width of a matrix with more than LONG columns, in
points."""

LONGEST = 60
"""Maximum width of a sentence of a story in character cells of the terminal.

Longer sentences are truncated."""

TERMINAL, HOP_CELLS, SHORTEST = 78, 7, 24
"""Sizes in character cells for hops() in the terminal.

TERMINAL: width of the drawing. HOP_CELLS: width of the column of a hop. SHORTEST: minimum width of the
    sentences, even if the drawing becomes wider than TERMINAL."""

LABEL = 28
"""Default maximum width of a label, in terminal cells."""

LEVEL = 620.0
"""Maximum width in points of a matrix with horizontal column labels.

Columns are made wider, so that their labels fit. If the matrix would become wider than LEVEL, the labels are
slanted instead."""

THUMB, GAP = 66.0, 8.0
"""THUMB: length of the longer side of a thumbnail. GAP: distance between thumbnails. Both are in points."""

FINE = 96
"""Maximum number of cells along a side of a thumbnail. Larger matrices are reduced by max-pooling."""

CELLS = 3000
"""If all thumbnails together have more cells than this, they are drawn as images instead of boxes."""

SIDE = 512.0
"""Width and height of the picture without its labels, in points."""

BETWEEN = 36.0
"""Distance between matrices on one canvas, in points."""

SHARE = "share of attention"

TICKS = 8
"""Approximate number of position labels along each side."""


def matrix(
    weights: Any,
    rows: Sequence[object],
    columns: Sequence[object],
    title: str = "",
    about: str = "",
    *,
    numbers: bool = False,
    most: float | None = None,
) -> Picture:
    """Draw a matrix of weights, with the queries as row labels and the keys as column labels.

    weights: (T, S).
    rows, columns: T words for the queries, S words for the keys.
    title: a title.
    about: a line below the title.
    numbers: whether to write each weight in its cell.
    most: the weight of the darkest colour. Default: the largest weight.

    >>> from regard.viewing import matrix
    >>> print(matrix([[0.9, 0.1], [0.0, 1.0]], ["I", "cat"], ["나는", "고양이"], most=1))
            나는    고양이
      I   ███████    ·
      cat    ·    ███████
          0  ░▒▓█ 1
    """
    array, darkest = checked_matrix("matrix()", weights, rows, columns, most)
    texts = numbers_of(array) if numbers else ()
    canvas = grid(array / darkest, rows, columns, texts)
    canvas.scale(0, canvas.bounds[3] + 14, darkest)
    drawn = draw(array, rows, columns, title or None, numbers=numbers, most=most)
    content = f"{len(rows)} queries down, {len(columns)} keys across; darker cells are larger weights"
    return finished(canvas, drawn, title, about, name="Alignment matrix", content=content)


def panels(
    parts: Sequence[tuple[str, NDArray[numpy.float64]]],
    rows: Sequence[object],
    columns: Sequence[object],
    title: str = "",
    about: str = "",
) -> Picture:
    """Draw several matrices with the same rows and columns side by side, each with its own colour scale.

    Numbers may be negative: these have a second hue, and a scale that says so. With one row, the matrices
    become the rows of one.

    parts: the title and the values (T, S) of each matrix.
    rows, columns: T words for the queries, S words for the keys.
    title: a title.
    about: a line below the title.

    >>> import numpy
    >>> print(panels([("erasure, nats", numpy.array([[2.0, -0.5]]))], ["cat"], ["고양이", "로소이다"]))
    cat
                    고양이   로소이다
    erasure, nats ██ 2.00 █   -0.50
    """
    canvas, left, terminal = Canvas(), 0.0, list[RenderableType]()
    terminal += [Text(title, "bold")] if title else []
    beside, above = tuple(map(label, rows)), tuple(map(label, columns))
    if len(rows) == 1:
        return _one_output(parts, rows[0], columns, title, about)
    for name, values in parts:
        for words, what, axis in ((rows, "rows", 0), (columns, "columns", 1)):
            check_words("panels()", what, words, values, axis)
        most = float(numpy.abs(values).max(initial=0.0)) or 1.0
        panel = grid(values / most, rows, columns)
        panel.scale(0, panel.bounds[3] + 14, most, -most if (values < 0).any() else 0.0)
        panel.head("", name)
        bounds = panel.bounds
        canvas.put(panel, left - bounds[0], -bounds[3])
        left += bounds[2] - bounds[0] + BETWEEN
        terminal.append(Matrix(values, beside, above, (name,), True, True, most))
    content = (
        f"{len(rows)} outputs down, {len(columns)} inputs across: {', '.join(name for name, _ in parts)}"
    )
    return finished(canvas, Group(*terminal), title, about, name="Attribution", content=content)


def _one_output(
    parts: Sequence[tuple[str, NDArray[numpy.float64]]],
    output: object,
    columns: Sequence[object],
    title: str,
    about: str,
) -> Picture:
    """Draw several rows of values as one matrix: a row for each part, with its own colour scale."""
    values_PS = numpy.concatenate([values for _, values in parts])
    names, scales = [name for name, _ in parts], numpy.abs(values_PS).max(1, initial=0.0, keepdims=True)
    levels_PS = values_PS / numpy.where(scales > 0, scales, 1.0)
    texts = [[f"{each:.2f}" for each in row] for row in values_PS.tolist()]
    canvas, heading = grid(levels_PS, names, columns, texts, least=30.0), title or str(output)
    drawn = Matrix(levels_PS, tuple(names), tuple(map(label, columns)), (), True, False, 1.0, values_PS)
    content = f"{len(names)} methods down, {len(columns)} inputs across, for the output {label(output)}"
    drawings = [Text(heading, "bold"), drawn] if heading else [drawn]
    return finished(canvas, Group(*drawings), heading, about, name="Attribution", content=content)


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
    below = [f"answer: {label(answer, LONGEST)}"] if answer else []
    for line in below:
        canvas.words(canvas.bounds[0], canvas.bounds[3] + 14, line)
    room = max(TERMINAL - HOP_CELLS * len(names), SHORTEST)
    drawn = draw(array.T, labels, names, question or title or None, numbers=True, longest_row=room)
    name = label(question, 90) or "Hops over a story"
    return finished(canvas, Group(drawn, *map(Text, below)), title, question, name=name)


def grid(
    levels: NDArray[numpy.floating],
    rows: Sequence[object],
    columns: Sequence[object],
    texts: Sequence[Sequence[str]] = (),
    *,
    least: float = 30.0,
    longest: int = LABEL,
) -> Canvas:
    """Return a canvas with the cells and labels of a matrix. The top left corner of the cells is at (0, 0).

    levels: (T, S), the weights divided by the weight of the darkest colour.
    rows, columns: the labels of the rows and of the columns, or none of them.
    texts: the text in each cell. Default: no texts.
    least: the smallest width of a cell with a text, in points.
    longest: maximum width of the label of a row, in terminal cells.
    """
    canvas, count = Canvas(), levels.shape[1]
    beside, above = [label(word, longest) for word in rows], [label(word) for word in columns]
    widest = max((width_of(word, SIZE) for word in above), default=0.0)
    least = least if len(texts) else 0.0
    height, width = _cell(len(levels)), max(_cell(count), least)
    level = widest <= width - 4
    if not level and count <= LONG:
        needed = max(widest + 8, least)
        level = needed <= 64 and needed * count <= LEVEL
        width = needed if level else width
    width = round(width) if width > 6 else width
    canvas.cells(0, 0, levels, width, height, texts=texts)
    _beside(canvas, beside, height)
    _above(canvas, above, width, level)
    return canvas


def numbers_of(weights: NDArray[numpy.floating]) -> list[list[str]]:
    """Return the weights as the texts of cells: two digits, and nothing for a weight below 0.005."""
    return [[f"{each:.2f}".removeprefix("0") if each >= 0.005 else "" for each in row] for row in weights]


def _beside(canvas: Canvas, words: Sequence[str], height: float) -> None:
    step = _step(height)
    size = min(SIZE, step * height - 1)
    for row in range(0, len(words), step):
        color = DARK if step == 1 else QUIET
        canvas.words(-6, (row + 0.5) * height - 0.5, words[row], size, anchor="end", color=color)


def _above(canvas: Canvas, words: Sequence[str], width: float, level: bool) -> None:
    step = _step(width)
    size = min(SIZE, step * width - 1)
    for column in range(0, len(words), step):
        middle, color = (column + 0.5) * width - 0.5, DARK if step == 1 else QUIET
        if level:
            canvas.words(middle, -10, words[column], size, anchor="middle", color=color)
        else:
            canvas.words(middle, -6, words[column], size, angle=50, color=color)


def _cell(count: int) -> float:
    """Return the size of a cell in points: its height for `count` rows, or its width for `count` columns."""
    return 18.0 if count <= LONG else max(float(int(EDGE / count)), EDGE / count)


def _step(size: float) -> int:
    """Return the number n for which the label of every n-th cell fits. size: size of a cell in points."""
    return 1 if size >= 9 else int(numpy.ceil(11 / size))


def heads(sites: Sequence[Site], title: str = "", about: str = "") -> Picture:
    """Draw every head of every site as a small matrix, all with the same colour scale.

    sites: the attention layers. Each layer is one row of the picture.
    title: a title.
    about: a line below the title.

    >>> from regard.viewing import Site, heads
    >>> print(heads([Site("decoder.cross", [[[0.9, 0.1], [0.0, 1.0]]], ["a", "cat"], ["나는", "고양이"])]))
    decoder.cross
    ██
      ██
    0  ░▒▓█ 1
    """
    if not sites:
        raise ArgumentError(message("heads()", "there are no sites to draw"))
    most = max((float(site.weights.max(initial=0.0)) for site in sites), default=0.0) or 1.0
    small = [[pooled_down(weights, FINE, FINE) / most for weights in site.weights] for site in sites]
    canvas = Canvas()
    many = sum(levels.size for each in small for levels in each) > CELLS
    widest = max(len(each) for each in small)
    across = GAP + max(THUMB * site.weights.shape[2] / max(*site.weights.shape[1:], 1) for site in sites)
    top = 0.0
    for site, thumbnails in zip(sites, small, strict=True):
        # The longer side of the matrix fills the thumbnail. The shorter side follows from the aspect ratio.
        rows, columns = site.weights.shape[1:]
        width, height = (THUMB * size / max(rows, columns, 1) for size in (columns, rows))
        canvas.words(-10, top + height / 2, label(site.name), 9, anchor="end")
        for number, levels in enumerate(thumbnails):
            if many:
                canvas.raster(number * across, top, width, height, shades(levels))
            elif levels.size:
                cell = width / levels.shape[1], height / levels.shape[0]
                canvas.cells(number * across, top, levels, *cell, gap=0.5)
        top += height + GAP
    for number in range(widest if widest > 1 else 0):
        canvas.words(number * across + (across - GAP) / 2, -9, f"{number}", 8, anchor="middle", color=QUIET)
    if widest > 1:
        canvas.words(-10, -9, "head", 8, anchor="end", color=QUIET)
    canvas.scale(0, top + 8, most)
    content = f"{len(sites)} sites, up to {widest} heads; a darker cell is a larger weight"
    drawn = _heads_terminal(sites, most, label(title, 90))
    return finished(canvas, drawn, title, about, name="Layers and heads", content=content)


def _heads_terminal(sites: Sequence[Site], most: float, title: str) -> RenderableType:
    drawn: list[RenderableType] = [Text(title, "bold")] if title else []
    for site in sites:
        small = tuple(pooled_down(weights, 12, 24) / most for weights in site.weights)
        drawn.append(Thumbnails(label(site.name), small))
        size, cells = site.weights.shape[1:], small[0].shape if small else (0, 0)
        if small and size != cells:
            sizes = f"{size[0]} x {size[1]} weights in {cells[0]} x {cells[1]} cells"
            drawn.append(Text(f"{sizes}; each cell shows the largest weight of a block", "dim"))
    return Group(*drawn, Legend(most))


def long_map(seen: Pooled, title: str = "", about: str = "", *, head: int | None = None) -> Picture:
    """Draw the attention of a long sequence. The weight matrix is divided into rectangular blocks.

    Each block is drawn as one cell. The colour of the cell shows the largest weight of the block. If only the
    means of the blocks are exact (seen.exact_means), it shows the share of the block in the attention of its
    queries: the sum of its weights, divided by its number of queries.

    seen: a Pooled, the result of `pooled` or `pooled_from_top`.
    title: a title.
    about: a line below the title.
    head: index of one head. Default: the maximum over heads; for shares, the mean over heads.

    >>> import numpy
    >>> from regard.viewing import long_map
    >>> from regard.viewing import pooled
    >>> words = [f"w{place}" for place in range(1000)]
    >>> picture = long_map(pooled("self", numpy.eye(1000), words, words))
    >>> len(picture.svg()) < 20_000  # for a million weights
    True
    """
    if head is not None and not 0 <= head < seen.heads:
        problem = f"{seen.name} has no head {head}"
        raise ArgumentError(message("long_map()", problem, expected=f"0 to {seen.heads - 1}"))
    rows, columns = len(seen.rows), len(seen.columns)
    cells, cell_name = _cells(seen, head)
    largest = float(cells.max(initial=0.0)) or 1.0
    most = _darkest(cells) if cell_name == SHARE else largest
    longest = max(rows, columns)
    width, height = SIDE * columns / longest, SIDE * rows / longest
    canvas = Canvas()
    canvas.box(-1, -1, width + 2, height + 2, "#ffffff", edge="#dfe2e8")
    canvas.raster(0, 0, width, height, shades(cells / most))
    for count, across in ((columns, True), (rows, False)):
        for place in _ticks(count):
            at = SIDE * (place + 0.5) / longest
            if across:
                canvas.words(at, -9, f"{place:,}", 8, anchor="middle", color=QUIET)
            else:
                canvas.words(-7, at, f"{place:,}", 8, anchor="end", color=QUIET)
    canvas.scale(0, height + 14, most, more=most < largest)
    block = f"{block_side(rows)} by {block_side(columns)}"
    description = f"{rows:,} by {columns:,} tokens; each cell shows the {cell_name} of {block} tokens"
    description += "" if seen.whole or seen.exact_means else ", from the largest weights of each row"
    which = f"head {head}" if head is not None else f"{seen.heads} heads" if seen.heads > 1 else ""
    detail = " · ".join(filter(None, (description, which)))
    small = Thumbnails(label(title or seen.name, 60), (pooled_down(cells, 24, 64) / most,))
    return finished(canvas, small, title or seen.name, about, detail, content=description)


def _cells(seen: Pooled, head: int | None) -> tuple[NDArray[numpy.floating[Any]], str]:
    """Return the values of the cells of a map, (t, s), and the name of what they show.

    head: index of one head; None for the maximum or the mean over heads.
    """
    if seen.exact_means and not seen.whole:
        means = seen.means.mean(0) if head is None else seen.means[head]
        columns = len(seen.columns)
        ends = numpy.minimum(numpy.arange(1, means.shape[1] + 1) * block_side(columns), columns)
        return means * numpy.diff(ends, prepend=0), SHARE
    return seen.maxima.max(0) if head is None else seen.maxima[head], "largest weight"


def _darkest(shares: NDArray[numpy.floating[Any]]) -> float:
    """Return the share that gets the darkest colour: larger than 99 % of the shares that are not 0.

    With a causal mask, the first block has the share 1, because its queries see no other block. Compared with
    it, all other blocks would be pale.
    """
    positive = shares[shares > 0]
    return float(numpy.quantile(positive, 0.99)) if positive.size else 1.0


def _ticks(count: int) -> list[int]:
    """Return the positions of the tokens with a label: 0 and the multiples of a round number.

    count: the number of tokens.
    """
    rough = max(count / TICKS, 1)
    power = 10.0 ** numpy.floor(numpy.log10(rough))
    step = int(next(power * each for each in (1, 2, 5, 10) if power * each >= rough))
    return list(range(0, count, max(step, 1)))
