"""Augmentation of images: random crops and horizontal flips that depend only on (seed, epoch, index)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from regard.errors import ArgumentError, message, positive

__all__ = ["Augmentation", "centre_crop"]


@dataclass(frozen=True)
class Augmentation:
    """Random crops and horizontal flips of images, different in each epoch.

    size: width and height of the crops in pixels; None: images are not cropped.
    flip: whether to mirror images horizontally, each with probability 0.5. Set it to False if captions
        contain "left" or "right".
    seed: random seed.

    The crop and the flip of an image depend only on seed, epoch and index of the image, not on its batch. So
    a resumed training run has the same images as an uninterrupted one. For validation, use centre_crop().

    >>> images = torch.arange(16).view(1, 1, 4, 4).expand(2, 3, 4, 4)
    >>> crops = Augmentation(size=2, seed=1)(images, indices=[7, 8], epoch=0)
    >>> crops.shape, crops[0, 0].tolist(), crops[1, 0].tolist()
    (torch.Size([2, 3, 2, 2]), [[5, 4], [9, 8]], [[7, 6], [11, 10]])
    """

    size: int | None = None
    flip: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size is not None:
            positive("Augmentation()", size=self.size)
        _check_not_negative("Augmentation()", seed=self.seed)

    def __call__(self, images: Tensor, indices: Sequence[int] | Tensor, epoch: int) -> Tensor:
        """Return cropped and flipped images, (B, 3, size, size), or (B, 3, H, W) if `size` is None.

        images: (B, 3, H, W), any dtype. The result has the same dtype.
        indices: (B,), for each image, its index in the training data. The random crop and flip depend on it.
        epoch: index of the epoch, from 0.
        """
        call = "Augmentation()"
        size = _crop_size(call, images, self.size)
        numbers = indices.tolist() if isinstance(indices, Tensor) else [int(index) for index in indices]
        if len(numbers) != len(images):
            problem = f"there are {len(images)} images and {len(numbers)} indices"
            raise ArgumentError(message(call, problem, expected="one index for each image"))
        _check_not_negative(call, epoch=epoch, index=min(numbers, default=0))
        # Use raw random bits: they are the same in every version of numpy, unlike integers() and similar
        # methods.
        drawn = [
            numpy.random.PCG64(numpy.random.SeedSequence((self.seed, epoch, number))).random_raw(3)
            for number in numbers
        ]
        words = numpy.stack(drawn) if drawn else numpy.zeros((0, 3), numpy.uint64)
        height, width = images.shape[-2:]
        tops = words[:, 0] % (height - size[0] + 1)
        lefts = words[:, 1] % (width - size[1] + 1)
        flips = (words[:, 2] % 2 == 1) & self.flip
        rows = tops.astype(numpy.int64)[:, None] + numpy.arange(size[0])
        columns = lefts.astype(numpy.int64)[:, None] + numpy.arange(size[1])
        columns = numpy.where(flips[:, None], columns[:, ::-1], columns)
        # Crop and flip the whole batch with one indexing operation, on the device of the images.
        row_index, column_index = (torch.from_numpy(each).to(images.device) for each in (rows, columns))
        batch = torch.arange(len(images), device=images.device)[:, None, None, None]
        channel = torch.arange(images.shape[1], device=images.device)[None, :, None, None]
        return images[batch, channel, row_index[:, None, :, None], column_index[:, None, None, :]]


def centre_crop(images: Tensor, size: int) -> Tensor:
    """Return the centre of images, size x size pixels: (..., H, W) becomes (..., size, size).

    >>> centre_crop(torch.arange(25).view(5, 5), 3).tolist()
    [[6, 7, 8], [11, 12, 13], [16, 17, 18]]
    """
    positive("centre_crop()", size=size)
    _crop_size("centre_crop()", images, size)
    height, width = images.shape[-2:]
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size]


def _crop_size(call: str, images: Tensor, size: int | None) -> tuple[int, int]:
    height, width = images.shape[-2:]
    if size is None:
        return height, width
    if size > min(height, width):
        problem = f"size is {size}, but the images have {height} x {width} pixels"
        raise ArgumentError(message(call, problem, expected="size <= height and width"))
    return size, size


def _check_not_negative(call: str, **numbers: int) -> None:
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | numpy.integer) or number < 0:
            raise ArgumentError(message(call, f"{name} is {number!r}", expected="an integer, 0 or more"))
