"""Image encoders: turn images into L feature vectors, the memory that a captioner attends to.

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

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import ArgumentError, UnknownName, message, positive

__all__ = ["IMAGE_ENCODERS", "ConvolutionalEncoder", "ImageEncoder", "build_image_encoder"]


class ImageEncoder(nn.Module):
    """Base class of image encoders; a subclass implements feature_map() and map_size().

    forward(images) returns feature vectors (B, L, F) of images (B, 3, H, W): uint8 with values 0 to 255, or
    floating point with values 0 to 1. The encoder normalises them by `mean` and `deviation`.

    features: F, the size of a feature vector.
    frozen: whether the encoder is not trained. A frozen encoder is always in eval mode, it runs without
        gradients, and its weights have requires_grad=False.
    mean, deviation: the mean and standard deviation of the pixels of each channel, for values 0 to 1.
    """

    features: int
    frozen: bool = False
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    deviation: tuple[float, float, float] = (0.25, 0.25, 0.25)

    def map_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width (h, w) of the feature map of an image; L = h * w."""
        raise TypeError(f"{type(self).__name__} does not implement map_size()")

    def feature_map(self, images_BCHW: Tensor) -> Tensor:
        """Return the feature map (B, F, h, w) of normalised images."""
        raise TypeError(f"{type(self).__name__} does not implement feature_map()")

    def freeze(self) -> None:
        """Make the encoder frozen; see the docstring of the class."""
        self.frozen = True
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> ImageEncoder:
        """Set training or eval mode. A frozen encoder stays in eval mode."""
        return super().train(mode and not self.frozen)

    def forward(self, images: Tensor) -> Tensor:
        call = f"{type(self).__name__}()"
        if images.dim() != 4 or images.shape[1] != 3:
            shown = {"images": (images, "BCHW"[: images.dim()])}
            raise ArgumentError(message(call, "the shape of images is wrong", shown, "(B, 3, height, width)"))
        height, width = images.shape[2:]
        if 0 in self.map_size(height, width):
            problem = f"the feature map of images of {width} x {height} pixels is empty"
            hint = "use larger images, or an option of the encoder with a larger feature map"
            raise ArgumentError(message(call, problem, expected="at least one feature vector", hint=hint))
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            map_BFhw = self.feature_map(self._normalised(images))
            return map_BFhw.flatten(2).transpose(1, 2)

    def _normalised(self, images: Tensor) -> Tensor:
        dtype = next(self.parameters()).dtype
        mean, deviation = (
            torch.tensor(each, dtype=dtype, device=images.device)[:, None, None]
            for each in (self.mean, self.deviation)
        )
        values = images.to(dtype)
        return ((values if images.is_floating_point() else values / 255) - mean) / deviation


class ConvolutionalEncoder(ImageEncoder):
    """A small convolutional network, trained together with the captioner.

    Each stage halves height and width: a 3 x 3 convolution with stride 2, group normalisation and ReLU. One
    3 x 3 convolution follows, so that a feature vector sees the neighbourhood of its place. It has the
    coordinates of each place, from -1 to 1, as two more input channels, so that a feature vector knows its
    place (Liu et al. 2018). Then residual 1 x 1 convolutions follow, x + relu(norm(convolution(x))); with
    3 x 3 convolutions, more places would see the same object. Last, each feature vector is normalised to mean
    0 and variance 1 (layer normalisation).

    features: F, the size of a feature vector.
    channels: number of channels of the first stage; each later stage has twice as many, at most `features`.
    stages: number of stages. 3 stages turn 64 x 64 pixels into an 8 x 8 map, and 128 x 128 pixels into a
        16 x 16 map; with 4 stages, 128 x 128 pixels give an 8 x 8 map.
    blocks: number of residual convolutions.

    >>> encoder = ConvolutionalEncoder(features=16, channels=4)
    >>> encoder(torch.zeros(2, 3, 64, 64, dtype=torch.uint8)).shape, encoder.map_size(64, 64)
    (torch.Size([2, 64, 16]), (8, 8))
    """

    def __init__(self, features: int = 64, channels: int = 16, stages: int = 3, blocks: int = 1):
        super().__init__()
        sizes = {"features": features, "channels": channels, "stages": stages, "blocks": blocks}
        positive("ConvolutionalEncoder()", **sizes)
        self.features = features
        outputs = [min(channels * 2**stage, features) for stage in range(stages)]
        inputs = [3, *outputs]
        self.stages = nn.ModuleList(
            _layer(before, after, stride=2) for before, after in zip(inputs, outputs, strict=False)
        )
        self.first = _layer(inputs[-1] + 2, features)
        self.blocks = nn.ModuleList(_layer(features, features, size=1) for _ in range(blocks))

    def map_size(self, height: int, width: int) -> tuple[int, int]:
        for _ in self.stages:
            height, width = (height + 1) // 2, (width + 1) // 2
        return height, width

    def feature_map(self, images_BCHW: Tensor) -> Tensor:
        map_BChw = images_BCHW
        for stage in self.stages:
            map_BChw = stage(map_BChw)
        coordinates_B2hw = _coordinates(map_BChw).expand(len(map_BChw), -1, -1, -1)
        map_BFhw: Tensor = self.first(torch.cat((map_BChw, coordinates_B2hw), 1))
        for block in self.blocks:
            map_BFhw = map_BFhw + block(map_BFhw)
        # Without this, all features are positive and their mean would hide the differences between places.
        places_BhwF = map_BFhw.movedim(1, -1)
        return functional.layer_norm(places_BhwF, places_BhwF.shape[-1:]).movedim(-1, 1)


def _layer(inputs: int, outputs: int, stride: int = 1, size: int = 3) -> nn.Sequential:
    """A convolution (3 x 3 by default), normalisation over all channels and places of an image, and ReLU."""
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.GroupNorm(1, outputs), nn.ReLU())


def _coordinates(map_BChw: Tensor) -> Tensor:
    """Return the vertical and horizontal coordinates of a feature map, from -1 to 1, (1, 2, h, w)."""
    rows_h, columns_w = (
        (2 * torch.arange(size, dtype=map_BChw.dtype, device=map_BChw.device) + 1) / size - 1
        for size in map_BChw.shape[2:]
    )
    return torch.stack(torch.meshgrid(rows_h, columns_w, indexing="ij"))[None]


IMAGE_ENCODERS: dict[str, Callable[[], type[ImageEncoder]]] = {
    "convolutional": lambda: ConvolutionalEncoder,
    "efficientnet-lite0": lambda: _imported("efficientnet", "EfficientNetLite0"),
}
"""All image encoders except those of timm; for each name, a function that returns the class."""

TIMM = "timm:"
"""The names of image encoders that begin with this are models of timm."""


def build_image_encoder(name: str, **options: Any) -> ImageEncoder:
    """Build an image encoder from its name and plain options, such as those of a configuration file.

    name: a name in IMAGE_ENCODERS, or "timm:" and the name of a model of timm, such as "timm:resnet50".
    options: the arguments of the encoder's class: ConvolutionalEncoder, EfficientNetLite0 or TimmEncoder.

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
    kind: type[ImageEncoder] = getattr(importlib.import_module(f"regard.models.{module}"), name)
    return kind
