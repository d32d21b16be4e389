"""Xu et al. 2015, Show, attend and tell: the captioner, and hard attention, which samples one position."""

from __future__ import annotations

import itertools
from math import exp, log
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import regard
from regard.models.base import Encoded
from regard.models.captioner import Captioner, doubly_stochastic_penalty
from regard.training.estimators import Reinforce, likelihood_bound
from tests.papers.by_hand import Vector, add, average, dot, gate, sigma, softmax, tanhs, times

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


LOCATIONS, FEATURES, WIDTH, EMBEDDING, WORDS = 3, 4, 5, 6, 7
INPUTS = [[2, 4, 5, 6], [2, 6, 4, 0]]


def make(**options: Any) -> Captioner:
    torch.manual_seed(3)
    size = {"features": FEATURES, "channels": 2}
    options = {"query": "state", **options}
    return Captioner(WORDS, width=WIDTH, embedding=EMBEDDING, encoder_options=size, **options).double()


def features(images: int = 2) -> torch.Tensor:
    return torch.randn(images, LOCATIONS, FEATURES, generator=torch.Generator().manual_seed(5)).double()


def batch(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"image": features(), "inputs": torch.tensor(INPUTS), **fields})


def affine(layer: torch.nn.Linear, x: Vector) -> Vector:
    result = times(layer.weight, x)
    return result if layer.bias is None else add(result, layer.bias.tolist())


def caption_by_hand(
    model: Captioner, a: list[Vector], tokens: list[int]
) -> tuple[list[Vector], list[Vector]]:
    """Equations 1 to 7 with soft attention, one step after the other: all logits and all weights alpha."""
    mean = average([1 / len(a)] * len(a), a)
    h, c = tanhs(affine(model.first_hidden, mean)), tanhs(affine(model.first_cell, mean))
    v, w, u = model.score.vector.tolist(), model.score.query_weight.T, model.score.key_weight.T
    lstm = model.decoder.layers
    logits, weights = [], []
    for token in tokens:
        alpha = softmax([dot(v, tanhs(add(times(w, h), times(u, each)))) for each in a])
        beta = sigma(affine(model.gate, h))[0] if model.gate is not None else 1.0
        z = [beta * each for each in average(alpha, a)]
        y = model.target.weight[token].tolist()
        biases = add(lstm.bias_ih_l0.tolist(), lstm.bias_hh_l0.tolist())
        gates = add(times(lstm.weight_ih_l0, y + z), times(lstm.weight_hh_l0, h), biases)
        i, f, g, o = (gates[k * WIDTH : (k + 1) * WIDTH] for k in range(4))
        c = add(gate(sigma(f), c), gate(sigma(i), tanhs(g)))
        h = gate(sigma(o), tanhs(c))
        logits.append(
            affine(model.output, add(y, affine(model.from_hidden, h), affine(model.from_context, z)))
        )
        weights.append(alpha)
    return logits, weights


@pytest.mark.parametrize("with_gate", [True, False])
def test_captioner_computes_the_equations(with_gate: bool):
    model = make(gate=with_gate)
    logits, weights = model.logits_and_weights(batch())
    for row, (image, tokens) in enumerate(zip(features().tolist(), INPUTS, strict=True)):
        by_hand, alpha = caption_by_hand(model, image, tokens)
        assert torch.allclose(logits[row], torch.tensor(by_hand).double(), atol=1e-12)
        assert torch.allclose(weights[row], torch.tensor(alpha).double(), atol=1e-12)
    assert torch.equal(model(batch()), logits)


def test_gate_is_one_number_for_each_step():
    """beta_t = sigmoid(f_beta(h_{t-1})) (section 4.2.1): with beta = 0, the image has no effect after h_0."""
    model = make()
    assert model.gate.weight.shape == (1, WIDTH)
    with torch.no_grad():
        model.gate.bias.fill_(-1e4)
        model.first_hidden.weight.zero_()
        model.first_cell.weight.zero_()
    other = batch(image=features().flip(2) + 1)
    assert torch.equal(model(batch()), model(other))


