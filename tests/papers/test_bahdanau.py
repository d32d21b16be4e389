"""Bahdanau, Cho and Bengio 2014, Neural machine translation by jointly learning to align and translate."""

from __future__ import annotations

from math import exp, tanh

import pytest
import torch

import regard
from regard.data.batch import BOS, EOS, Batch
from regard.layers import GatedCell
from regard.models import Bahdanau
from tests.papers.by_hand import (
    Vector,
    add,
    average,
    dot,
    gate,
    mixed,
    sigma,
    softmax,
    tanhs,
    times,
)

STATES = [[1.0, 0.0, -1.0], [0.5, 2.0, 0.0], [0.0, -1.0, 1.0]]  # h_1, h_2, h_3
W = [[0.5, -1.0], [1.0, 0.25]]  # (query, hidden)
U = [[1.0, 0.0], [-0.5, 0.5], [0.0, 2.0]]  # (key, hidden)
V = [1.5, -0.5]


@pytest.fixture
def score() -> regard.Additive:
    score = regard.Additive(query_size=2, key_size=3, hidden=2).double()
    score.query_weight.data, score.key_weight.data = torch.tensor(W).double(), torch.tensor(U).double()
    score.vector.data = torch.tensor(V).double()
    return score


def by_hand(s: list[float], states: list[list[float]]) -> tuple[list[float], list[float]]:
    """e_j = v . tanh(W s + U h_j) (appendix A.1.2), alpha = softmax(e) (eq. 6), c (eq. 5)"""
    ws = [s[0] * W[0][a] + s[1] * W[1][a] for a in (0, 1)]
    uh = [[h[0] * U[0][a] + h[1] * U[1][a] + h[2] * U[2][a] for a in (0, 1)] for h in states]
    e = [V[0] * tanh(ws[0] + u[0]) + V[1] * tanh(ws[1] + u[1]) for u in uh]
    alpha = [exp(each) / sum(map(exp, e)) for each in e]
    return alpha, [sum(a * h[d] for a, h in zip(alpha, states, strict=True)) for d in range(3)]


def test_decoding_steps_with_one_memory(score: regard.Additive):
    memory = regard.prepare(torch.tensor([STATES]).double(), score=score)
    for s in ([1.0, -1.0], [0.0, 0.0], [-2.0, 0.5]):
        alpha, context = by_hand(s, STATES)
        seen = regard.attention(torch.tensor([[s]]).double(), memory, look=regard.Look(weights=True))
        assert seen.weights.flatten().tolist() == pytest.approx(alpha)
        assert seen.output.flatten().tolist() == pytest.approx(context)


def test_score_of_one_pair(score: regard.Additive):
    # W s = (-0.5, -1.25) and U h_1 = (1, -2), so e_11 = 1.5 tanh(0.5) - 0.5 tanh(-3.25)
    query, key = torch.tensor([[1.0, -1.0]]).double(), torch.tensor(STATES[:1]).double()
    lse = regard.attention(query, key, score=score).lse.item()
    assert lse == pytest.approx(1.5 * tanh(0.5) + 0.5 * tanh(3.25))


def test_padding_is_masked(score: regard.Additive):
    batch = torch.tensor([STATES, [*STATES[:2], [9.0, 9.0, 9.0]]]).double()
    memory = regard.prepare(batch, score=score, mask=regard.padding(torch.tensor([3, 2])))
    output = regard.attention(torch.tensor([[[1.0, -1.0]]] * 2).double(), memory).output
    for context, states in zip(output, (STATES, STATES[:2]), strict=True):
        assert context.flatten().tolist() == pytest.approx(by_hand([1.0, -1.0], states)[1])


