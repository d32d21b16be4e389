"""Augmentation: crops and flips depend on seed, epoch and index only."""

from __future__ import annotations

import numpy
import pytest
import torch

from regard.data.images.image_file import Augmentation, centre_crop
from regard.errors import ArgumentError

IMAGES = torch.arange(5 * 3 * 6 * 7, dtype=torch.int32).view(5, 3, 6, 7)


def is_crop_of(crop: torch.Tensor, image: torch.Tensor) -> bool:
    size = crop.shape[-1]
    windows = image.unfold(1, crop.shape[-2], 1).unfold(2, size, 1)
    return any(
        windows[:, y, x].equal(each)
        for y in range(windows.shape[1])
        for x in range(windows.shape[2])
        for each in (crop, crop.flip(-1))
    )


def test_each_result_is_a_crop_of_its_image_possibly_mirrored():
    crops = Augmentation(size=4, seed=3)(IMAGES, range(5), epoch=1)
    assert crops.shape == (5, 3, 4, 4) and crops.dtype == IMAGES.dtype
    assert all(is_crop_of(crop, image) for crop, image in zip(crops, IMAGES, strict=True))
    unflipped = Augmentation(size=4, seed=3, flip=False)(IMAGES, range(5), epoch=1)
    assert all(
        crop.equal(plain) or crop.equal(plain.flip(-1)) for crop, plain in zip(crops, unflipped, strict=True)
    )


def test_results_do_not_depend_on_the_batch():
    augment = Augmentation(size=3, seed=0)
    together = augment(IMAGES, [9, 4, 7, 0, 1], epoch=2)
    for row, index in enumerate([9, 4, 7, 0, 1]):
        assert augment(IMAGES[row : row + 1], torch.tensor([index]), epoch=2)[0].equal(together[row])
    assert Augmentation(size=3, seed=0)(IMAGES, numpy.array([9, 4, 7, 0, 1]), 2).equal(together)


def test_seed_epoch_and_index_change_the_result():
    image = torch.arange(64 * 64).view(1, 1, 64, 64)
    results = [
        Augmentation(size=32, seed=seed)(image, [index], epoch).flatten()[0].item()
        for seed in (0, 1)
        for epoch in (0, 1)
        for index in (0, 1)
    ]
    assert len(set(results)) == 8


def test_about_half_of_the_images_are_mirrored_and_all_places_occur():
    image = torch.arange(3 * 3).view(1, 1, 3, 3).expand(400, 1, 3, 3)
    mirrored = Augmentation()(image, range(400), 0)[:, 0, 0, 0] == 2
    assert 150 < mirrored.sum() < 250
    corners = Augmentation(size=2, flip=False)(image, range(400), 0)[:, 0, 0, 0]
    assert sorted(corners.unique().tolist()) == [0, 1, 3, 4] and torch.bincount(corners).max() < 150


def test_without_crop_and_flip_nothing_changes():
    assert Augmentation(flip=False)(IMAGES, range(5), 0).equal(IMAGES)
    assert Augmentation(size=6)(IMAGES[:0], [], 0).shape == (0, 3, 6, 6)


@pytest.mark.parametrize(("height", "width", "size"), [(5, 5, 3), (4, 7, 4), (1, 1, 1), (6, 9, 2)])
def test_centre_crop(height: int, width: int, size: int):
    images = torch.arange(2 * height * width).view(2, height, width)
    crop = centre_crop(images, size)
    top, left = (height - size) // 2, (width - size) // 2
    assert crop.shape == (2, size, size) and crop[0, 0, 0] == images[0, top, left]


@pytest.mark.parametrize(
    "call",
    [
        lambda: Augmentation(size=0),
        lambda: Augmentation(seed=-1),
        lambda: Augmentation(size=7)(IMAGES, range(5), 0),
        lambda: Augmentation()(IMAGES, range(4), 0),
        lambda: Augmentation()(IMAGES, range(5), -1),
        lambda: Augmentation()(IMAGES, [0, 1, 2, 3, -4], 0),
        lambda: centre_crop(IMAGES, 7),
        lambda: centre_crop(IMAGES, 0),
    ],
)
def test_bad_arguments(call):
    with pytest.raises(ArgumentError):
        call()
