"""FeatureCache: the feature vectors of all images, computed once by a frozen image encoder."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.data.images import centre_crop
from regard.data.images.pixels import Pixels, memory_limit
from regard.data.progress_bar import advancing
from regard.models.image_encoders import ImageEncoder

__all__ = ["FeatureCache", "features_fit"]

CHUNK = 64
"""Number of images that are encoded at once. It is fixed, so that the features of a resumed run are equal."""


def features_fit(encoder: ImageEncoder, images: int, size: int) -> bool:
    """Return whether the feature vectors of `images` images of size x size pixels fit in memory_limit()."""
    height, width = encoder.map_size(size, size)
    return 4 * images * height * width * encoder.features <= memory_limit()


class FeatureCache:
    """The feature vectors of images, in float32 on the CPU; computed when they are first needed.

    encoder: a frozen image encoder.
    pixels: the images.
    size: width and height that the encoder reads.
    """

    def __init__(self, encoder: ImageEncoder, pixels: Pixels, size: int):
        self.encoder, self.pixels, self.size = encoder, pixels, size
        self._features: Tensor | None = None

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the feature vectors (B, L, F) of the images at these positions."""
        if self._features is None:
            self._features = self._computed()
        return self._features[rows.cpu()]

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
        return torch.cat(parts)
