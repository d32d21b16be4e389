"""FeatureCache: the feature vectors of all images, computed once by a frozen image encoder."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.data.images import centre_crop
from regard.data.images.image_file import Pixels, memory_limit
from regard.data.progress_bar import advancing
from regard.image_encoders import ImageEncoder

__all__ = ["FeatureCache", "features_fit", "fits_on_device"]

CHUNK = 64
"""Number of images that are encoded in one batch. It does not depend on settings, so that a resumed run
computes exactly the same feature vectors."""


DEVICE_PART = 8
"""Tensors are kept on a GPU if they need at most 1 / DEVICE_PART of its free memory."""


def fits_on_device(device: torch.device | str, needed: int) -> bool:
    """Return whether `device` is a GPU with enough free memory to keep `needed` bytes there all the time."""
    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        return False
    return needed * DEVICE_PART <= torch.cuda.mem_get_info(device)[0]


def features_fit(encoder: ImageEncoder, images: int, size: int) -> bool:
    """Return whether the feature vectors of all images need at most memory_limit() bytes.

    encoder: the image encoder.
    images: number of images.
    size: width and height of the images in pixels.
    """
    height, width = encoder.map_size(size, size)
    return 4 * images * height * width * encoder.features <= memory_limit()


class FeatureCache:
    """The feature vectors of images, in float32. All of them are computed at the first access.

    If the device of the encoder is a GPU with enough free memory, the feature vectors stay on this device.
    Otherwise, they are moved to the CPU.

    encoder: a frozen image encoder.
    pixels: the images.
    size: each image is cropped at the centre to this width and height in pixels, then encoded.
    """

    def __init__(self, encoder: ImageEncoder, pixels: Pixels, size: int):
        self.encoder, self.pixels, self.size = encoder, pixels, size
        self._features: Tensor | None = None

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the feature vectors (B, L, F) of the images with these indices. rows: int64, (B,)."""
        if self._features is None:
            self._features = self._computed()
        return self._features[rows.to(self._features.device)]

    @torch.no_grad()
    def _computed(self) -> Tensor:
        device, parts = next(self.encoder.parameters()).device, list[Tensor]()
        with advancing("computing features", len(self.pixels)) as report:
            for start in range(0, len(self.pixels), CHUNK):
                rows = torch.arange(start, min(start + CHUNK, len(self.pixels)))
                images = centre_crop(self.pixels[rows], self.size).to(device)
                with torch.autocast(device.type, enabled=False):
                    parts.append(self.encoder(images).float().cpu())
                report(start + len(rows))
        features = torch.cat(parts)
        return features.to(device) if fits_on_device(device, features.nbytes) else features
