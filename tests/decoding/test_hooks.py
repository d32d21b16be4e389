"""Hooks and replaced layers take effect in training and in every search, also on paths that read weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.decoding import Beam, Greedy, Rules, search
from regard.decoding.active_rows import device_of
from regard.models import Model, build_model
from regard.models.captioner import Captioner
from regard.tasks.captioning.image_captioner import ImageBatch

WORDS = 10
BATCH = Batch.collate([[4, 5, 6], [6, 7], [4, 8]], [[4, 5], [5, 6, 7], [4, 9]])
SHORT = Rules(minimum=2, maximum=3)
SMALL: dict[str, Any] = {"width": 8, "heads": 2, "layers": 1, "inner": 16, "dropout": 0.0}

MODELS: dict[str, Callable[[], Model]] = {
    "seq2seq": lambda: build_model("seq2seq", WORDS, WORDS, width=8, depth=2),
    "bahdanau": lambda: build_model("bahdanau", WORDS, WORDS, width=8),
    "bahdanau of the paper": lambda: build_model(
        "bahdanau", WORDS, WORDS, width=8, encoder="paper", score="dot"
    ),
    "luong": lambda: build_model("luong", WORDS, WORDS, width=8, depth=2, view="local-p"),
    "luong affine": lambda: build_model(
        "luong", WORDS, WORDS, width=8, readout="affine", feeding=False, both_ways=True
    ),
    "luong mixture": lambda: build_model("luong", WORDS, WORDS, width=8, readout="latent"),
    "lstmn": lambda: build_model("lstmn", WORDS, WORDS, width=8),
    "lstmn shallow": lambda: build_model("lstmn", WORDS, WORDS, width=8, fusion="shallow", both_ways=True),
    "transformer": lambda: build_model("transformer", WORDS, WORDS, **SMALL),
    "transformer tied": lambda: build_model(
        "transformer", WORDS, WORDS, **SMALL, tie="all", activation="swiglu", norm="post"
    ),
    "captioner": lambda: Captioner(
        WORDS, width=5, embedding=4, encoder_options={"features": 6, "channels": 4, "blocks": 1}
    ),
}


def make(name: str) -> Model:
    torch.manual_seed(0)
    return MODELS[name]()


def sources(model: Model) -> Batch | ImageBatch:
    if not isinstance(model, Captioner):
        return BATCH
    pixels = torch.randint(0, 256, (3, 3, 16, 24), generator=torch.Generator().manual_seed(1))
    return ImageBatch.of(pixels.to(torch.uint8))


def logits(model: Model) -> Tensor:
    batch = sources(model).to(device_of(model))
    encoded = model.encode(batch.source, batch.source_lengths)
    return model.step(model.start(encoded), BATCH.to(device_of(model)).inputs, encoded)[1]


def scores(model: Model, how: Greedy | Beam) -> list[float]:
    look = None if isinstance(model, Captioner) else "cross"
    found = search(model.eval(), sources(model), how, look=look)
    return [score for hypotheses in found for score in hypotheses[0].token_scores]


WAYS: dict[str, Callable[[Model], object]] = {
    "training": lambda model: logits(model.train()),
    "greedy": lambda model: scores(model, Greedy(SHORT)),
    "beam": lambda model: scores(model, Beam(3, rules=SHORT)),
}


def check_hooks(model: Model, inner: str, expected: dict[str, object], tolerance: float = 1e-5) -> None:
    """Check that a hook of a submodule is called, and that it changes no result if it returns nothing."""
    module = model.get_submodule(inner)
    for way, run in WAYS.items():
        calls: list[int] = []
        # Half of the modules get a pre-hook, which has to have the same effect.
        pre = bool(len(inner) % 2)
        register = module.register_forward_pre_hook if pre else module.register_forward_hook
        handle = register(lambda *_, calls=calls: calls.append(1))
        found = run(model)
        handle.remove()
        assert calls, f"the hook of {inner} was not called in {way}"
        torch.testing.assert_close(found, expected[way], rtol=10 * tolerance, atol=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_hooks_of_all_modules_with_a_forward_are_called(name: str):
    model = make(name)
    expected = {way: run(model) for way, run in WAYS.items()}
    callable_modules = [
        inner
        for inner, module in model.named_modules()
        if inner and type(module).forward is not nn.Module.forward
    ]
    assert len(callable_modules) > 5
    for inner in callable_modules:
        check_hooks(model, inner, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["seq2seq", "bahdanau", "luong", "luong affine"])
def test_hooks_of_recurrent_layers_are_called_on_a_gpu(name: str):
    model = make(name).cuda()
    expected = {way: run(model) for way, run in WAYS.items()}
    layers = [inner for inner, module in model.named_modules() if isinstance(module, nn.RNNBase)]
    assert layers
    for inner in layers:
        check_hooks(model, inner, expected, tolerance=1e-3)  # cuDNN computes in TF32


class Adapted(nn.Module):
    """A layer of low rank beside a linear layer, as in LoRA (Hu et al. 2021)."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base, self.weight, self.bias = base, base.weight, base.bias
        self.down, self.up = nn.Linear(base.in_features, 2), nn.Linear(2, base.out_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_that_replaces_a_linear_layer_is_used(name: str):
    """Also if it has a weight: the search gives the scores of forward() of the replaced layer."""
    model = make(name)
    original = {way: run(model) for way, run in WAYS.items()}
    linear = [inner for inner, module in model.named_modules() if type(module) is nn.Linear]
    for inner in linear:
        parent, _, own = inner.rpartition(".")
        layer = model.get_submodule(inner)
        setattr(model.get_submodule(parent), own, Adapted(layer))
        changed = {way: run(model) for way, run in WAYS.items()}
        with torch.no_grad():
            torch.testing.assert_close(changed["training"], logits(model.eval()), rtol=1e-4, atol=1e-5)
        for way, result in changed.items():
            assert not torch.equal(torch.as_tensor(result), torch.as_tensor(original[way])), (
                f"{inner} in {way}"
            )
        setattr(model.get_submodule(parent), own, layer)
