"""ImageEncoder, the base class, and ConvolutionalEncoder, which is trained together with the captioner."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import ArgumentError, message, positive

__all__ = ["ConvolutionalEncoder", "ImageEncoder"]


class ImageEncoder(nn.Module):
    """Base class of image encoders; a subclass implements feature_map() and map_size().

    forward(images) returns L feature vectors for each image, (B, L, F). The images have the shape (B, 3, H,
    W). Their pixels are uint8 with values 0 to 255, or floating point with values 0 to 1. The encoder
    normalises the pixels by `mean` and `deviation`. It also normalises each feature vector to mean 0 and
    variance 1 (layer normalisation without weights), because the scale of feature maps differs much between
    encoders. For example, the scale is 7 for EfficientNet-Lite0 with stride 16.

    features: F, the size of a feature vector.
    frozen: whether the weights of the encoder stay fixed in training. A frozen encoder is always in eval
        mode, runs without gradients, and its weights have requires_grad=False.
    mean, deviation: the mean and standard deviation of the pixels of each channel, for values 0 to 1.
    """

    features: int
    frozen: bool = False
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    deviation: tuple[float, float, float] = (0.25, 0.25, 0.25)

    def map_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width (h, w) of the feature map; an image has L = h * w feature vectors.

        height: height of the image in pixels.
        width: width of the image in pixels.
        """
        raise TypeError(f"{type(self).__name__} does not implement map_size()")

    def feature_map(self, images_BCHW: Tensor) -> Tensor:
        """Return the feature map (B, F, h, w) of images.

        images_BCHW: images (B, 3, H, W), normalised by `mean` and `deviation`.
        """
        raise TypeError(f"{type(self).__name__} does not implement feature_map()")

    def freeze(self) -> None:
        """Stop training the encoder: set eval mode and requires_grad=False for all its weights."""
        self.frozen = True
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> ImageEncoder:
        """Set training mode, or eval mode if `mode` is False. A frozen encoder stays in eval mode."""
        return super().train(mode and not self.frozen)

    def forward(self, images: Tensor) -> Tensor:
        call = f"{type(self).__name__}()"
        if images.dim() != 4 or images.shape[1] != 3:
            shown = {"images": (images, "BCHW"[: images.dim()])}
            raise ArgumentError(message(call, "the shape of images is wrong", shown, "(B, 3, height, width)"))
        height, width = images.shape[2:]
        if 0 in self.map_size(height, width):
            problem = f"the feature map of an image of {width} x {height} pixels is empty"
            hint = "use larger images, or options of the encoder that give a larger feature map"
            raise ArgumentError(message(call, problem, expected="at least one feature vector", hint=hint))
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            map_BFhw = self.feature_map(self._normalised(images))
            features_BLF = map_BFhw.flatten(2).transpose(1, 2)
            return functional.layer_norm(features_BLF, features_BLF.shape[-1:])

    def _normalised(self, images: Tensor) -> Tensor:
        dtype = next(self.parameters()).dtype
        mean, deviation = (
            _channel_constants(each, dtype, images.device) for each in (self.mean, self.deviation)
        )
        values = images.to(dtype)
        return ((values if images.is_floating_point() else values / 255) - mean) / deviation


@functools.lru_cache(maxsize=64)
def _channel_constants(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return one number for each channel of an image as a tensor (3, 1, 1).

    Cached: building the tensor on a GPU would synchronise, which is an error while a CUDA graph is captured.
    """
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)[:, None, None]


class ConvolutionalEncoder(ImageEncoder):
    """A small convolutional network, trained together with the captioner.

    The network has four parts:
    1. Stages, each of which halves height and width: a 3 x 3 convolution with stride 2, group normalisation
       and ReLU.
    2. One 3 x 3 convolution, so that a feature vector also depends on the neighbouring cells. It has two more
       input channels, the coordinates of each cell from -1 to 1, so that a feature vector also depends on its
       location (CoordConv, Liu et al. 2018).
    3. A linear projection of the mean colour of each cell, which is added to the result of part 2. The stages
       alone learn colours much later than forms.
    4. Residual 1 x 1 convolutions, x + relu(norm(convolution(x))). With 3 x 3 convolutions, an object would
       change the feature vectors of more cells around it.

    features: F, the size of a feature vector.
    channels: number of channels of the first stage. Each later stage has twice as many channels as the stage
        before, but at most `features`.
    stages: number of stages. With 3 stages, an image of 64 x 64 pixels has 8 x 8 cells. With 4 stages, an
        image of 128 x 128 pixels has 8 x 8 cells.
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
        self.colour = nn.Conv2d(3, features, 1, bias=False)
        self.blocks = nn.ModuleList(_layer(features, features, size=1) for _ in range(blocks))

    def map_size(self, height: int, width: int) -> tuple[int, int]:
        for _ in self.stages:
            height, width = (height + 1) // 2, (width + 1) // 2
        return height, width

    def feature_map(self, images_BCHW: Tensor) -> Tensor:
        map_BChw = images_BCHW
        for stage in self.stages:
            map_BChw = stage(map_BChw)
        height, width = map_BChw.shape[2:]
        coordinates_BChw = _coordinates(map_BChw).expand(len(map_BChw), -1, -1, -1)
        mean_BChw = functional.adaptive_avg_pool2d(images_BCHW, (height, width))
        map_BFhw = self.first(torch.cat((map_BChw, coordinates_BChw), 1)) + self.colour(mean_BChw)
        for block in self.blocks:
            map_BFhw = map_BFhw + block(map_BFhw)
        return map_BFhw


def _layer(inputs: int, outputs: int, stride: int = 1, size: int = 3) -> nn.Sequential:
    """Return a convolution (3 x 3 by default), normalisation over all values of an image, and ReLU."""
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.GroupNorm(1, outputs), nn.ReLU())


def _coordinates(map_BChw: Tensor) -> Tensor:
    """Return the coordinates (vertical, horizontal) of each cell of a feature map, -1 to 1; (1, 2, h, w)."""
    rows_h, columns_w = (
        (2 * torch.arange(size, dtype=map_BChw.dtype, device=map_BChw.device) + 1) / size - 1
        for size in map_BChw.shape[2:]
    )
    return torch.stack(torch.meshgrid(rows_h, columns_w, indexing="ij"))[None]
