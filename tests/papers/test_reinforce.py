"""Williams 1992, Xu et al. 2015, Bengio et al. 2013: estimators of the gradient of hard attention.

Two steps attend to three positions, so there are nine selections s, and every expectation is a finite sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.data.batch import Batch
from regard.models import build_model
from regard.training.estimators import (
    Baseline,
    Estimate,
    LearnedBaseline,
    LeaveOneOut,
    MovingAverage,
    NoBaseline,
    Reinforce,
    hard_selections,
)
from tests.making import log_likelihood

STEPS, PLACES, WIDTH, WORDS = 2, 3, 4, 5
ALL = list(itertools.product(range(PLACES), repeat=STEPS))
FIRST, SECOND = 3, 4  # the target words


class Decoder(nn.Module):
    """h_t = tanh(W [h_{t-1}; e(y_{t-1}); z_t]), logits V h_t, where z_t is the value that h_{t-1} selects."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(PLACES, WIDTH))
        self.words = nn.Parameter(torch.randn(WORDS, WIDTH))
        self.first = nn.Parameter(torch.randn(WIDTH))
        self.next = nn.Linear(3 * WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, WORDS)
        with torch.no_grad():
            self.output.weight.mul_(5)  # so that the reward depends on what is drawn
        self.double()

    def run(self, read: Callable[[int, Tensor], Tensor], rows: int, targets: list[int]) -> Tensor:
        """Logits (rows, T, V); read() returns the context of states (rows, WIDTH)."""
        state, logits = self.first.expand(rows, -1), []
        for step, word in enumerate([2, *targets[:-1]]):
            inputs = (state, self.words[word].expand(rows, -1), read(step, state))
            state = torch.tanh(self.next(torch.cat(inputs, -1)))
            logits.append(self.output(state))
        return torch.stack(logits, 1)

    def forward(self, rows: int, targets: list[int]) -> Tensor:
        def read(step: int, state: Tensor) -> Tensor:
            keys = self.places.expand(rows, -1, -1)
            attended = regard.attention(
                state[:, None], keys, score=regard.Dot(), select=regard.Hard(), start=step
            )
            return attended.output[:, 0]

        return self.run(read, rows, targets)

    def plain(self, s: tuple[int, ...], targets: list[int]) -> tuple[Tensor, Tensor]:
        """log p(s) and log p(y | s), by indexing."""
        chosen = []

        def read(step: int, state: Tensor) -> Tensor:
            chosen.append((self.places @ state[0]).log_softmax(-1)[s[step]])
            return self.places[s[step]][None]

        (logits,) = self.run(read, 1, targets)
        likely = sum(row.log_softmax(-1)[word] for row, word in zip(logits, targets, strict=True))
        return sum(chosen), likely


@pytest.fixture
def decoder() -> Decoder:
    torch.manual_seed(18)
    return Decoder()


Group = tuple[tuple[int, ...], ...]
"""The selections of each row of a batch."""


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch) -> Callable[[Group], None]:
    """Make Hard draw these positions: at each call, those of the next step."""
    queue: list[tuple[int, ...]] = []

    def exponential(race: Tensor, generator: object = None) -> Tensor:
        rows = torch.tensor(queue.pop(0)).view(-1, 1, 1, 1)
        assert race.shape == (len(rows), 1, 1, PLACES)
        return race.fill_(1e200).scatter_(-1, rows, 1.0)

    monkeypatch.setattr(Tensor, "exponential_", exponential)

    def fill(group: Group) -> None:
        assert not queue
        queue.extend(zip(*group, strict=True))

    return fill


class Estimated(NamedTuple):
    probability: float
    gradient: Tensor
    estimate: Estimate


