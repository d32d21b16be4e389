"""What is stored of all images before the first step: their feature vectors, or the images on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.data.images import Augmentation, centre_crop
from regard.data.images.pixels import Pixels
from regard.models.image_encoders import ImageEncoder
from regard.tasks.captioning.feature_cache import FeatureCache, fits_on_device

__all__ = ["DeviceImages", "stored_images"]


class DeviceImages:
    """The images of a corpus on a GPU, so that a batch is selected there; copied when the first is needed.

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

        chosen: the index of each image, (B,); with `augmentation`, (B, 4), the index of each image and its
            row of Augmentation.draw().
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
    """Return what is stored of the images, from which a batch is selected by index; None if nothing is.

    encoder: the image encoder.
    pixels: the images.
    size: width and height in pixels of the images that the model reads.
    device: the device of the model.
    features: whether to store feature vectors, if images are not augmented. The encoder is frozen then.
    augmentation: random crops and flips of training images.
    """
    if features and augmentation is None:
        return FeatureCache(encoder, pixels, size)
    if pixels.in_memory and fits_on_device(device, 3 * pixels.size**2 * len(pixels)):
        return DeviceImages(pixels, size, device, augmentation)
    return None
