"""The gradient of the loss with respect to attention scores, and its variance over samples."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from regard.compare import score_gradients
from regard.compare.score_gradients import gradient_statistics, sample_scores, score_statistics
from regard.data.batch import Batch
from regard.models import build_model
from regard.select import Given
from regard.sites import scope
from tests.making import log_likelihood

S, T, V, STEP, COPIES = 3, 2, 9, 1e-6, 2000


def build(name: str, **options):
    torch.manual_seed(0)
    model = build_model(name, V, V, width=6, **options).double()
    with torch.no_grad():  # scores near 0 would hide an error
        for parameter in model.parameters():
            parameter.mul_(2.0)
    ids = torch.randint(4, V, (2, 2, S - 1), generator=torch.Generator().manual_seed(1)).tolist()
    return model, Batch.collate(ids[0], [row[: T - 1] for row in ids[1]])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bahdanau", {}),
        ("bahdanau", {"select": "gate"}),
        ("luong", {"feeding": False, "readout": "mixture"}),
    ],
)
def test_gradient_of_the_scores_agrees_with_finite_differences(name, options):
    model, batch = build(name, **options)
    samples = sample_scores(model, batch, 2)
    assert samples.gradients.shape == (2, 2, T, S) and samples.scores.shape == (2, T, S)
    assert torch.equal(samples.gradients[0], samples.gradients[1]) and model.training

    def loss(t: int, s: int, step: float) -> torch.Tensor:
        calls = itertools.count()

        def edit(call):
            rows = call.sizes[2]
            first = next(calls) * rows
            bias = torch.zeros(call.sizes, dtype=torch.float64)
            if first <= t < first + rows:
                bias[:, :, t - first, s] = step
            return replace(call, bias=bias)

        with torch.no_grad(), scope(edit=edit, at="cross"):
            return -log_likelihood(model.eval()(batch), batch.labels)

    for t, s in itertools.product(range(T), range(S)):
        slope = (loss(t, s, STEP) - loss(t, s, -STEP)) / (2 * STEP)
        torch.testing.assert_close(samples.gradients[0, :, t, s], slope, rtol=1e-5, atol=1e-9)


def test_reinforce_estimates_the_exact_gradient_and_a_baseline_lowers_its_variance():
    """The mean over samples is the gradient of the expected loss, summed over all choices of keys."""
    model, batch = build("bahdanau", select="hard")
    added = [torch.zeros(2, 1, 1, S, dtype=torch.float64, requires_grad=True) for _ in range(T)]
    expected = torch.zeros(2, dtype=torch.float64)
    for keys in itertools.product(range(S), repeat=T):
        log_probability, calls = torch.zeros(2, dtype=torch.float64), itertools.count()

        def edit(call, keys=keys, calls=calls):
            nonlocal log_probability
            t = next(calls)
            scores = (call.vector * torch.tanh(call.query[..., None, :] + call.key[:, :, None])).sum(-1)
            weights = (scores + added[t]).log_softmax(-1)
            log_probability = log_probability + weights[:, 0, 0, keys[t]]
            chosen = torch.nn.functional.one_hot(torch.tensor(keys[t]), S).double().expand(call.sizes)
            return replace(call, select=Given(chosen))

        with scope(edit=edit, at="cross"):
            reward = log_likelihood(model.eval()(batch), batch.labels)
        expected = expected - log_probability.exp() * reward.detach()
    exact = torch.cat(torch.autograd.grad(expected.sum(), added), -2)[:, 0]
    many = batch.select(torch.arange(2).repeat(COPIES))  # a copy of a pair is another sample

    def sampled(baseline: float = 0.0) -> torch.Tensor:
        return sample_scores(model, many, baseline=baseline).gradients.view(COPIES, 2, T, S)

    average = sample_scores(model, many).rewards.mean().item()
    plain, helped = sampled(), sampled(average)
    torch.testing.assert_close(helped.mean(0), exact, rtol=0, atol=0.05)
    statistics = [gradient_statistics(each) for each in (plain, helped)]
    assert statistics[1]["gradient_variance"] < 0.5 * statistics[0]["gradient_variance"]
    assert statistics[0]["gradient_noise"] > 0.5


def test_statistics_by_hand(monkeypatch: pytest.MonkeyPatch):
    gradients = torch.tensor([[1.0, 3.0], [3.0, 3.0]]).reshape(2, 1, 1, 2)
    found = gradient_statistics(gradients)
    assert found["gradient_variance"] == pytest.approx(2.0)
    assert found["gradient_norm"] == pytest.approx(math.sqrt(4 + 9 - 1))
    assert found["gradient_noise"] == pytest.approx(2 / 14)
    scores = torch.tensor([[0.0, 6.0], [0.0, 0.0]])
    state = score_statistics(scores, torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    assert state["score_variance"] == pytest.approx(9.0) and state["saturated"] == 0.5
    assert state["score_gradient"] == pytest.approx(2.5)
    assert state["largest_weight"] == pytest.approx((1 / (1 + math.exp(-6)) + 0.5) / 2)
    monkeypatch.setattr(score_gradients, "SATURATED", 0.5)  # the weights of the second row
    assert score_statistics(scores, gradients[0, 0])["saturated"] == 0.5
