"""TimmEncoder: a model of timm (PyTorch Image Models) as image encoder, with weights from a local file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentError, DataError, UnknownName, message
from regard.files.requirements import install_command
from regard.files.tensor_file import read_tensors
from regard.image_encoders.image_encoder import ImageEncoder

__all__ = ["TimmEncoder"]


class TimmEncoder(ImageEncoder):
    """An image encoder that uses a model of timm (PyTorch Image Models).

    Its feature vectors are the cells of one feature map of the model.

    model: the name of the model in timm, such as "resnet50".
    weights: path of a safetensors file with the weights of the whole model, as timm publishes it. Nothing is
        downloaded. Default: random weights.
    layer: index of the feature map in the list that forward_intermediates() of timm returns. -1 is the last
        feature map. The feature map -2 usually has twice its height and width.
    frozen: if True, the weights of the encoder are not trained. Default: True if `weights` is set.
    """

    def __init__(self, model: str, weights: str | None = None, layer: int = -1, frozen: bool | None = None):
        super().__init__()
        self.call = f"image encoder timm:{model}"
        self.layer = layer
        self.model = _create(self.call, model)
        cfg = getattr(self.model, "pretrained_cfg", None) or {}
        self.mean, self.deviation = cfg.get("mean", self.mean), cfg.get("std", self.deviation)
        if weights is not None:
            _load(self.model, Path(weights))
        self.side = int(cfg.get("input_size", (3, 224, 224))[-1])
        self.features = self._example(self.side, self.side).shape[1]
        if weights is not None if frozen is None else frozen:
            self.freeze()

    def map_size(self, height: int, width: int) -> tuple[int, int]:
        rows, columns = self._example(height, width).shape[2:]
        return rows, columns

    def feature_map(self, images_BCHW: Tensor) -> Tensor:
        try:
            maps = self.model.forward_intermediates(
                images_BCHW, indices=None, output_fmt="NCHW", intermediates_only=True
            )
        except (AssertionError, RuntimeError) as error:  # for example, an image size that the model rejects
            size = " x ".join(map(str, images_BCHW.shape[:1:-1]))
            problem = f"the model cannot read images of {size} pixels: {error}"
            hint = f"use the image size of its training, {self.side} x {self.side} pixels"
            raise ArgumentError(message(self.call, problem, hint=hint)) from None
        if not -len(maps) <= self.layer < len(maps):
            expected = f"-{len(maps)} <= layer < {len(maps)}"
            raise ArgumentError(message(self.call, f"layer is {self.layer}", expected=expected))
        return maps[self.layer]

    @torch.no_grad()
    def _example(self, height: int, width: int) -> Tensor:
        """Return the feature map (1, F, h, w) of one image of zeros, to find the sizes F, h and w."""
        training = self.model.training
        self.model.eval()
        weight = next(self.model.parameters())
        example = self.feature_map(weight.new_zeros(1, 3, height, width))
        self.model.train(training)
        return example


def _create(call: str, name: str) -> Any:
    if importlib.util.find_spec("timm") is None:
        raise ArgumentError(message(call, "timm is not installed", hint=install_command("timm")))
    import timm  # type: ignore[import-not-found, unused-ignore]

    if not timm.is_model(name):
        similar = timm.list_models(f"*{name.split('_')[0].split('.')[0]}*")[:8]
        raise UnknownName("model of timm", name, similar)
    model = timm.create_model(name, pretrained=False)
    if not hasattr(model, "forward_intermediates"):
        problem = "the model cannot return feature maps: it has no method forward_intermediates()"
        raise ArgumentError(message(call, problem, hint="choose another model of timm"))
    return model


def _load(model: torch.nn.Module, path: Path) -> None:
    """Load the weights of a model from a safetensors file.

    Raise DataError if a weight of the model is not in the file, or has another shape in the file.
    """
    weights = read_tensors(path)
    expected = {name: weight.shape for name, weight in model.state_dict().items()}
    wrong = [name for name, shape in expected.items() if name not in weights or weights[name].shape != shape]
    if wrong:
        problem = f"{len(wrong)} weights are missing or have another shape, for example {wrong[0]}"
        raise DataError(message(str(path), problem, expected="a weights file of this model"))
    model.load_state_dict({name: weights[name] for name in expected})
