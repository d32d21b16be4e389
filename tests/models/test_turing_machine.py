"""The neural Turing machine: both ways to run it agree; state, sites, safety, bad options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import regard
from regard.data.batch import TapeBatch
from regard.errors import ArgumentError, UnknownName
from regard.layers.tape_heads import shifted
from regard.models.turing_machine import NeuralTuringMachine
from regard.named_models.sequence_models import SEQUENCE_MODELS, build_sequence_model
from regard.sites import declared_sites
from regard.tasks.algorithms.task import answer_loss

SITES = ["tape.content", "tape.read", "tape.write"]


def machine(**options: Any) -> NeuralTuringMachine:
    torch.manual_seed(0)
    sizes = {"width": 7, "slots": 9, "slot_width": 6}
    model = NeuralTuringMachine(5, 4, **{**sizes, **options}).double()
    with torch.no_grad():
        for each in model.parameters():
            each += torch.randn_like(each) * 0.3
    return model


@pytest.mark.parametrize("name", SEQUENCE_MODELS)
def test_one_call_is_the_same_as_several(name: str):
    model = build_sequence_model(name, 5, 4, width=8).double()
    x = torch.randn(2, 5, 5, dtype=torch.float64)
    whole, last = model(x)
    first, state = model(x[:, :2])
    second, state = model(x[:, 2:], state)
    assert torch.allclose(torch.cat((first, second), 1), whole)
    tensors = state.tensors if name == "ntm" else state
    assert all(map(torch.allclose, tensors, last.tensors if name == "ntm" else last))


def test_weights_are_distributions_and_start_at_slot_0():
    model = machine(heads=2)
    assert model.start(3).weights[:, :, 0].eq(1).all()
    _, state = model(torch.randn(3, 6, 5, dtype=torch.float64) * 30)
    assert torch.allclose(state.weights.sum(-1), torch.ones(3, 4).double())
    assert state.select(torch.tensor([2, 0])).memory.shape == (2, 9, 6)


@pytest.mark.parametrize("max_shift", [1, 2])
def test_forward_heads_first_prefer_to_move_forward(max_shift: int):
    options = {"max_shift": max_shift, "initial_heads": "forward"}
    model = NeuralTuringMachine(5, 4, width=7, slots=9, slot_width=6, heads=2, **options)
    parts = model.layout.activated(model.heads.bias[None])
    assert parts.gate is not None and parts.gamma is not None and parts.shift is not None
    assert torch.allclose(parts.gate, torch.tensor(0.1192), atol=1e-4)
    assert torch.allclose(parts.gamma, torch.tensor(3.1269), atol=1e-4)
    ahead = shifted(functional.one_hot(torch.tensor(4), 9).float().expand(1, 4, 9), parts.shift)
    assert (ahead.argmax(-1) == 5).all() and (ahead[..., 5] > 2.7 * ahead[..., 4]).all()


def test_initial_heads_change_only_biases_of_the_heads():
    models = []
    for name in ("neutral", "forward"):
        torch.manual_seed(0)
        models.append(NeuralTuringMachine(5, 4, width=7, slots=9, slot_width=6, initial_heads=name))
    neutral, forward = (dict(each.named_parameters()) for each in models)
    assert neutral["heads.bias"].eq(0).all() and forward["heads.bias"].count_nonzero() == 3 * 2
    del neutral["heads.bias"], forward["heads.bias"]
    assert all(torch.equal(forward[name], each) for name, each in neutral.items())


def test_sites_are_recorded_and_edited():
    model, x = machine(), torch.randn(2, 4, 5, dtype=torch.float64)
    plain, _ = model(x)
    assert list(declared_sites(model)) == SITES
    assert regard.name_sites(model) == SITES
    with regard.record(regard.Look(weights=True), at="memory") as seen:
        logits, _ = model(x)
    assert torch.allclose(logits, plain) and sorted(seen) == SITES
    assert len(seen["tape.read"]) == 4 and seen["tape.write"][0].weights.shape == (2, 1, 1, 9)
    for site in SITES:
        with regard.intervene(uniform=True, at=site):
            assert not torch.allclose(model(x)[0], plain)
    with regard.intervene(uniform=2, at="tape.read"):  # at step 2 only, also if steps are run one by one
        edited, _ = model(x)
        first, state = model(x[:, :2])
        assert torch.allclose(torch.cat((first, model(x[:, 2:], state)[0]), 1), edited)
    assert torch.allclose(edited[:, :2], plain[:, :2]) and not torch.allclose(edited[:, 2], plain[:, 2])


def test_autocast_keeps_float32():
    model = machine().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, state = model(torch.randn(2, 3, 5))
    assert state.memory.dtype == torch.float32 and logits.dtype == torch.float32


def test_longer_tape():
    x = torch.randn(1, 3, 5).double()
    model = machine(addressing="location")
    logits, state = model(x, model.start(1, slots=40))
    assert state.memory.shape == (1, 40, 6) and torch.allclose(logits, model(x)[0])
    with pytest.raises(ArgumentError, match="learned"):
        machine(addressing="content").start(1, slots=40)


@pytest.mark.parametrize("name", ["lstm", "gru"])
@pytest.mark.parametrize("depth", [1, 3])
def test_baselines_have_the_parameters_of_the_machine(name: str, depth: int):
    target = sum(each.numel() for each in NeuralTuringMachine(9, 8).parameters())
    count = sum(each.numel() for each in build_sequence_model(name, 9, 8, depth=depth).parameters())
    assert abs(count - target) / target < 0.03
    small = build_sequence_model(name, 9, 8, parameters=1)
    assert small.output.in_features == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"controller": "cnn"}, UnknownName),
        ({"addressing": "no"}, UnknownName),
        ({"initial_heads": "random"}, UnknownName),
        ({"wide": 3}, UnknownName),
        ({"slots": 2}, ArgumentError),
        ({"slots": 0}, ArgumentError),
        ({"heads": 0}, ArgumentError),
        ({"slot_width": 0}, ArgumentError),
        ({"slots": 10**9}, ArgumentError),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception]):
    with pytest.raises(error):
        build_sequence_model("ntm", 5, 4, **options)


def test_answer_loss_counts_scored_bits_only():
    scored = torch.tensor([[True, False], [False, False]])
    batch = TapeBatch(torch.zeros(2, 2, 1), torch.ones(2, 2, 3), scored)
    logits = torch.randn(2, 2, 3)
    assert answer_loss(logits, batch).tolist() == pytest.approx(
        [-float(functional.logsigmoid(logits[0, 0]).sum()), 0]
    )
