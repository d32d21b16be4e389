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
    a resumed training run has the same images as an uninterrupted run. For validation, use centre_crop().

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
        indices: (B,), the index of each image in the training data. The random crop and flip depend on this
            index.
        epoch: index of the epoch, from 0.
        """
        height, width = images.shape[-2:]
        if len(indices) != len(images):
            problem = f"there are {len(images)} images and {len(indices)} indices"
            raise ArgumentError(message("Augmentation()", problem, expected="one index for each image"))
        return self.apply(images, self.draw(indices, epoch, height, width))

    def draw(self, indices: Sequence[int] | Tensor, epoch: int, height: int, width: int) -> Tensor:
        """Return the random crop and flip of each image, int64, (B, 3): first row, first column, flip.

        The column "flip" is 1 for images to mirror, otherwise 0. apply() uses the result.

        indices: (B,), for each image, its index in the training data.
        epoch: index of the epoch, from 0.
        height: height of the images in pixels.
        width: width of the images in pixels.

        >>> Augmentation(size=2, seed=1).draw([7, 8], 0, height=4, width=4).tolist()
        [[1, 0, 1], [1, 2, 1]]
        """
        call = "Augmentation()"
        rows, columns = _crop_size(call, height, width, self.size)
        numbers = indices.tolist() if isinstance(indices, Tensor) else [int(index) for index in indices]
        _check_not_negative(call, epoch=epoch, index=min(numbers, default=0))
        # Use raw random bits: they are the same in every version of numpy, unlike integers() and similar
        # methods.
        drawn = [
            numpy.random.PCG64(numpy.random.SeedSequence((self.seed, epoch, number))).random_raw(3)
            for number in numbers
        ]
        words = numpy.stack(drawn) if drawn else numpy.zeros((0, 3), numpy.uint64)
        ranges = numpy.array([height - rows + 1, width - columns + 1, 2], numpy.uint64)
        choices = (words % ranges).astype(numpy.int64)
        choices[:, 2] *= self.flip
        return torch.from_numpy(choices)

    def apply(self, images: Tensor, choices: Tensor) -> Tensor:
        """Crop and flip images according to `choices`, on the device of the images.

        images: (B, 3, H, W), any dtype.
        choices: (B, 3), the result of draw().
        """
        height, width = images.shape[-2:]
        height, width = _crop_size("Augmentation()", height, width, self.size)
        device = images.device
        top_B1, left_B1, flip_B1 = choices.to(device).unsqueeze(-1).unbind(1)
        rows_BH = top_B1 + torch.arange(height, device=device)
        columns_W = torch.arange(width, device=device)
        columns_BW = left_B1 + torch.where(flip_B1 == 1, width - 1 - columns_W, columns_W)
        batch = torch.arange(len(images), device=device)[:, None, None, None]
        channel = torch.arange(images.shape[1], device=device)[None, :, None, None]
        # One indexing operation crops and flips the whole batch.
        return images[batch, channel, rows_BH[:, None, :, None], columns_BW[:, None, None, :]]


def centre_crop(images: Tensor, size: int) -> Tensor:
    """Return the centre of images, size x size pixels: (..., H, W) becomes (..., size, size).

    >>> centre_crop(torch.arange(25).view(5, 5), 3).tolist()
    [[6, 7, 8], [11, 12, 13], [16, 17, 18]]
    """
    positive("centre_crop()", size=size)
    height, width = images.shape[-2:]
    _crop_size("centre_crop()", height, width, size)
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size]


def _crop_size(call: str, height: int, width: int, size: int | None) -> tuple[int, int]:
    """Return the height and width of the crops. If `size` is None, the images are not cropped."""
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
