"""Sutskever, Vinyals and Le 2014, and Cho et al. 2014: sequence to sequence learning with one vector."""

from __future__ import annotations

import pytest
import torch

from regard.data.batch import BOS, EOS, Batch
from regard.models import Recurrence, Seq2Seq
from tests.papers.by_hand import Vector, add, gate, sigma, tanhs, times

SOURCE, TARGET = [4, 5, 6], [6, 4]


def lstm(layers: torch.nn.LSTM, x: Vector, h: Vector, c: Vector) -> tuple[Vector, Vector]:
    """Gates i, f, g, o in torch's order; c = f * c + i * g, h = o * tanh(c)."""
    w, u, b_x, b_h = layers.all_weights[0]
    all_gates = add(times(w, x), b_x.tolist(), times(u, h), b_h.tolist())
    n = len(h)
    i, f, g, o = (all_gates[k * n : (k + 1) * n] for k in range(4))
    c = add(gate(sigma(f), c), gate(sigma(i), tanhs(g)))
    return gate(sigma(o), tanhs(c)), c


def last_state(model: Seq2Seq, words: list[int]) -> tuple[Vector, Vector]:
    h = c = [0.0] * model.encoder.layers.hidden_size
    for word in words:
        h, c = lstm(model.encoder.layers, model.source.weight[word].tolist(), h, c)
    return h, c


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("context", ["first", "every"])
def test_logits_of_a_sentence_by_hand(context: str, reverse: bool):
    recurrence = Recurrence(width=2, embedding=3, cell="lstm")
    model = Seq2Seq(7, 8, recurrence, context=context, reverse=reverse).double()
    h, c = last_state(model, [*(reversed(SOURCE) if reverse else SOURCE), EOS])
    summary, expected = h, []
    for word in [BOS, *TARGET]:
        e = model.target.weight[word].tolist()
        h, c = lstm(model.decoder.layers, e + summary if context == "every" else e, h, c)
        features = h + summary + e if context == "every" else h
        expected.append(add(times(model.readout.weight, features), model.readout.bias.tolist()))
    logits = model(Batch.collate([SOURCE], [TARGET]))[0]
    assert torch.allclose(logits, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_encoded_source_has_a_fixed_size():
    """The encoded source has the same size for 30 words as for one, the problem that attention solves."""
    model = Seq2Seq(7, 8, Recurrence(width=5, cell="gru", depth=2))
    for length in (1, 30):
        batch = Batch.collate([[4] * length])
        encoded = model.encode(batch.source, batch.source_lengths)
        assert encoded.memories == () and [each.shape for each in encoded.first] == [(1, 2, 5)]
