"""A search after any edit of a weight gives the results of a new model with the same weights."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from regard.data.batch import Batch
from regard.decoding import Beam, Greedy, Rules
from regard.fast.search import linear, search_decoder, slot_search
from regard.layers.recurrent import Recurrence
from regard.models import Model
from regard.models.bahdanau import Bahdanau
from regard.models.luong import Luong
from regard.models.transformer import Size, Transformer
from tests.conftest import seed

WORDS, SIZE = 121, Size(width=32, heads=2, inner=64, layers=1)

MODELS: dict[str, Callable[[], Model]] = {
    "transformer": lambda: Transformer(WORDS, WORDS, SIZE, position="learned"),
    "rotary, post": lambda: Transformer(
        WORDS, WORDS, SIZE, position="rotary", norm="post", activation="swiglu"
    ),
    "bahdanau": lambda: Bahdanau(WORDS, WORDS, 24),
    "luong": lambda: Luong(WORDS, WORDS, Recurrence(width=24)),
}
COUNT, SAMPLE = 1000, 16
"""Edits of each model in `make test-all` and in `make test`."""


def parent_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    module, _, own = name.rpartition(".")
    return model.get_submodule(module), own


def by_data(model: nn.Module, name: str, place: tuple[int, ...]) -> None:
    model.get_parameter(name).data[place] *= -50.0


def by_numpy(model: nn.Module, name: str, place: tuple[int, ...]) -> None:
    model.get_parameter(name).detach().numpy()[place] *= -50.0


def in_place(model: nn.Module, name: str, place: tuple[int, ...]) -> None:
    with torch.no_grad():
        model.get_parameter(name)[place] *= -50.0


def by_state(model: nn.Module, name: str, place: tuple[int, ...]) -> None:
    state = copy.deepcopy(model.state_dict())
    state[name][place] *= -50.0
    model.load_state_dict(state)


def by_assigned_state(model: nn.Module, name: str, place: tuple[int, ...]) -> None:
    state = copy.deepcopy(model.state_dict())
    state[name][place] *= -50.0
    model.load_state_dict(state, assign=True)


def by_new_parameter(model: nn.Module, name: str, place: tuple[int, ...]) -> None:
    module, own = parent_of(model, name)
    weight = model.get_parameter(name).detach().clone()
    weight[place] *= -50.0
    setattr(module, own, nn.Parameter(weight))


def by_new_data(model: nn.Module, name: str, place: tuple[int, ...]) -> None:
    weight = model.get_parameter(name)
    weight.data = weight.data.clone()
    weight.data[place] *= -50.0


def by_old_storage(model: nn.Module, name: str, place: tuple[int, ...]) -> None:
    """Replace a parameter by an equal one, and edit the earlier one, which no longer counts."""
    module, own = parent_of(model, name)
    weight = model.get_parameter(name)
    setattr(module, own, nn.Parameter(weight.detach().clone()))
    weight.data[place] *= -50.0


SILENT = (by_data, by_numpy, by_new_data)
"""Edits that no version counter shows, so half of all edits are one of these."""

EDITS = (*SILENT, *SILENT[:2], in_place, by_state, by_assigned_state, by_new_parameter, by_old_storage)


def assert_searches_use_edits(name: str, count: int, device: str = "cpu") -> None:
    """Edit a random row or element of a random parameter `count` times, and search before and after."""
    chance = random.Random(seed())
    model = MODELS[name]().eval().to(device)
    original, changed = copy.deepcopy(model), 0
    names = [each for each, _ in model.named_parameters()]
    edits = [each for each in EDITS if device == "cpu" or each is not by_numpy]
    for number in range(count):
        parameter, edit = chance.choice(names), chance.choice(edits)
        shape = model.get_parameter(parameter).shape
        place = tuple(map(chance.randrange, shape[: chance.choice((1, len(shape)))]))
        how = chance.choice((Beam(3, rules=Rules(maximum=4)), Greedy(Rules(maximum=4))))
        lengths = [chance.randint(1, 6) for _ in range(chance.choice((1, 3)))]
        sources = [[chance.randrange(4, WORDS) for _ in range(length)] for length in lengths]
        batch = Batch.collate(sources).to(device)
        model.int8_steps = name != "luong" and device == "cpu" and chance.random() < 0.3
        assert not isinstance(search_decoder(model, how), list)
        before = slot_search(model, batch, how)
        edit(model, parameter, place)
        result, expected = slot_search(model, batch, how), slot_search(copy.deepcopy(model), batch, how)
        scores = [each.token_scores for each in (result, expected)]
        same = torch.equal(result.tokens, expected.tokens) and torch.allclose(*scores, rtol=1e-4, atol=1e-4)
        assert same, f"edit {number} of {name}: {edit.__name__} of {parameter} {place}, {how}, {sources}"
        changed += not torch.equal(before.token_scores, result.token_scores)
        model.load_state_dict(original.state_dict())
    assert changed > count / 4


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_sample_of_edits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("FEWEST_PRODUCTS", "MANY_WEIGHTS", "FEWEST_INT8_WEIGHTS"):
        monkeypatch.setattr(linear, limit, 1)
    assert_searches_use_edits(name, SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_edits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("FEWEST_PRODUCTS", "MANY_WEIGHTS", "FEWEST_INT8_WEIGHTS"):
        monkeypatch.setattr(linear, limit, 1)
    assert_searches_use_edits(name, COUNT)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk:UserWarning")
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_edits_on_a_gpu(name: str) -> None:
    assert_searches_use_edits(name, SAMPLE, "cuda")