def flat(gradients: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([each.flatten() for each in gradients])


def exact(decoder: Decoder, targets: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """-dL_s by differentiating the sum over all selections, L_s, and log p(y)."""
    pairs = [decoder.plain(s, targets) for s in itertools.product(range(PLACES), repeat=len(targets))]
    bound = sum(chosen.exp() * likely for chosen, likely in pairs)
    whole = torch.stack([chosen + likely for chosen, likely in pairs]).logsumexp(0)
    return flat(torch.autograd.grad(-bound, list(decoder.parameters()))), bound.detach(), whole.detach()


def estimates(decoder: Decoder, draw, baseline: Baseline, targets: list[int], **options) -> list[Estimated]:
    """The estimate of the gradient for each selection (each tuple of them, if there are several samples)."""
    estimator = Reinforce(baseline, **options).double().eval()
    features = decoder.places.mean(0, keepdim=True)
    each_s = list(itertools.product(range(PLACES), repeat=len(targets)))
    results = []
    for group in itertools.product(each_s, repeat=estimator.samples):
        draw(group)
        with hard_selections() as drawn:
            logits = decoder(len(group), targets)
        reward = log_likelihood(logits, torch.tensor([targets] * len(group)))
        estimate = estimator(drawn, reward, features=features.expand(len(group), -1))
        total = estimate.loss + estimate.baseline_loss - reward.sum() / len(group)
        probability = drawn.sums().log_probability.sum().exp().item()
        results.append(
            Estimated(probability, flat(torch.autograd.grad(total, list(decoder.parameters()))), estimate)
        )
    assert sum(each.probability for each in results) == pytest.approx(1, abs=1e-12)
    return results


def mean(results: list[Estimated]) -> Tensor:
    return sum(each.probability * each.gradient for each in results)


def variance(results: list[Estimated]) -> float:
    """The trace of the covariance."""
    middle = mean(results)
    return float(sum(each.probability * (each.gradient - middle).square().sum() for each in results))


def trained(decoder: Decoder, targets: list[int]) -> LearnedBaseline:
    """A learned baseline after some steps on rewards that are drawn in proportion to p(s)."""
    baseline, features = LearnedBaseline(WIDTH, hidden=3).double(), decoder.places.mean(0, keepdim=True)
    rewards = [decoder.plain(s, targets) for s in itertools.product(range(PLACES), repeat=len(targets))]
    expected = sum(chosen.exp() * likely for chosen, likely in rewards).detach()
    optimizer = torch.optim.Adam(baseline.parameters(), 0.1)
    for _ in range(100):
        optimizer.zero_grad()
        baseline(expected[None], features)[1].sum().backward()
        optimizer.step()
    assert abs(baseline(expected[None], features)[0] - expected) < 0.1
    return baseline


@pytest.mark.parametrize("kind", ["none", "moving-average", "learned"])
def test_expectation_of_the_estimate_is_the_exact_gradient(decoder: Decoder, draw, kind: str):
    """E[d log p(y | s) + (r - b) d log p(s)] = dL_s (Xu et al. eq. 11), for every baseline."""
    targets = [FIRST, SECOND]
    wanted, bound, _ = exact(decoder, targets)
    baseline = {
        "none": NoBaseline(),
        "moving-average": MovingAverage(initial=-3.0),
        "learned": trained(decoder, targets),
    }[kind]
    results = estimates(decoder, draw, baseline, targets)
    assert len(results) == len(ALL)
    torch.testing.assert_close(mean(results), wanted, rtol=0, atol=1e-10)
    rewards = sum(each.probability * each.estimate.shown["reward"] for each in results)
    torch.testing.assert_close(rewards, bound, rtol=0, atol=1e-12)


def test_baselines_lower_the_variance(decoder: Decoder, draw):
    targets = [FIRST, SECOND]
    _, bound, _ = exact(decoder, targets)
    average = MovingAverage().double()
    for _ in range(50):
        average.update(bound[None])
    without = variance(estimates(decoder, draw, NoBaseline(), targets))
    with_average = variance(estimates(decoder, draw, average, targets))
    with_network = variance(estimates(decoder, draw, trained(decoder, targets), targets))
    assert 0 < with_average < 0.5 * without and 0 < with_network < 0.5 * without


def test_several_samples_keep_the_mean_and_divide_the_variance(decoder: Decoder, draw):
    wanted, bound, whole = exact(decoder, [FIRST])
    one = estimates(decoder, draw, MovingAverage(initial=-1.0), [FIRST])
    three = estimates(decoder, draw, MovingAverage(initial=-1.0), [FIRST], samples=3)
    assert len(three) == PLACES**3
    torch.testing.assert_close(mean(three), wanted, rtol=0, atol=1e-10)
    assert variance(three) == pytest.approx(variance(one) / 3, rel=1e-9)
    tighter = sum(each.probability * each.estimate.shown["bound"] for each in three)
    assert bound < tighter < whole


def test_leave_one_out_keeps_the_mean_and_lowers_the_variance(decoder: Decoder, draw):
    """Kool et al. 2019: the mean reward of the other samples is a baseline that does not bias the mean."""
    wanted, _, _ = exact(decoder, [FIRST, SECOND])
    results = estimates(decoder, draw, LeaveOneOut(2), [FIRST, SECOND], samples=2)
    torch.testing.assert_close(mean(results), wanted, rtol=0, atol=1e-10)
    without = estimates(decoder, draw, NoBaseline(), [FIRST, SECOND], samples=2)
    assert 0 < variance(results) < 0.5 * variance(without)


def test_bound_is_below_the_likelihood(decoder: Decoder, draw):
    """L_s <= log p(y) by Jensen's inequality (Xu et al. eq. 10)."""
    _, bound, whole = exact(decoder, [FIRST, SECOND])
    assert bound < whole < 0
    results = estimates(decoder, draw, NoBaseline(), [FIRST, SECOND])
    expected = sum(each.probability * each.estimate.shown["bound"] for each in results)
    torch.testing.assert_close(expected, bound, rtol=0, atol=1e-12)


def test_entropy_bonus_is_the_gradient_of_the_entropy(decoder: Decoder, draw):
    """With one step, E[...] = d(L_s + lambda_e H)."""
    wanted, _, _ = exact(decoder, [FIRST])
    alpha = (decoder.places @ decoder.first).softmax(-1)
    entropy = -(alpha * alpha.log()).sum()
    slope = flat(torch.autograd.grad(-0.3 * entropy, list(decoder.parameters()), materialize_grads=True))
    results = estimates(decoder, draw, NoBaseline(), [FIRST], entropy=0.3)
    torch.testing.assert_close(mean(results), wanted + slope, rtol=0, atol=1e-10)
    assert all(each.estimate.shown["entropy"] == pytest.approx(entropy.item()) for each in results)


def test_an_average_that_includes_the_batch_would_be_biased(decoder: Decoder, draw):
    """b_k = 0.9 b_{k-1} + 0.1 r_k as baseline of batch k scales the term by 0.9: b_{k-1} is used instead."""
    wanted, _, _ = exact(decoder, [FIRST])
    biased = sum(
        each.probability * each.gradient
        for each in estimates(decoder, draw, NoBaseline(), [FIRST], scale=0.9)
    )
    assert (biased - wanted).abs().max() > 1e-3
    baseline = MovingAverage()
    estimator = Reinforce(baseline)
    for reward, before, after in ((-4.0, 0.0, -0.4), (-2.0, -0.4, -0.56)):
        draw(((1,),))
        with hard_selections() as drawn:
            decoder(1, [FIRST])
        estimate = estimator(drawn, torch.tensor([reward]))
        assert estimate.shown["baseline"].item() == pytest.approx(before)
        assert baseline.average.item() == pytest.approx(after)


def test_straight_through_is_one_hot_forward_and_softmax_backward():
    """Bengio et al. 2013, section 4: the gradient of the softmax, at the value of the one-hot vector."""
    values = torch.randn(1, PLACES, 2, dtype=torch.float64)
    scores = torch.randn(1, PLACES, 1, dtype=torch.float64, requires_grad=True)
    one, slope = torch.ones(1, 1, 1).double(), torch.randn(2).double()

    def gradient(select: regard.Select) -> tuple[Tensor, Tensor]:
        output = regard.attention(one, scores, values, score=regard.Dot(), select=select).output[0, 0]
        return output.detach(), torch.autograd.grad(output @ slope, scores)[0]

    hard, passed = gradient(regard.StraightThrough())
    assert torch.equal(hard, values[0, scores.argmax()])
    torch.testing.assert_close(passed, gradient(regard.Soft())[1], rtol=0, atol=1e-15)
    look = regard.Look(weights=True)
    seen = regard.attention(
        one, scores, values, score=regard.Dot(), select=regard.StraightThrough(), look=look
    )
    assert sorted(seen.weights.flatten().tolist()) == [0.0, 0.0, 1.0]


def test_estimate_of_a_model_is_the_exact_gradient(draw):
    """A Bahdanau model with three source tokens and two target tokens, EOS included."""
    torch.manual_seed(18)
    batch = Batch.collate([[4, 5]], [[6]])
    model = build_model("bahdanau", 9, 9, width=4, select="hard").double()
    with torch.no_grad():
        model.score.vector.mul_(20)  # far from uniform
    parameters = [each for name, each in model.named_parameters()]
    estimator = Reinforce(MovingAverage(initial=-3.0)).double().eval()
    bound, expected, total = torch.zeros(()), 0.0, 0.0
    for s in ALL:
        draw((s,))
        with hard_selections() as drawn:
            logits = model(batch)
        reward = log_likelihood(logits, batch.labels)
        loss = estimator(drawn, reward, batch.target_lengths).loss - reward.sum()
        gradient = flat(torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True))
        chosen = drawn.sums().log_probability.sum().exp()
        bound, expected, total = (
            bound + chosen * reward.sum(),
            expected + chosen.detach() * gradient,
            total + chosen,
        )
    wanted = flat(torch.autograd.grad(-bound, parameters, materialize_grads=True))
    assert total.item() == pytest.approx(1) and wanted.abs().max() > 0.01
    torch.testing.assert_close(expected, wanted, rtol=0, atol=1e-10)
