"""Xu et al. 2015, Show, attend and tell: hard attention selects one position, sampled from the weights."""

from __future__ import annotations

from math import exp, log

import pytest
import torch

import regard

PLACES = [[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]]  # a_1, a_2, a_3
REWARD = [log(0.2), log(0.7), log(0.4)]  # log p(y | s, a) for each position


def weights_at(scores: list[float]) -> list[float]:
    return [exp(each) / sum(map(exp, scores)) for each in scores]


def sample(scores: torch.Tensor, seed: int) -> regard.Attended:
    """One sample. The query is 1 and the keys are the scores, so the dot products are the scores."""
    select = regard.Hard(torch.Generator().manual_seed(seed))
    one, places = torch.ones(1, 1).double(), torch.tensor(PLACES).double()
    return regard.attention(one, scores.unsqueeze(-1), places, score=regard.Dot(), select=select)


def test_output_is_the_value_of_the_sampled_position():
    """p(s_i = 1) = alpha_i (eq. 8), z = sum_i s_i a_i (eq. 9)"""
    scores = [0.3, -1.0, 0.8]
    alpha = weights_at(scores)
    places = set()
    for seed in range(40):
        seen = sample(torch.tensor(scores).double(), seed)
        place = seen.chosen.item()
        places.add(place)
        assert seen.output.flatten().tolist() == PLACES[place]
        assert seen.log_probability.item() == pytest.approx(log(alpha[place]))
        assert seen.entropy.item() == pytest.approx(-sum(a * log(a) for a in alpha))
    assert places == {0, 1, 2}


def test_learning_rule_is_the_gradient_of_the_bound():
    """L = sum_s p(s | a) log p(y | s, a) (eq. 10); its gradient is the mean over s of
    log p(y | s, a) d log p(s | a), which REINFORCE estimates by sampling (eq. 11 and 12)."""
    scores = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    alpha = weights_at(scores.tolist())
    bound = sum(a * reward for a, reward in zip(alpha, REWARD, strict=True))
    exact = [a * (reward - bound) for a, reward in zip(alpha, REWARD, strict=True)]  # d L / d score_i
    mean = torch.zeros(3, dtype=torch.float64)
    sampled = set()
    for seed in range(40):
        seen = sample(scores, seed)
        place = seen.chosen.item()
        if place not in sampled:
            sampled.add(place)
            (gradient,) = torch.autograd.grad(seen.log_probability.sum(), scores)
            mean += alpha[place] * REWARD[place] * gradient
    assert sampled == {0, 1, 2}
    assert mean.tolist() == pytest.approx(exact)


def test_gradient_of_the_entropy():
    """H[s] is added to the objective (section 4.1)."""
    scores = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(sample(scores, 0).entropy.sum(), scores)
    alpha = weights_at(scores.tolist())
    entropy = -sum(a * log(a) for a in alpha)
    assert gradient.tolist() == pytest.approx([-a * (log(a) + entropy) for a in alpha])


def test_soft_attention_is_the_expectation_of_hard():
    """E[z] = sum_i alpha_i a_i (eq. 13)"""
    scores = torch.tensor([0.3, -1.0, 0.8]).double()
    alpha = weights_at(scores.tolist())
    one, places = torch.ones(1, 1).double(), torch.tensor(PLACES).double()
    soft = regard.attention(one, scores.unsqueeze(-1), places, score=regard.Dot()).output.flatten().tolist()
    assert soft == pytest.approx([sum(a * p[d] for a, p in zip(alpha, PLACES, strict=True)) for d in (0, 1)])
