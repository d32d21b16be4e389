"""Store the feature vectors of all images in memory, or all images on a GPU, so that batches are fast."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.data.images import Augmentation, centre_crop
from regard.data.images.image_file import Pixels
from regard.image_encoders import ImageEncoder
from regard.tasks.captioning.feature_cache import FeatureCache, fits_on_device

__all__ = ["DeviceImages", "stored_images"]


class DeviceImages:
    """All images of a corpus on a GPU, so that each batch is selected there.

    The images are copied to the GPU when the first batch is selected.

    pixels: the images, in memory.
    size: width and height in pixels of the images that the model reads.
    device: the device.
    augmentation: random crops and flips, for training. If it is None, larger images are cropped at the
        centre.

    >>> images = DeviceImages(Pixels(4, torch.zeros(9, 3, 4, 4, dtype=torch.uint8)), 2, "cpu")
    >>> images[torch.tensor([3, 3])].shape
    torch.Size([2, 3, 2, 2])
    """

    def __init__(
        self, pixels: Pixels, size: int, device: torch.device | str, augmentation: Augmentation | None = None
    ):
        self.pixels, self.size, self.device, self.augmentation = pixels, size, device, augmentation
        self._images: Tensor | None = None

    def __getitem__(self, chosen: Tensor) -> Tensor:
        """Return images, uint8, (B, 3, size, size).

        chosen: (B,), the index of each image. With `augmentation`, (B, 4): the index of each image, and the
            three numbers of its random crop and flip, from Augmentation.draw().
        """
        if self._images is None:
            self._images = self.pixels.on_device(self.device)
        on_device = chosen.to(self._images.device)
        if self.augmentation is None:
            return centre_crop(self._images[on_device], self.size)
        return self.augmentation.apply(self._images[on_device[:, 0]], on_device[:, 1:])


def stored_images(
    encoder: ImageEncoder,
    pixels: Pixels,
    size: int,
    device: torch.device | str,
    *,
    features: bool,
    augmentation: Augmentation | None = None,
) -> FeatureCache | DeviceImages | None:
    """Choose what to store for all images: their feature vectors, the images on a GPU, or nothing.

    Return a FeatureCache or DeviceImages, from which batches are selected by index, or None to store nothing.

    encoder: the image encoder.
    pixels: the images.
    size: width and height in pixels of the images that the model reads.
    device: the device of the model.
    features: whether the encoder is frozen and the feature vectors fit in memory. Then feature vectors are
        stored, if `augmentation` is None.
    augmentation: random crops and flips of training images.
    """
    if features and augmentation is None:
        return FeatureCache(encoder, pixels, size)
    if pixels.in_memory and fits_on_device(device, 3 * pixels.size**2 * len(pixels)):
        return DeviceImages(pixels, size, device, augmentation)
    return None
