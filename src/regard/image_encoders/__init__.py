"""Image encoders: compute L feature vectors of each image, to which a captioner attends.

    encoder = build_image_encoder("convolutional")
    features_BLF = encoder(images)                  # (B, L, F)
    height, width = encoder.map_size(64, 64)        # L = height * width, row by row from the top left

To add an encoder: write its class in a file of its own, and add one line to IMAGE_ENCODERS.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from inspect import signature
from typing import Any

from regard.errors import UnknownName
from regard.image_encoders.image_encoder import ConvolutionalEncoder, ImageEncoder

__all__ = ["IMAGE_ENCODERS", "ConvolutionalEncoder", "ImageEncoder", "build_image_encoder"]

IMAGE_ENCODERS: dict[str, Callable[[], type[ImageEncoder]]] = {
    "convolutional": lambda: ConvolutionalEncoder,
    "efficientnet-lite0": lambda: _imported("efficientnet", "EfficientNetLite0"),
}
"""All image encoders except the models of timm, by name. The values are functions that return the class. So
the class is imported only when it is needed."""

TIMM = "timm:"
"""Prefix of the names of image encoders that are models of timm, such as "timm:resnet50"."""


def build_image_encoder(name: str, **options: Any) -> ImageEncoder:
    """Build an image encoder from its name and options, for example the options of a configuration file.

    name: a name in IMAGE_ENCODERS, or "timm:" and the name of a model of timm, such as "timm:resnet50".
    options: keyword arguments of the encoder: ConvolutionalEncoder(), EfficientNetLite0() or TimmEncoder().

    >>> build_image_encoder("convolutional", stages=4).map_size(128, 128)
    (8, 8)
    """
    if name.startswith(TIMM):
        kind = _imported("timm_encoder", "TimmEncoder")
        options["model"] = name.removeprefix(TIMM)
    elif name in IMAGE_ENCODERS:
        kind = IMAGE_ENCODERS[name]()
    else:
        raise UnknownName("image encoder", name, (*IMAGE_ENCODERS, "timm:NAME"))
    known = list(signature(kind).parameters)
    for option in options:
        if option not in known:
            raise UnknownName(f"option of the image encoder {name}", option, known)
    return kind(**options)


def _imported(module: str, name: str) -> type[ImageEncoder]:
    kind: type[ImageEncoder] = getattr(importlib.import_module(f"regard.image_encoders.{module}"), name)
    return kind
