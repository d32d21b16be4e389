"""Models that transformers distributes over devices (device_map) or quantises are recorded like others."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from tests.conftest import SKIPS
from tests.huggingface.small_models import build, tokens

pytest.importorskip("transformers", reason=SKIPS["transformers"])

from regard import huggingface


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a small Llama."""
    huggingface.register()
    build("llama")[0].save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def load(folder: Path, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="regard", **options).eval()


def assert_looks_equal_eager(model: Any) -> None:
    inputs, look = tokens(9, 9), regard.Look(weights=True, entropy=True, mass=True)
    with torch.no_grad(), regard.record(look) as seen:
        logits = model(**inputs).logits
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True)
    torch.testing.assert_close(logits, expected.logits, atol=1e-5, rtol=1e-4)
    assert list(seen) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    for (attended,), weights in zip(seen.values(), expected.attentions, strict=True):
        torch.testing.assert_close(attended.weights, weights, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(attended.mass, weights.sum(-2), atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(not installed("accelerate"), reason=SKIPS["accelerate"])
def test_a_model_with_a_device_map_and_a_layer_on_disk(folder: Path, tmp_path: Path):
    parts = ("model.embed_tokens", "model.layers.0", "model.norm", "model.rotary_emb", "lm_head")
    places = {**dict.fromkeys(parts, "cpu"), "model.layers.1": "disk"}
    model = load(folder, device_map=places, offload_folder=tmp_path / "offload")
    assert {each.device.type for each in model.model.layers[1].parameters()} == {"meta"}
    assert_looks_equal_eager(model)


@pytest.mark.skipif(not installed("torchao"), reason=SKIPS["torchao"])
@pytest.mark.filterwarnings("ignore")  # the import of torchao warns about its own libraries
def test_a_quantised_model(folder: Path):
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    model = load(folder, quantization_config=TorchAoConfig(Int8WeightOnlyConfig()))
    assert "Int8" in type(model.model.layers[0].self_attn.q_proj.weight).__name__
    assert_looks_equal_eager(model)
