"""A float16 model whose activations overflow is decoded again in float32."""

from __future__ import annotations

import copy

import pytest
import torch

from regard.data.batch import Batch
from regard.decoding import Beam, Greedy, Rules, observe, search
from regard.errors import RegardWarning
from regard.models.transformer import Size, Transformer
from regard.tasks.translation.task import fits_float16

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def overflowing(device: str) -> Transformer:
    """A float16 model with hidden units of about 10^5, which the next weights make small again."""
    torch.manual_seed(7)
    model = Transformer(40, 40, Size(16, 2, 32, 2)).eval()
    with torch.no_grad():
        for layer in model.decoder:
            layer.feedforward.inner.weight.mul_(1e5)
            layer.feedforward.outer.weight.mul_(1e-5)
        model.output.weight.mul_(8.0)
    return model.half().to(device)


@pytest.mark.parametrize("device", DEVICES)
def test_search_and_scores_are_those_of_float32(device: str):
    model = overflowing(device)
    wide, batch = copy.deepcopy(model).float(), Batch.collate([[4, 5, 6], [7]], [[8, 9], [10]])
    for how in (Beam(3, rules=Rules(maximum=6)), Greedy(Rules(maximum=6))):
        with pytest.warns(RegardWarning, match="float16"):
            found = search(model, batch, how)
        for (mine, *_), (expected, *_) in zip(found, search(wide, batch, how), strict=True):
            assert mine.tokens == expected.tokens and mine.score == pytest.approx(expected.score, abs=1e-3)
    with pytest.warns(RegardWarning, match="float16"):
        observed = observe(model, batch)
    torch.testing.assert_close(observed.token_scores, observe(wide, batch).token_scores)
    assert next(model.parameters()).dtype == torch.float16
    with torch.no_grad():  # later searches use the edited weights
        model.output.bias.data[9] = 99.0
    wide, how = copy.deepcopy(model).float(), Greedy(Rules(maximum=6))
    with pytest.warns(RegardWarning, match="float16"):
        found = search(model, batch, how)
    assert [each[0].tokens for each in found] == [each[0].tokens for each in search(wide, batch, how)]
    assert 9 in found[0][0].tokens


def test_weights_that_are_too_large_for_float16():
    model = Transformer(40, 40, Size(16, 2, 32, 2))
    assert fits_float16(model)
    with torch.no_grad():
        model.output.weight[3, 3] = -7e4
    assert not fits_float16(model)
