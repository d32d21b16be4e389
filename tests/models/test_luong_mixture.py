"""Luong with a latent source word: the probability is the exact sum over the words."""

from __future__ import annotations

import pytest
import torch

from regard.data.batch import Batch
from regard.errors import ArgumentError
from regard.models import build_model


def test_probability_is_the_sum_over_source_words():
    torch.manual_seed(0)
    model = build_model("luong", 9, 7, width=5, readout="mixture", feeding=False).double().eval()
    batch = Batch.collate([[4, 5, 6], [7]], [[4, 5], [5, 6]])
    for row, length in enumerate((4, 2)):
        states, last = model.encoder.encode(
            model.source(batch.source[row : row + 1, :length]), torch.tensor([length])
        )
        tops, _ = model.decoder.run(model.target(batch.inputs[row : row + 1]), last)
        weights = (tops[0] @ model.score.weight @ states[0].T).softmax(-1)
        total = torch.zeros(len(tops[0]), 7, dtype=torch.float64)
        for s in range(length):
            joined = torch.tanh(model.readout.both(torch.cat((states[0, s].expand_as(tops[0]), tops[0]), -1)))
            total += weights[:, s, None] * model.readout.output(joined).softmax(-1)
        torch.testing.assert_close(total.sum(-1), torch.ones(len(total), dtype=torch.float64))
        torch.testing.assert_close(model(batch)[row].exp(), total)


def test_gradient_reaches_the_scores():
    torch.manual_seed(0)
    model = build_model("luong", 9, 7, width=5, readout="mixture", feeding=False)
    model(Batch.collate([[4, 5, 6]], [[4, 5]]))[0, 0, 4].backward()
    assert model.score.weight.grad.abs().max() > 0


def test_input_feeding_is_an_error():
    with pytest.raises(ArgumentError, match="feeding"):
        build_model("luong", 9, 7, width=5, readout="mixture")
