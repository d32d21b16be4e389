"""Luong, Pham and Manning 2015, Effective approaches to attention-based neural machine translation."""

from __future__ import annotations

from math import exp, tanh

import pytest
import torch

import regard
from regard.data.batch import BOS, EOS, Batch
from regard.models import Luong, Recurrence
from regard.models.luong import Predicted
from tests.papers.by_hand import Vector, add, average, dot, sigma, softmax, tanhs, times

TARGET = [1.0, 2.0]  # h_t
SOURCE = [[0.5, 0.0], [0.0, 1.0], [-1.0, 0.5]]  # h_s
LOOK = regard.Look(weights=True)


def weights_of(score: regard.Score, **options: object) -> list[float]:
    query, key = torch.tensor([TARGET]).double(), torch.tensor(SOURCE).double()
    return regard.attention(query, key, score=score, look=LOOK, **options).weights.flatten().tolist()


def test_dot():
    # h_t . h_s = 1 x 0.5, 2 x 1, -1 + 2 x 0.5
    assert weights_of(regard.Dot()) == pytest.approx(softmax([0.5, 2.0, 0.0]))


def test_general():
    score = regard.General(2, 2).double()
    score.weight.data = torch.tensor([[1.0, -1.0], [0.0, 0.5]]).double()
    # h_t W = (1, -1 + 2 x 0.5) = (1, 0)
    assert weights_of(score) == pytest.approx(softmax([0.5, 0.0, -1.0]))


def test_concat():
    score = regard.Concat(2, 2, hidden=1).double()
    score.weight.data, score.vector.data = (
        torch.tensor([[1.0], [0.5], [2.0], [-1.0]]).double(),
        torch.tensor([3.0]).double(),
    )
    # W [h_t; h_s] = 1 + 0.5 x 2 + 2 h_s1 - h_s2
    expected = [3 * tanh(2 + 2 * s[0] - s[1]) for s in SOURCE]
    assert weights_of(score) == pytest.approx(softmax(expected))


def test_concat_without_tanh_gives_every_query_the_same_weights():
    """v . W [q; k] is a term of q plus a term of k, and softmax over the keys removes the term of q."""
    query, key = torch.randn(4, 3).double(), torch.randn(5, 2).double()
    score = regard.Concat(3, 2, hidden=6).double()
    nonlinear = regard.attention(query, key, score=score, look=LOOK).weights
    pairs = torch.cat((query[:, None].expand(4, 5, 3), key.expand(4, 5, 2)), -1) @ score.weight
    assert torch.allclose(nonlinear, (pairs.tanh() @ score.vector).softmax(-1))
    linear = (pairs @ score.vector).softmax(-1)
    assert torch.allclose(linear, linear[:1].expand(4, 5), atol=1e-12)
    assert not torch.allclose(nonlinear, nonlinear[:1].expand(4, 5), atol=1e-3)


def test_location():
    score = regard.Location(2, max_length=4).double()
    score.weight.data = torch.tensor([[1.0, 0.0, -1.0, 5.0], [0.5, 0.25, 0.0, 5.0]]).double()
    # W h_t = (1 + 0.5 x 2, 0.25 x 2, -1), and the fourth position is past the end of this sentence
    assert weights_of(score) == pytest.approx(softmax([2.0, 0.5, -1.0]))


def test_context_is_the_weighted_sum():
    query, key = torch.tensor([TARGET]).double(), torch.tensor(SOURCE).double()
    a = softmax([0.5, 2.0, 0.0])
    expected = [sum(weight * s[d] for weight, s in zip(a, SOURCE, strict=True)) for d in (0, 1)]
    assert regard.attention(query, key, score=regard.Dot()).output.flatten().tolist() == pytest.approx(
        expected
    )


def test_local_m_is_a_window_around_the_step():
    """p_t = t, and only [p_t - D, p_t + D] has weight (section 3.2)."""
    assert weights_of(regard.Dot(), mask=regard.window(1, 1)) == pytest.approx([*softmax([0.5, 2.0]), 0.0])
    assert weights_of(regard.Dot(), mask=regard.window(1, 1), start=2) == pytest.approx(
        [0.0, *softmax([2.0, 0.0])]
    )


