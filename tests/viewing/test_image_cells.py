"""Geometry of attention maps over images: cells, pixels and upsampling."""

from __future__ import annotations

import numpy
import pytest

from regard.errors import ArgumentError
from regard.viewing.image_attention import CellGrid, upsampled

GRIDS = [(1, 1, 1, 1), (8, 8, 64, 64), (14, 14, 224, 224), (3, 5, 17, 63), (7, 2, 100, 3), (16, 16, 17, 16)]


@pytest.mark.parametrize("sizes", GRIDS)
def test_every_pixel_is_in_exactly_one_cell(sizes):
    grid = CellGrid(*sizes)
    rows, columns, height, width = sizes
    cells_HW, covered_HW = grid.cells(), numpy.zeros((height, width), int)
    for cell in range(grid.count):
        top, left, bottom, right = grid.box(cell)
        i, j = grid.position(cell)
        # The definition: the centres of the pixels are in [i H/h, (i + 1) H/h), in exact integer arithmetic.
        inside = [row for row in range(height) if i * height <= (row + 0.5) * rows < (i + 1) * height]
        across = [at for at in range(width) if j * width <= (at + 0.5) * columns < (j + 1) * width]
        assert inside == list(range(top, bottom)) and across == list(range(left, right)) and inside and across
        assert (cells_HW[top:bottom, left:right] == cell).all() and cell == i * columns + j
        assert grid.cell_at(top, left) == grid.cell_at(bottom - 1, right - 1) == cell
        covered_HW[top:bottom, left:right] += 1
    assert (covered_HW == 1).all()


def test_cells_are_numbered_row_by_row():
    grid = CellGrid(2, 3, 20, 30)
    assert [grid.position(cell) for cell in range(6)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert tuple(grid.box(5)) == (10, 20, 20, 30)


def test_mask_has_the_pixels_of_its_cells():
    grid = CellGrid(3, 5, 17, 63)
    mask_HW = grid.mask([4, 7])
    assert (mask_HW == numpy.isin(grid.cells(), (4, 7))).all()
    boxes = [grid.box(cell) for cell in (4, 7)]
    assert mask_HW.sum() == sum((box.bottom - box.top) * (box.right - box.left) for box in boxes)


@pytest.mark.parametrize("sizes", [(0, 1, 4, 4), (5, 1, 4, 4), (1, 5, 4, 4), (1, 1, 0, 4)])
def test_cells_that_do_not_fit_the_image_raise(sizes):
    with pytest.raises(ArgumentError):
        CellGrid(*sizes)


def test_places_outside_the_image_raise():
    grid = CellGrid(2, 2, 4, 4)
    for call in (
        lambda: grid.box(4),
        lambda: grid.box(-1),
        lambda: grid.cell_at(4, 0),
        lambda: grid.cell_at(0, -1),
    ):
        with pytest.raises(ArgumentError):
            call()


@pytest.mark.parametrize("sizes", GRIDS)
def test_upsampling_keeps_the_strongest_cell_and_the_range(sizes):
    grid = CellGrid(*sizes)
    rows, columns, height, width = sizes
    for seed in range(5):
        weights = numpy.random.default_rng(seed).random((rows, columns))
        pixels = upsampled(weights, height, width)
        assert pixels.shape == (height, width)
        assert grid.cells().ravel()[pixels.argmax()] == weights.argmax()
        assert pixels.max() == weights.max() and pixels.min() >= weights.min()


FACTORS = [((8, 8), 8), ((14, 14), 3), ((3, 5), 4), ((1, 7), 2), ((2, 2), 1)]


@pytest.mark.parametrize(("size", "factor"), FACTORS)
def test_upsampling_keeps_the_sum(size, factor):
    weights = numpy.random.default_rng(0).random(size)
    pixels = upsampled(weights, factor * size[0], factor * size[1])
    assert pixels.sum() == pytest.approx(weights.sum() * factor**2)


def test_upsampling_of_a_constant_is_the_constant():
    assert (upsampled(numpy.full((3, 4), 0.25), 50, 77) == 0.25).all()
