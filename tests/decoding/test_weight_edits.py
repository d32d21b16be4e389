"""A search after an edit of any parameter of any model gives the result of a new model with these weights."""

from __future__ import annotations

import copy

import pytest
import torch

from regard.data.batch import Batch
from regard.decoding import Beam, Greedy, Rules, search
from regard.fast.search import linear
from regard.models import MODELS, build_model

WORDS = 60
SMALL = {"transformer": {"size": "tiny", "width": 32, "inner": 64, "heads": 4, "layers": 1}}
OPTIONS = {name: SMALL.get(name, {"width": 32}) for name in MODELS}


@pytest.fixture(autouse=True)
def packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack the weights of small matrices too."""
    for limit in ("FEWEST_PRODUCTS", "MANY_WEIGHTS"):
        monkeypatch.setattr(linear, limit, 1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "how", [Beam(3, rules=Rules(maximum=3)), Greedy(Rules(maximum=3))], ids=["beam", "greedy"]
)
@torch.no_grad()
def test_search_uses_each_parameter_as_it_is(name: str, how: Beam | Greedy):
    model = build_model(name, WORDS, WORDS, **OPTIONS[name]).eval()
    batch = Batch.collate([[4, 5, 6, 7], [8, 9], [10, 11, 12]])

    def scores(searched: torch.nn.Module) -> list[tuple[float, ...]]:
        return [
            (*each.tokens, *each.token_scores) for beams in search(searched, batch, how) for each in beams
        ]

    original, edited, changed = copy.deepcopy(model.state_dict()), 0, 0
    for number, (parameter, weight) in enumerate(model.named_parameters()):
        row = 17 % len(weight)
        before = scores(model)
        if number % 2:
            weight.data[row] = weight.data[row] * -50 + 1
        else:
            values = weight.detach().numpy()
            values[row] = values[row] * -50 + 1
        after, expected = scores(model), scores(copy.deepcopy(model))
        for one, other in zip(after, expected, strict=True):
            assert one == pytest.approx(other, rel=1e-4, abs=1e-4), parameter
        edited, changed = edited + 1, changed + (before != after)
        model.load_state_dict(original)
    assert changed > edited / 3