def cell_by_hand(cell: GatedCell, e: Vector, s: Vector, c: Vector | None = None) -> Vector:
    """The gated unit of A.1.1 and A.2.2, with the matrix names of the paper."""
    w_z, w_r, w = cell.input.weight.split(cell.width)
    b_z, b_r, b = (bias.tolist() for bias in cell.input.bias.split(cell.width))
    u_z, u_r = cell.gate.weight.split(cell.width)
    u = cell.state.weight
    zero = [0.0] * cell.width
    of_c = [zero] * 3 if c is None else [times(part, c) for part in cell.context.weight.split(cell.width)]
    z = sigma(add(times(w_z, e), times(u_z, s), of_c[0], b_z))
    r = sigma(add(times(w_r, e), times(u_r, s), of_c[1], b_r))
    new = tanhs(add(times(w, e), times(u, gate(r, s)), of_c[2], b))
    return mixed(z, new, s)


def test_gated_cell_resets_before_u():
    """U [r * s], not r * (U s) as in torch.nn.GRU; and s = (1 - z) * s + z * s~."""
    cell = GatedCell(input_size=3, width=2, context_size=4).double()
    assert [part.shape for part in cell.context.weight.split(2)] == [(2, 4)] * 3  # C_z, C_r and C: n x 2n
    e, s, c = [0.5, -1.0, 2.0], [0.75, -0.25], [1.0, -2.0, 0.5, 0.0]
    state = cell(
        cell.gates(torch.tensor([e]).double()), torch.tensor([s]).double(), torch.tensor([c]).double()
    )
    assert state[0].tolist() == pytest.approx(cell_by_hand(cell, e, s, c))


@pytest.mark.parametrize("encoder", ["paper", "gru"])
def test_logits_of_a_sentence_by_hand(encoder: str):
    """Encoder, s_0, attention from s_{i-1}, cell and maxout, word by word (A.1 and A.2)."""
    n = 2
    model = Bahdanau(source_size=6, target_size=7, width=n, embedding=3, hidden=4, encoder=encoder).double()
    source, target = [4, 5], [5, 6, 4]
    embedded = [[model.source.weight[word].tolist() for word in [*source, EOS]]]
    if encoder == "paper":
        cells = model.encoder.forwards, model.encoder.backwards
        forwards, backwards = [[0.0] * n], [[0.0] * n]
        for e in embedded[0]:
            forwards.append(cell_by_hand(cells[0], e, forwards[-1]))
        for e in reversed(embedded[0]):
            backwards.append(cell_by_hand(cells[1], e, backwards[-1]))
        h = [f + b for f, b in zip(forwards[1:], reversed(backwards[1:]), strict=True)]
    else:
        h = model.encoder.layers.layers(torch.tensor(embedded, dtype=torch.float64))[0][0].tolist()
    w_a, u_a, v_a = model.score.query_weight.T, model.score.key_weight.T, model.score.vector.tolist()
    s = tanhs(add(times(model.first.weight, h[0][n:]), model.first.bias.tolist()))  # from backward_1
    expected = []
    for word in [BOS, *target]:
        e = model.target.weight[word].tolist()
        scores = [dot(v_a, tanhs(add(times(w_a, s), times(u_a, each)))) for each in h]
        c = average(softmax(scores), h)
        s = cell_by_hand(model.cell, e, s, c)
        pairs = add(times(model.readout.pairs.weight, s + c + e), model.readout.pairs.bias.tolist())
        t = [max(pairs[2 * i], pairs[2 * i + 1]) for i in range(len(pairs) // 2)]
        expected.append(add(times(model.readout.output.weight, t), model.readout.output.bias.tolist()))
    logits = model(Batch.collate([source], [target]))[0]
    assert torch.allclose(logits, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_keys_are_projected_once():
    """U_a h does not depend on i (A.1.2): the memory holds it, and step() does not use U_a."""
    model = Bahdanau(source_size=6, target_size=7, width=2, hidden=4).double()
    batch = Batch.collate([[4, 5]], [[5]])
    encoded = model.encode(batch.source, batch.source_lengths)
    whole = model.step(model.start(encoded), batch.inputs, encoded)[1]
    with torch.no_grad():
        model.score.key_weight.fill_(9.0)
    assert torch.equal(model.step(model.start(encoded), batch.inputs, encoded)[1], whole)
