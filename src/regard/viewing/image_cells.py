"""The cells of an attention map over an image: which pixels a cell covers, and which cell contains a pixel.

A map of h x w weights divides an image of H x W pixels into cells. Cells are numbered row by row from the top
left. Cell (i, j) has the number i * w + j. It covers the rows from i H/h to (i + 1) H/h and the columns from
j W/w to (j + 1) W/w. A pixel belongs to the cell that contains the centre of the pixel. So every pixel is in
exactly one cell, also if h does not divide H.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from regard.errors import ArgumentError, message

PLATEAU = 0.1
"""Up to this distance from the centre of a cell, upsampled() returns the weight of the cell unchanged. The
distance is a fraction of the width (or height) of the cell."""


class PixelBox(NamedTuple):
    """A rectangle of pixels of an image: rows top, ..., bottom - 1 and columns left, ..., right - 1."""

    top: int
    left: int
    bottom: int
    right: int


@dataclass(frozen=True)
class CellGrid:
    """The division of an image of height x width pixels into rows x columns cells of about equal size.

    Cells are numbered from 0, row by row from the top left.

    rows: number of rows of cells.
    columns: number of columns of cells.
    height: height of the image in pixels.
    width: width of the image in pixels.

    >>> grid = CellGrid(rows=2, columns=2, height=6, width=4)
    >>> grid.box(2)
    PixelBox(top=3, left=0, bottom=6, right=2)
    >>> grid.cell_at(2, 3), grid.position(1)
    (1, (0, 1))
    >>> grid.mask([0]).sum().item()
    6
    """

    rows: int
    columns: int
    height: int
    width: int

    def __post_init__(self) -> None:
        cells, pixels = (self.rows, self.columns), (self.height, self.width)
        if min(cells) < 1 or any(many > size for many, size in zip(cells, pixels, strict=True)):
            problem = f"{self.rows} x {self.columns} cells do not fit {self.height} x {self.width} pixels"
            expected = "at least one cell, and at least one pixel in each cell"
            raise ArgumentError(message("CellGrid()", problem, expected=expected))

    @property
    def count(self) -> int:
        """The number of cells into which the image is divided: rows x columns."""
        return self.rows * self.columns

    def position(self, cell: int) -> tuple[int, int]:
        """Return the row and the column, from 0, of the cell with the number `cell`."""
        if not 0 <= cell < self.count:
            expected = f"0, ..., {self.count - 1}"
            raise ArgumentError(message("CellGrid", f"there is no cell {cell}", expected=expected))
        return cell // self.columns, cell % self.columns

    def box(self, cell: int) -> PixelBox:
        """Return the rectangle of pixels that a cell covers. cell: number of the cell."""
        row, column = self.position(cell)
        return PixelBox(
            _first(row, self.rows, self.height),
            _first(column, self.columns, self.width),
            _first(row + 1, self.rows, self.height),
            _first(column + 1, self.columns, self.width),
        )

    def cell_at(self, row: int, column: int) -> int:
        """Return the number of the cell that covers the pixel in this row and column of the image."""
        if not (0 <= row < self.height and 0 <= column < self.width):
            problem = f"pixel ({row}, {column}) is outside the image of {self.height} x {self.width} pixels"
            raise ArgumentError(message("CellGrid.cell_at()", problem))
        i, j = _cell(row, self.rows, self.height), _cell(column, self.columns, self.width)
        return int(i * self.columns + j)

    def cells(self) -> NDArray[numpy.int64]:
        """Return an integer array (height, width) with the number of the cell that each pixel is in."""
        rows = _cell(numpy.arange(self.height), self.rows, self.height)
        columns = _cell(numpy.arange(self.width), self.columns, self.width)
        return rows[:, None] * self.columns + columns[None, :]

    def mask(self, cells: Iterable[int]) -> NDArray[numpy.bool_]:
        """Return a bool array (height, width): True for each pixel in one of the cells.

        cells: numbers of cells.
        """
        mask_HW = numpy.zeros((self.height, self.width), bool)
        for cell in cells:
            top, left, bottom, right = self.box(cell)
            mask_HW[top:bottom, left:right] = True
        return mask_HW


def _first(cell: int, cells: int, pixels: int) -> int:
    """Return the index of the first pixel of a cell, along one side of the image.

    This is the first pixel whose centre is not before cell * pixels / cells.

    cell: index of the cell along this side.
    cells: number of cells along this side.
    pixels: number of pixels along this side.
    """
    return -((cells - 2 * cell * pixels) // (2 * cells))


def _cell(pixel: Any, cells: int, pixels: int) -> Any:
    """Return the index of the cell that contains the centre of a pixel, along one side of the image.

    The arithmetic is in integers and exact.

    pixel: index of the pixel along this side.
    cells: number of cells along this side.
    pixels: number of pixels along this side.
    """
    return (2 * pixel + 1) * cells // (2 * pixels)


def upsampled(weights: NDArray[numpy.floating], height: int, width: int) -> NDArray[numpy.float64]:
    """Interpolate a map of weights (h, w) smoothly to (height, width) pixels, with h <= height, w <= width.

    Pixels near the centre of a cell have exactly the weight of the cell. Between two centres, the values
    follow a cubic smoothstep function. So the pixel with the largest value is in the cell with the largest
    weight, and no value is outside the range of the weights. If h divides height and w divides width, the
    mean of the pixels is the mean of the weights.

    >>> upsampled(numpy.array([[0.0, 1.0]]), 1, 8).round(2).tolist()
    [[0.0, 0.0, 0.0, 0.26, 0.74, 1.0, 1.0, 1.0]]
    """
    return _interpolated(_interpolated(numpy.asarray(weights, numpy.float64), height).T, width).T


def _interpolated(weights: NDArray[numpy.float64], size: int) -> NDArray[numpy.float64]:
    """Interpolate weights (h, w) along the first axis; return an array (size, w)."""
    count = len(weights)
    # The position of the centre of each pixel, measured in cells: 0 is the centre of cell 0, 1 of cell 1, ...
    places = numpy.clip((numpy.arange(size) + 0.5) * count / size - 0.5, 0, count - 1)
    low = numpy.minimum(places.astype(int), max(count - 2, 0))
    high = numpy.minimum(low + 1, count - 1)
    # In the plateau, the weight is unchanged. It extends at least half a pixel from the centre of a cell, so
    # that it contains the centre of a pixel.
    margin = min(max(PLATEAU, 0.5 * count / size), 0.499)
    step = numpy.clip((places - low - margin) / (1 - 2 * margin), 0, 1)
    step = (step * step * (3 - 2 * step))[:, None]
    mixed: NDArray[numpy.float64] = weights[low] * (1 - step) + weights[high] * step
    return mixed
