"""The precision of training steps on a CPU: its choice by processor flags, resuming, and its numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.data.batch import PAD, Batch
from regard.fast.twins import Twins
from regard.models import build_model
from regard.training import precision
from regard.training.gradients import coarse_products
from regard.training.losses import cross_entropy, model_loss, output_loss
from regard.training.precision import chosen_precision
from tests.training.toys import records, trainer

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "flags", "width", "chosen"),
    [
        ("bahdanau", {"avx512_bf16"}, 256, "bfloat16"),
        ("transformer", {"amx_bf16", "avx512_bf16"}, 256, "bfloat16"),
        ("transformer", set(), 256, "float32"),
        ("transformer", {"amx_bf16"}, 16, "float32"),  # a small model gains nothing
        ("luong", {"amx_bf16"}, 256, "float32"),
    ],
)
def test_auto_depends_on_processor_flags(name: str, flags: set[str], width: int, chosen: str):
    options = {"heads": 4, "layers": 1, "inner": 64} if name == "transformer" else {}
    model = build_model(name, 2000, 2000, width=width, **options)
    result = chosen_precision("auto", CPU, model, flags)
    assert result.name == chosen
    assert all(flag in result.reason for flag in flags) == (chosen == "bfloat16" or not flags)
    assert chosen_precision("float32", CPU, model, flags).name == "float32"


def _flags(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    monkeypatch.setattr(precision, "cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr(precision, "FASTER_ON_CPU", (_model_kind(),))
    monkeypatch.setattr(precision, "LEAST_PARAMETERS", 1)


def _model_kind() -> type[nn.Module]:
    return type(trainer(Path(), steps=1).model)


def _bits(folder: Path) -> list[Tensor]:
    newest = trainer(folder, steps=8).checkpoints.latest()
    assert newest is not None
    return list(newest.tensors("weights").values())


@pytest.mark.parametrize(("first", "then"), [(("amx_bf16",), ()), ((), ("amx_bf16",))])
def test_a_run_resumed_on_another_processor_keeps_its_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: tuple[str, ...], then: tuple[str, ...]
):
    _flags(monkeypatch, *first)
    whole = trainer(tmp_path / "whole", steps=8, schedule="constant")
    whole.run()
    assert whole.precision.name == ("bfloat16" if first else "float32")
    trainer(tmp_path / "parts", steps=4, schedule="constant").run()
    _flags(monkeypatch, *then)
    resumed = trainer(tmp_path / "parts", log=True, steps=8, schedule="constant")
    resumed.resume()
    assert resumed.precision.name == whole.precision.name
    resumed.run()
    for one, other in zip(_bits(tmp_path / "whole"), _bits(tmp_path / "parts"), strict=True):
        assert torch.equal(one, other)
    assert len(records(tmp_path / "parts", "precision")) == 1


def test_a_run_without_a_stored_precision_continues_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trainer(tmp_path, steps=2).run()
    state = max(tmp_path.glob("step-*/state.json"))
    content = json.loads(state.read_text(encoding="utf-8"))
    assert content.pop("precision") == "float32"
    _flags(monkeypatch, "amx_bf16")
    resumed = trainer(tmp_path, steps=4)
    assert resumed.precision.name == "bfloat16"
    resumed._keep_precision(content)
    assert resumed.precision.name == "float32" and not resumed.gradients.half


def _batch(rows: int = 12) -> Batch:
    source = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, 12, (2, rows), generator=source)
    sides: Any = [
        [torch.randint(4, 300, (int(n),), generator=source).tolist() for n in each] for each in lengths
    ]
    return Batch.collate(*sides)


def _loss_and_gradients(model: Any, mode: str) -> list[Tensor]:
    """Return loss and gradients: in float64, in plain autocast, or as a training step in bfloat16 does."""
    batch, model = _batch(), model.double() if mode == "exact" else model.float()
    model.zero_grad()
    if mode == "exact":
        cross_entropy(model(batch), batch.labels, 0.1)[0].backward()
    elif mode == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            total = cross_entropy(model(batch), batch.labels, 0.1)[0]
        total.backward()
    else:
        with Twins(model), coarse_products("medium"):
            with torch.autocast("cpu", torch.bfloat16):
                total = model_loss(model, batch, batch.labels, 0.1)[0]
            total.backward()
    return [each.grad.double().clone() for each in model.parameters()]


@pytest.mark.parametrize(
    ("name", "options"),
    [("bahdanau", {"width": 64}), ("transformer", {"width": 64, "heads": 4, "layers": 1, "inner": 128})],
)
def test_gradients_in_bfloat16_are_as_exact_as_those_of_plain_autocast(name: str, options: dict[str, Any]):
    torch.manual_seed(0)
    model = build_model(name, 300, 310, **options, dropout=0.0).train()
    exact, plain, ours = (_loss_and_gradients(model, mode) for mode in ("exact", "autocast", "ours"))
    for one, two, three in zip(exact, plain, ours, strict=True):
        size = one.norm()
        assert (three - one).norm() <= 2 * (two - one).norm() + 2**-8 * size


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_the_chunked_loss_is_that_of_all_logits(
    smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("regard.fast.vocabulary_loss.CHUNK", chunk)
    torch.manual_seed(0)
    layer, labels = nn.Linear(16, 37), torch.randint(1, 37, (3, 7))
    labels[1, 4:] = PAD
    features = torch.randn(3, 7, 16, requires_grad=True)
    wanted = cross_entropy(layer(features), labels, smoothing)
    exact = torch.autograd.grad(wanted[0], (features, *layer.parameters()))
    with torch.autocast("cpu", torch.bfloat16):
        found = output_loss(features, layer, labels, smoothing)
    assert found[0].dtype == torch.float32 and not found[1].requires_grad
    for one, other in zip(wanted, found, strict=True):
        assert abs(one.item() - other.item()) < 0.005 * abs(one.item())
    for one, other in zip(exact, torch.autograd.grad(found[0], (features, *layer.parameters())), strict=True):
        assert one.dtype == other.dtype and (one - other).norm() < 0.01 * one.norm()


def test_a_batch_of_padding_has_no_loss():
    layer, features = nn.Linear(4, 9), torch.randn(1, 3, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        total, plain = output_loss(features, layer, torch.full((1, 3), PAD), 0.1)
    total.backward()
    assert total.item() == plain.item() == 0.0
    assert features.grad is not None and not features.grad.any()