def test_local_p_multiplies_a_gaussian():
    """a_t(s) = align(h_t, h_s) exp(-(s - p_t)^2 / (2 sigma^2)), sigma = D / 2 (eq. 10)"""
    select = regard.LocalP(centre=torch.tensor([0.5]).double(), width=1)
    near = softmax([0.5, 2.0])  # |s - 0.5| <= 1 leaves s = 0 and 1, both 0.5 away; sigma = 0.5
    expected = [near[0] * exp(-0.5), near[1] * exp(-0.5), 0.0]
    assert weights_of(regard.Dot(), select=select) == pytest.approx(expected)
    assert sum(expected) == pytest.approx(exp(-0.5))  # less than 1, as in the paper


def rnn(model: torch.nn.RNN, x: Vector, h: Vector) -> Vector:
    """h_t = tanh(W x + b + U h + b)"""
    w, u, b_x, b_h = model.all_weights[0]
    return tanhs(add(times(w, x), b_x.tolist(), times(u, h), b_h.tolist()))


def encoded_by_hand(model: Luong, source: list[int]) -> list[Vector]:
    states, h = [], [0.0] * model.encoder.layers.hidden_size
    for word in [*source, EOS]:
        h = rnn(model.encoder.layers, model.source.weight[word].tolist(), h)
        states.append(h)
    return states


def test_logits_with_input_feeding_by_hand():
    """h_t from [e; h~_{t-1}] (section 3.3), c_t by dot (eq. 7 and 8), h~ (eq. 5), softmax(W_s h~) (eq. 6)."""
    model = Luong(6, 7, Recurrence(width=2, embedding=3, cell="rnn"), score="dot").double()
    source, target = [4, 5, 4], [5, 6]
    states = encoded_by_hand(model, source)
    h, fed, expected = states[-1], [0.0, 0.0], []
    for word in [BOS, *target]:
        h = rnn(model.decoder.layers, model.target.weight[word].tolist() + fed, h)
        c = average(softmax([dot(h, each) for each in states]), states)
        fed = tanhs(times(model.readout.both.weight, c + h))
        expected.append(add(times(model.readout.output.weight, fed), model.readout.output.bias.tolist()))
    logits = model(Batch.collate([source], [target]))[0]
    assert torch.allclose(logits, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_logits_with_affine_readout_by_hand():
    """Keys and values are the encoder states, the decoder starts from the last; logits are W [c; h] + b."""
    model = Luong(
        6, 7, Recurrence(width=2, cell="rnn"), score="dot", readout="affine", feeding=False
    ).double()
    source, target = [4, 5, 4], [5, 6]
    states = encoded_by_hand(model, source)
    h, expected = states[-1], []
    for word in [BOS, *target]:
        h = rnn(model.decoder.layers, model.target.weight[word].tolist(), h)
        c = average(softmax([dot(h, each) for each in states]), states)
        expected.append(add(times(model.readout.output.weight, c + h), model.readout.output.bias.tolist()))
    logits = model(Batch.collate([source], [target]))[0]
    assert torch.allclose(logits, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_local_p_of_the_model_by_hand():
    """p_t = S sigma(v_p . tanh(W_p h_t)) (eq. 9), and weights as in eq. 10."""
    recurrence = Recurrence(width=2, cell="rnn")
    model = Luong(6, 7, recurrence, score="dot", view=Predicted(reach=2), feeding=False).double()
    source = [4, 5, 4, 5, 4]
    states = encoded_by_hand(model, source)
    h = rnn(model.decoder.layers, model.target.weight[BOS].tolist(), states[-1])
    hidden = tanhs(times(model.place.hidden.weight, h))
    p = len(states) * sigma(times(model.place.vector.weight, hidden))[0]
    near = [s for s in range(len(states)) if abs(s - p) <= 2]
    soft = softmax([dot(h, states[s]) for s in near])
    expected = [0.0] * len(states)
    for s, weight in zip(near, soft, strict=True):
        expected[s] = weight * exp(-((s - p) ** 2) / 2)  # sigma = D / 2 = 1
    with regard.record() as seen:
        model(Batch.collate([source], [[]]))
    assert seen["decoder.cross"][0].weights.flatten().tolist() == pytest.approx(expected)
