"""Scores of the cross-attention of a model, and the gradient of the loss with respect to them.

A zero bias is added to the scores of each attention call. Its gradient is the gradient of the scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.backends.reference import compare as scores_of
from regard.call import Call
from regard.compare.study import Run
from regard.compare.study_context import StudyContext
from regard.data.batch import Batch
from regard.look import Look
from regard.models import Model
from regard.select import Hard, StraightThrough
from regard.sites import record, scope
from regard.training.estimators import hard_selections
from regard.training.losses import sequence_losses

ROWS = 8
"""Number of test sentences for which the gradients of a trained run are computed."""

SATURATED = 0.99
"""A row of the softmax is saturated if its largest weight is above this value."""


@dataclass(frozen=True)
class ScoreSamples:
    """Scores of the first cross-attention of a model on a batch, and samples of their gradient.

    scores: (B, T, S), the scores of the last sample.
    gradients: (K, B, T, S), the gradient of the loss of each of K samples.
    rewards: (K, B), the log-likelihood of each target.
    """

    scores: Tensor
    gradients: Tensor
    rewards: Tensor


def sample_scores(
    model: Model, batch: Batch, samples: int = 1, *, baseline: float = 0.0, seed: int = 0
) -> ScoreSamples:
    """Return the scores of the cross-attention, and samples of the gradient of the loss.

    The loss is the negative log-likelihood, without dropout. If the attention samples its keys (select=Hard),
    the gradient is the REINFORCE estimate; it differs from sample to sample.

    model: a translation model with one cross-attention without a bias, such as bahdanau or luong.
    batch: sentence pairs without padding.
    samples: K, number of samples.
    baseline: the value that REINFORCE subtracts from the log-likelihood of each target.
    """
    before = model.training
    model.eval()
    model.training = True  # hard attention samples its keys in training mode; dropout layers stay off
    gradients, rewards = [], []
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for _ in range(samples):
                scores, added = list[Tensor](), list[Tensor]()

                def probe(call: Call, scores: list[Tensor] = scores, added: list[Tensor] = added) -> Call:
                    with torch.no_grad():
                        scores.append(scores_of(call)[0])
                    added.append(call.query.new_zeros(call.sizes).requires_grad_())
                    return replace(call, bias=added[-1])

                with scope(edit=probe, at="cross"), hard_selections("cross") as drawn:
                    reward_B = -sequence_losses(model(batch), batch.labels)[0]
                loss = -reward_B.sum()
                if len(drawn):
                    advantage_B = reward_B.detach() - baseline
                    loss = loss - (advantage_B * drawn.sums().log_probability).sum()
                gradients.append(torch.cat(torch.autograd.grad(loss, added), -2)[:, 0])
                rewards.append(reward_B.detach())
    finally:
        model.train(before)
    scores_BTS = torch.cat(scores, -2)[:, 0]
    return ScoreSamples(scores_BTS, torch.stack(gradients), torch.stack(rewards))


def gradient_statistics(gradients: Tensor) -> dict[str, float]:
    """Return the norm of the mean gradient of a row of scores, and the variance over samples.

    gradients: (K, B, T, S), as in ScoreSamples.

    gradient_norm: root mean square, over rows, of the norm of the mean over samples. The part that is due to
        the variance of this mean is subtracted.
    gradient_variance: the variance over samples, summed over the keys of a row, mean over rows.
    gradient_noise: the share of the variance in the mean square of the gradient; 0 for an exact gradient.
    """
    count = len(gradients)
    variance = gradients.var(0).sum(-1).mean().item() if count > 1 else 0.0
    total = gradients.square().sum(-1).mean().item()
    square = gradients.mean(0).square().sum(-1).mean().item() - variance / count
    return {
        "gradient_norm": math.sqrt(max(square, 0.0)),
        "gradient_variance": variance,
        "gradient_noise": min(variance / total, 1.0) if total else 0.0,
    }


def score_statistics(scores: Tensor, gradients: Tensor) -> dict[str, float]:
    """Return the variance of the scores of a row, the saturation of the softmax, and the gradient.

    scores: (..., S).
    gradients: (..., S), the gradient of the loss with respect to the scores.

    score_variance: variance of the scores of a row, mean over rows.
    largest_weight: mean of the largest weight of a row of the softmax.
    saturated: share of the rows whose largest weight is above 0.99.
    score_gradient: mean norm of the gradient of a row.
    """
    largest = scores.softmax(-1).amax(-1)
    return {
        "score_variance": scores.var(-1).mean().item(),
        "largest_weight": largest.mean().item(),
        "saturated": (largest > SATURATED).double().mean().item(),
        "score_gradient": gradients.norm(dim=-1).mean().item(),
    }


def _entropy_bits(weights: Tensor) -> float:
    share = weights.abs() / weights.abs().sum(-1, keepdim=True).clamp(min=1e-12)
    return -(share * share.clamp(min=1e-12).log2()).sum(-1).mean().item()


def weight_entropy(context: StudyContext, run: Run) -> dict[str, float]:
    """Measure the entropy of the weights in bits (after division by their sum), and the sum of the weights.

    For hard attention, the entropy is that of the distribution from which a key is sampled.
    """

    def measure() -> dict[str, float]:
        model, batch = context.reading(run, 16)
        if isinstance(model.select, Hard | StraightThrough):
            scores = sample_scores(model, batch).scores
            return {"entropy_bits": _entropy_bits(scores.double().softmax(-1)), "sum_of_weights": 1.0}
        with torch.no_grad(), record(Look(weights=True), at="cross") as seen:
            model(batch)
        calls = next(iter(seen.values()))
        kept = [call.weights for call in calls if call.weights is not None]
        weights = torch.cat(kept, -2).double()
        return {"entropy_bits": _entropy_bits(weights), "sum_of_weights": weights.sum(-1).mean().item()}

    return context.measured("weights-2", context.sentences.name, measure, run)


def score_state(context: StudyContext, run: Run) -> dict[str, float]:
    """Measure the variance of the scores, the saturation and the gradient of a trained run."""

    def measure() -> dict[str, float]:
        model, batch = context.reading(run, ROWS)
        samples = sample_scores(model, batch)
        return score_statistics(samples.scores, samples.gradients[0])

    about = {"data": context.sentences.name, "rows": ROWS}
    return context.measured("score-state", about, measure, run)
