"""Several seeds as one stacked model: each seed gets the parameters of training it alone, to rounding."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.errors import ArgumentError, DataError, RegardError
from regard.models import build_model
from regard.training.estimators import Reinforce, log_likelihood
from regard.training.hard_selections import hard_selections
from regard.training.optimizer import build_optimizer
from regard.training.stacked_seeds import StackedSeeds
from regard.training.task import Loss

SIZE, STEPS, SEEDS, CLIP, RATE, DECAY = 11, 3, (7, 8, 9), 1.0, 0.01, 0.1
SMALL = {"width": 8, "heads": 2, "inner": 8, "layers": 1}
BATCHES = [
    Batch.collate([[4, 5, 6, 7, 8], [9], [10, 4]], [[5, 6], [7, 8, 9, 10], []]),
    Batch.collate([[10], [4, 9]], [[5], [7, 8]]),
]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("transformer", {**SMALL, "dropout": 0.0}),
    "transformer dropout": ("transformer", {**SMALL, "dropout": 0.2, "inner_dropout": 0.0, "tie": "all"}),
    "transformer additive entmax": (
        "transformer",
        {**SMALL, "dropout": 0.1, "score": "additive", "select": "entmax", "position": "t5"},
    ),
    "transformer relative": ("transformer", {**SMALL, "dropout": 0.0, "position": "relative"}),
    "transformer straight-through": ("transformer", {**SMALL, "dropout": 0.0, "select": "straight-through"}),
    "transformer hard": ("transformer", {**SMALL, "dropout": 0.0, "select": "hard", "position": "rotary"}),
    "bahdanau": ("bahdanau", {"width": 6}),
    "bahdanau paper": ("bahdanau", {"width": 6, "encoder": "paper", "dropout": 0.2}),
    "luong": ("luong", {"width": 6, "both_ways": True, "depth": 2}),
    "luong gru unfed": ("luong", {"width": 6, "cell": "gru", "feeding": False, "view": "local-p"}),
    "seq2seq": ("seq2seq", {"width": 6, "cell": "rnn", "context": "every", "reverse": True}),
    "seq2seq lstm": ("seq2seq", {"width": 6, "cell": "lstm", "depth": 2}),
}


def loss(model: nn.Module, batch: Batch) -> Loss:
    with hard_selections() as drawn:
        likely = log_likelihood(model(batch), batch.labels)
    term = Reinforce("none", entropy=0.1)(drawn, likely).loss if len(drawn) else 0.0
    return Loss(term - likely.sum(), {"loss": -likely.sum().detach()})


def built(name: str) -> list[nn.Module]:
    kind, options = CASES[name]
    models = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        models.append(build_model(kind, SIZE, SIZE, **options).double())
    return models


def random_seed(seed: int, step: int) -> int:
    return 1000 * seed + step


def train_alone(model: nn.Module, seed: int, batches: list[Batch] = BATCHES) -> list[float]:
    """The norms of the gradients before clipping."""
    optimizer, norms = build_optimizer(model, beta2=0.98, weight_decay=DECAY), []
    for step in range(STEPS):
        torch.manual_seed(random_seed(seed, step))
        (0.5 * loss(model, batches[step % len(batches)]).total).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        for group in optimizer.param_groups:
            group["lr"] = RATE
        optimizer.step()
        optimizer.zero_grad()
    return norms


def train_stacked(stacked: StackedSeeds, first: int = 0, last: int = STEPS) -> list[list[float]]:
    norms = []
    for step in range(first, last):
        seeds = [random_seed(seed, step) for seed in SEEDS]
        stacked.add_gradients(loss, [BATCHES[step % 2]], seeds=seeds, factor=0.5)
        norms.append(stacked.clip(CLIP).tolist())
        stacked.step(RATE)
    return norms


@pytest.mark.parametrize("name", CASES)
def test_each_seed_is_as_if_it_was_trained_alone(name: str):
    models = built(name)
    stacked = StackedSeeds(copy.deepcopy(models), weight_decay=DECAY)
    norms = train_stacked(stacked)
    together = stacked.unstacked()
    for number, (model, other) in enumerate(zip(models, together, strict=True)):
        initial = copy.deepcopy(model.state_dict())
        alone = train_alone(model, SEEDS[number])
        assert [each[number] for each in norms] == pytest.approx(alone, rel=1e-9)
        weights = dict(other.named_parameters())
        for each, weight in model.named_parameters():
            # The gradient of a key bias is 0 but for rounding, which AdamW divides by its eps of 1e-9.
            tolerance = 1e-8 if each.endswith("key.bias") else 1e-10
            torch.testing.assert_close(weights[each], weight, rtol=0, atol=tolerance)
        assert any(not torch.equal(initial[each], weight) for each, weight in weights.items())
    assert max(max(each) for each in norms) > CLIP, "some gradients are clipped"


@pytest.mark.parametrize("name", ["transformer", "bahdanau", "luong", "seq2seq"])
def test_each_seed_may_have_its_own_batch(name: str):
    sources, targets = [[4, 5, 6], [9], [10, 4]], [[5, 6], [7], [8]]
    batches = [Batch.collate(sources[at:] + sources[:at], targets) for at in range(3)]
    models = built(name)
    stacked = StackedSeeds(copy.deepcopy(models), weight_decay=DECAY)
    for step in range(STEPS):
        seeds = [random_seed(seed, step) for seed in SEEDS]
        stacked.add_gradients(loss, batches, seeds=seeds, factor=torch.tensor([0.5, 0.5, 0.5]))
        stacked.clip(CLIP)
        stacked.step(RATE)
    for model, other, seed, batch in zip(models, stacked.unstacked(), SEEDS, batches, strict=True):
        train_alone(model, seed, [batch])
        weights = dict(other.named_parameters())
        for each, weight in model.named_parameters():
            tolerance = 1e-8 if each.endswith("key.bias") else 1e-10
            torch.testing.assert_close(weights[each], weight, rtol=0, atol=tolerance)


def test_seeds_differ_in_initial_weights_and_in_what_they_draw():
    models = [built("transformer dropout")[0] for _ in SEEDS]
    stacked = StackedSeeds(models)
    same = stacked.add_gradients(loss, [BATCHES[0]], seeds=[5, 5, 5]).total
    assert same[0] == same[1] == same[2]
    other = stacked.add_gradients(loss, [BATCHES[0]], seeds=[5, 6, 7]).total
    assert other[0] == same[0] and len(set(other.tolist())) == 3


def test_global_random_state_does_not_change():
    stacked = StackedSeeds(built("transformer dropout"))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    stacked.add_gradients(loss, [BATCHES[0]], seeds=SEEDS)
    assert torch.equal(torch.get_rng_state(), before)


def test_gradients_of_several_batches_add_up():
    one, two = (StackedSeeds(built("bahdanau")) for _ in range(2))
    first = [one.add_gradients(loss, [batch], seeds=SEEDS) for batch in BATCHES]

    def both(model: nn.Module, _: None) -> Loss:
        return Loss(sum(loss(model, batch).total for batch in BATCHES), {})

    total = two.add_gradients(both, [None], seeds=SEEDS).total
    torch.testing.assert_close(sum(each.total for each in first), total)
    assert torch.equal(first[0].shown["loss"], first[0].total) and first[0].total.shape == (3,)
    for name, parameter in one.parameters.items():
        torch.testing.assert_close(parameter.grad, two.parameters[name].grad, rtol=0, atol=1e-12)


def test_resume_is_exact():
    whole, first = (StackedSeeds(built("transformer dropout"), weight_decay=DECAY) for _ in range(2))
    train_stacked(whole)
    train_stacked(first, 0, 2)
    saved = {name: tensor.clone() for name, tensor in first.tensors().items()}
    resumed = StackedSeeds([copy.deepcopy(each) for each in built("transformer dropout")], weight_decay=DECAY)
    resumed.load(saved)
    train_stacked(resumed, 2)
    for name, tensor in whole.tensors().items():
        assert torch.equal(resumed.tensors()[name], tensor)
    with pytest.raises(DataError, match="missing"):
        resumed.load({})
    with pytest.raises(DataError, match="3 models"):
        resumed.load({name: tensor[:2] if tensor.dim() else tensor for name, tensor in saved.items()})


def test_models_that_differ_raise():
    models = built("bahdanau")
    wider = build_model("bahdanau", SIZE, SIZE, width=7).double()
    for others in ([], [*models, wider], [models[0], models[1].float()], [models[0], models[2].eval()]):
        with pytest.raises(ArgumentError, match="StackedSeeds"):
            StackedSeeds(others)
    with pytest.raises(ArgumentError, match="2 seeds for 3 models"):
        StackedSeeds(built("bahdanau")).add_gradients(loss, BATCHES[:1], seeds=[1, 2])
    with pytest.raises(ArgumentError, match="2 batches for 3 models"):
        StackedSeeds(built("bahdanau")).add_gradients(loss, BATCHES, seeds=SEEDS)
    with pytest.raises(ArgumentError, match="different shapes"):
        StackedSeeds(built("bahdanau")).add_gradients(loss, [*BATCHES, BATCHES[0]], seeds=SEEDS)


class Tossing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.bernoulli(torch.full((1,), 0.5))


class Branching(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if y.sum().item() > 0 else -y


@pytest.mark.parametrize("kind", [Tossing, Branching])
def test_models_that_vmap_does_not_support_raise(kind: type[nn.Linear]):
    stacked = StackedSeeds([kind(2, 2) for _ in range(2)])
    with pytest.raises(RegardError, match=f"{kind.__name__} cannot run in torch.func.vmap"):
        stacked.add_gradients(lambda model, x: Loss(model(x).sum(), {}), [torch.ones(1, 2)], seeds=[1, 2])