def test_penalty_by_hand():
    """sum_i (1 - sum_t alpha_ti)^2 (eq. 14): column sums (1, 0.5, 0.5) and, for one word, (0.2, 0.3, 0.5)."""
    first = [[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [1.0, 0.0, 0.0]]
    second = [[0.2, 0.3, 0.5], [0.9, 0.1, 0.0], [0.3, 0.3, 0.4]]
    weights = torch.tensor([first, second], requires_grad=True)
    penalty = doubly_stochastic_penalty(weights, torch.tensor([2, 1]))
    assert penalty.tolist() == pytest.approx([0.0 + 0.25 + 0.25, 0.64 + 0.49 + 0.25])
    penalty.sum().backward()
    assert weights.grad[0, :2].flatten().tolist() == pytest.approx([0.0, -1.0, -1.0] * 2)  # -2 (1 - sum)
    assert not weights.grad[0, 2].any() and not weights.grad[1, 1:].any()


def test_penalty_has_a_gradient_through_the_captioner():
    model = make()
    _, weights = model.logits_and_weights(batch())
    doubly_stochastic_penalty(weights, torch.tensor([4, 3])).sum().backward()
    assert model.score.vector.grad.abs().sum() > 0 and model.output.weight.grad is None


def all_selections(model: Captioner, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """log p(s) and log p(y | s) for each sequence s of locations of one image, both (L^T,)."""
    tokens, image = torch.tensor([INPUTS[0][: steps + 1]]), features(1)
    places = list(itertools.product(range(LOCATIONS), repeat=steps))
    log_p, likelihood = [], []
    for s in places:
        encoded = model.encode(image)
        state, total, chosen = model.start(encoded), 0.0, 0.0
        for t, place in enumerate(s):
            score = model.score.vector @ torch.tanh(
                model.score.query_weight.T @ state.hidden[0][0][:, None]
                + model.score.key_weight.T @ image[0].T
            )
            chosen = chosen + score.log_softmax(-1)[place]
            # A memory with one location: the attention reads this location.
            one = Encoded(
                encoded.lengths, (regard.prepare(image[:, [place]], score=model.score),), encoded.first
            )
            state, logits = model.step(state, tokens[:, t : t + 1], one)
            total = total + logits[0, 0].log_softmax(-1)[tokens[0, t + 1]]
        log_p.append(chosen)
        likelihood.append(total)
    return torch.stack(log_p), torch.stack(likelihood)


def test_bound_is_below_the_log_likelihood():
    """L_s = sum_s p(s | a) log p(y | s, a) <= log p(y | a) = log sum_s p(s | a) p(y | s, a) (eq. 10)"""
    model = make().eval()
    with torch.no_grad():
        model.score.vector.mul_(3)
        model.from_context.weight.mul_(9)  # so that the likelihood depends on the location
    log_p, likelihood = all_selections(model, steps=3)
    assert log_p.exp().sum().item() == pytest.approx(1)
    bound, exact = (log_p.exp() * likelihood).sum(), torch.logsumexp(log_p + likelihood, 0)
    assert bound < exact - 0.01
    # The bound that training logs, the mean over samples of log 1/K sum_k p(y | s_k), lies between them.
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(log_p.detach().exp(), 40_000, True, generator=generator)
    between = likelihood_bound(likelihood[drawn], samples=4) / 10_000
    assert bound < between < exact


def test_soft_gradient_is_the_expectation_over_locations():
    """E[z] = sum_i alpha_i a_i (eq. 13): for T = 1 and an output that is linear in z, the gradient of soft
    attention is the gradient of the expected output over all locations."""
    model = make().eval()
    hidden = model.start(model.encode(features(1))).hidden[0].detach().requires_grad_()

    def context(query: torch.Tensor) -> torch.Tensor:
        memory = regard.prepare(features(1), score=model.score)
        return regard.attention(query[:, None], memory).output[0, 0]

    (soft,) = torch.autograd.grad(context(hidden).sum(), hidden)
    expected = torch.zeros_like(hidden)
    memory = regard.prepare(features(1), score=model.score)
    seen: dict[int, torch.Tensor] = {}
    for seed in range(60):
        hard = regard.Hard(torch.Generator().manual_seed(seed))
        attended = regard.attention(hidden[:, None], memory, select=hard)
        place = attended.chosen.item()
        if place not in seen:  # p(s) d log p(s) z_s, summed over all s
            (gradient,) = torch.autograd.grad(attended.log_probability.sum(), hidden)
            seen[place] = attended.log_probability.exp().item() * attended.output.sum().item() * gradient
    assert set(seen) == set(range(LOCATIONS))
    expected = sum(seen.values())
    assert torch.allclose(soft, expected, atol=1e-12)


def test_half_of_the_captions_read_the_expected_context():
    """Section 4.1: with probability 0.5 for each caption, the sampled location is its expectation."""
    model, rows = make(select="hard"), 200
    soft = make(select="softmax")
    same = batch(image=features(1).expand(rows, -1, -1), inputs=torch.tensor(INPUTS[:1]).expand(rows, -1))
    with torch.no_grad():
        model.score.vector.mul_(3)
        soft.score.vector.mul_(3)
        with Reinforce(expected=0.5).collect(rows) as drawn:
            logits, weights = model.logits_and_weights(same)
    expected = (weights != 0).sum(-1).eq(LOCATIONS).all(-1)
    one_hot = weights.amax(-1).eq(1).all(-1)
    assert torch.equal(expected, ~one_hot) and 70 < int(expected.sum()) < 130
    assert torch.allclose(logits[expected], soft(same)[expected], atol=1e-12)
    log_probability = drawn.sums().log_probability
    assert not log_probability[expected].any() and (log_probability[one_hot] < 0).all()
