"""Pictures: the pixels of each shape, size and colour; masks and boxes agree with the pixels."""

from __future__ import annotations

import itertools
import zlib

import numpy
import pytest

from regard.data.shapes import COLOURS, SHAPES, SIZES, Scene, SceneObject, object_mask, render, shapes


def alone(shape: str, size: str, colour: str = "red") -> SceneObject:
    return SceneObject(size, colour, shape, x=32, y=30, tint=COLOURS[colour])


@pytest.mark.parametrize(("shape", "size"), list(itertools.product(SHAPES, SIZES)))
def test_the_box_is_tight_and_the_mask_has_the_colour(shape: str, size: str):
    thing = alone(shape, size)
    picture = render([Scene((thing,), background=240)])[0]
    rows, columns = numpy.nonzero((picture != 240).any(0))
    left, top, right, bottom = thing.box
    assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == (left, top, right, bottom)
    assert right - left == bottom - top == 2 * SIZES[size] + 1
    mask = object_mask(thing)
    assert mask.sum() > 40 and not (mask & (picture == 240).all(0)).any()
    # Left and right halves are mirror images.
    assert (picture == picture[:, :, [2 * 32 - x if 0 <= 2 * 32 - x < 64 else x for x in range(64)]]).all()
    inner = picture[:, 31, 32]
    assert tuple(inner) == COLOURS["red"]


def test_areas_tell_the_shapes_and_sizes_apart():
    area = {(shape, size): int(object_mask(alone(shape, size)).sum()) for shape in SHAPES for size in SIZES}
    assert area["square", "small"] == 11 * 11 and area["square", "large"] == 17 * 17
    assert abs(area["circle", "large"] - numpy.pi * 8.5**2) < 5
    assert all(abs(area[shape, "large"] - 17 * 17 / 2) < 10 for shape in ("triangle", "diamond"))
    assert all(area[shape, "large"] > 2 * area[shape, "small"] for shape in SHAPES)


def test_pictures_do_not_depend_on_their_batch():
    corpus = shapes("train", 12)
    together = corpus.images(range(12)).numpy()
    assert together.shape == (12, 3, 64, 64) and together.flags.c_contiguous
    for index in (0, 5, 11):
        assert (corpus.images([index]).numpy()[0] == together[index]).all()
    assert render([]).shape == (0, 3, 64, 64)


@pytest.mark.parametrize(("split", "seed", "checksum"), [("train", 1, 0x031CD2E3), ("test", 0, 0x4D234784)])
def test_pictures_have_these_bytes_on_every_machine(split: str, seed: int, checksum: int):
    computed = zlib.crc32(shapes(split, 50, seed).images(range(50)).numpy().tobytes())
    assert computed == checksum
