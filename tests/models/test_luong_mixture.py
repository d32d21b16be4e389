"""Luong with a latent source word: the probability is the exact sum over the words."""

from __future__ import annotations

import itertools

import pytest
import torch

from regard.data.batch import Batch
from regard.errors import ArgumentError
from regard.look import Look
from regard.models import build_model


def test_probability_is_the_sum_over_source_words():
    torch.manual_seed(0)
    model = build_model("luong", 9, 7, width=5, readout="latent").double().eval()
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
    model = build_model("luong", 9, 7, width=5, readout="latent")
    model(Batch.collate([[4, 5, 6]], [[4, 5]]))[0, 0, 4].backward()
    assert model.score.weight.grad.abs().max() > 0


def test_probability_of_a_target_is_the_sum_over_all_alignments():
    """Every way to choose a source word for each target word, weighted by its probability."""
    torch.manual_seed(0)
    model = build_model("luong", 9, 7, width=5, readout="latent").double().eval()
    batch = Batch.collate([[4, 5]], [[4, 5]])  # three source words and three target words, with EOS
    encoded = model.encode(batch.source, batch.source_lengths)
    states, _ = model.decoder.run(model.target(batch.inputs), encoded.first)
    look = Look(weights=True)
    weights = model.attend_near(states, encoded, 0, look=look).weights.reshape(3, 3)
    values, total = encoded.memories[0].value[0], 0.0
    for alignment in itertools.product(range(3), repeat=3):
        chance = 1.0
        for step, word in enumerate(alignment):
            joined = model.readout(values[word], states[0, step])
            words = model.readout.output(joined).softmax(-1)
            chance = chance * weights[step, word] * words[batch.labels[0, step]]
        total = total + chance
    scores = model(batch).log_softmax(-1).gather(-1, batch.labels[..., None])
    torch.testing.assert_close(scores.sum().exp(), torch.as_tensor(total))


def test_names_and_input_feeding():
    latent, older = (
        build_model("luong", 9, 7, width=5, readout=name, feeding=feeding)
        for name, feeding in (("latent", None), ("mixture", False))
    )
    assert not latent.feeding and latent.state_dict().keys() == older.state_dict().keys()
    assert build_model("luong", 9, 7, width=5).feeding
    with pytest.raises(ArgumentError, match="feeding"):
        build_model("luong", 9, 7, width=5, readout="latent", feeding=True)
