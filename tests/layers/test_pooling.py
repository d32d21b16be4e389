"""Pooling against plain formulas; padding never matters, whatever it holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.layers.pooling import AttentionPooling, FirstPooling, LastPooling, MeanPooling

POOLINGS = {
    "attention": AttentionPooling(6, 5),
    "mean": MeanPooling(),
    "last": LastPooling(),
    "last of both": LastPooling(both_ways=True),
    "first": FirstPooling(),
}
LENGTHS = torch.tensor([5, 1, 3])


def plain(pooling: nn.Module, states_SE: Tensor) -> Tensor:
    """The vector of one sequence without padding."""
    if isinstance(pooling, AttentionPooling):
        score = pooling.score
        bias = pooling.query @ score.query_weight
        weights_S = torch.softmax(torch.tanh(states_SE @ score.key_weight + bias) @ score.vector, 0)
        return weights_S @ states_SE
    if isinstance(pooling, MeanPooling):
        return states_SE.mean(0)
    if isinstance(pooling, LastPooling) and pooling.both_ways:
        return torch.cat((states_SE[-1, :3], states_SE[0, 3:]))
    return states_SE[0 if isinstance(pooling, FirstPooling) else -1]


@pytest.mark.parametrize("name", POOLINGS)
def test_pooling_equals_its_formula_and_ignores_padding(name: str):
    pooling = POOLINGS[name].double()
    states = torch.randn(3, 5, 6, dtype=torch.float64)
    padded = states.clone()
    for row, length in enumerate(LENGTHS.tolist()):
        padded[row, length:] = torch.nan
    padded.requires_grad_()
    output = pooling(padded, LENGTHS)
    expected = [plain(pooling, states[row, :length]) for row, length in enumerate(LENGTHS.tolist())]
    torch.testing.assert_close(output, torch.stack(expected))
    output.sum().backward()
    for row, length in enumerate(LENGTHS.tolist()):
        assert padded.grad[row, :length].isfinite().all() and not padded.grad[row, length:].any()


def test_attention_pooling_is_a_site():
    pooling, states = AttentionPooling(6), torch.randn(3, 5, 6)
    with regard.record() as seen:
        output = pooling(states, LENGTHS)
    weights = seen["pool"][0].weights
    assert weights.shape == (3, 1, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 1))
    torch.testing.assert_close((weights @ states)[:, 0], output)
    with regard.intervene(uniform=True, at="pool"):
        torch.testing.assert_close(pooling(states, LENGTHS), MeanPooling()(states, LENGTHS))


def test_every_parameter_of_attention_pooling_gets_a_gradient():
    pooling = AttentionPooling(6, 4, site="here")
    pooling(torch.randn(2, 5, 6), torch.tensor([5, 4])).square().sum().backward()
    assert pooling.site == "here" and len(list(pooling.parameters())) == 4
    assert all(parameter.grad.abs().sum() > 0 for parameter in pooling.parameters())
