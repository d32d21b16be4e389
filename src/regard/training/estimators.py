"""Estimators: train models whose attention samples one key (select=Hard), for which autograd has no gradient.

    L_s = sum_s p(s) log p(y | s) <= log p(y)                            (Xu et al. 2015, eq. 10)
    dL_s = sum_s p(s) (d log p(y | s) + (log p(y | s) - b) d log p(s))   (eq. 11, for any baseline b)

y is the target, and d means "the gradient of". A selection s consists of the keys that the attention selects,
one key for each query. L_s is a lower bound of the log-likelihood log p(y).

REINFORCE (Williams 1992) replaces the sum over all selections s by samples. dL_s has two parts. The part with
d log p(y | s) is the gradient of the usual loss. The part with d log p(s) is the gradient of one more term of
the loss. hard_selections() collects log p(s) in a forward pass (hard_selections.py). Reinforce computes the
term from log p(s) and the rewards log p(y | s). sampled_loss.py adds the term to the loss of a task.

The straight-through estimator (Bengio et al. 2013) needs no such term; it is the selection StraightThrough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.data.batch import PAD
from regard.errors import ArgumentError, Setting, UnknownName, message
from regard.select import Best, Hard, Select
from regard.training.baselines import Baseline, MovingAverage, build_baseline
from regard.training.distributed import Processes
from regard.training.hard_selections import HardSelections, Lengths, hard_selections

__all__ = [
    "ESTIMATORS",
    "Estimate",
    "Reinforce",
    "build_estimator",
    "check_selections",
    "likelihood_bound",
    "log_likelihood",
]


def log_likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each target sequence, (B,), the usual reward for Reinforce.

    logits: (B, T, V).
    labels: (B, T), the target tokens. Labels that are PAD do not count.

    The sum is computed in float32, or in float64 for float64 logits.

    >>> log_likelihood(torch.zeros(1, 2, 4), torch.tensor([[2, PAD]])).exp()
    tensor([0.2500])
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    scores_BTV = torch.log_softmax(logits, -1, dtype=dtype)
    picked_BT = scores_BTV.gather(-1, labels[..., None]).squeeze(-1)
    return torch.where(labels == PAD, 0.0, picked_BT).sum(-1)


class Estimate(NamedTuple):
    """The result of Reinforce: terms of the loss, summed over examples, and values for the log.

    loss: the term that trains the attention to select keys with a high reward (formula: see Reinforce).
    baseline_loss: the term that trains a learned baseline; 0 for other baselines.
    shown: detached values for the log. "reward", "baseline" and "entropy" are averaged over the samples of an
        example, and summed over examples. "bound" is the result of likelihood_bound() for the rewards.
    """

    loss: Tensor
    baseline_loss: Tensor
    shown: dict[str, Tensor]


class Reinforce(nn.Module):
    """The REINFORCE estimator (Williams 1992) with a baseline and an entropy bonus (Xu et al. 2015, eq. 12).

    loss = -1/K sum_k [scale (r_k - b) log p(s_k) + entropy H(s_k)], summed over examples

    s_k are the keys that were selected in sample k of K. H is the entropy of the attention. r_k is the
    reward, usually the log-likelihood log p(y | s_k) of the target y. b is the baseline, which does not
    depend on the samples. r_k and b are detached. Add this loss to the usual loss, -1/K sum_k log p(y | s_k).
    If scale is 1 and entropy is 0, the gradient of the sum of the two losses is an unbiased estimate of the
    gradient of -L_s, where L_s = sum_s p(s) log p(y | s) <= log p(y) (eq. 10).

    baseline: a name in BASELINES, such as "moving-average", a mapping with name and options, or a Baseline.
    scale: weight of the term with the reward (lambda_r).
    entropy: weight of the entropy (lambda_e). The keys that were sampled at earlier decoding steps change the
        entropy of a later step, but the gradient ignores this effect.
    samples: K, the number of samples per example. Row r of the batch is a sample of example r // K.
    expected: probability that an example uses softmax weights instead of sampled keys in the forward pass
        inside collect() (see hard_selections()).
    processes: the processes of distributed training. They share the moving averages.

    Reinforce is a module. Add it to the model: model.estimator = Reinforce(). Then checkpoints contain the
    moving average, and the optimizer trains a learned baseline.

    The defaults are those of Williams. `regard train` has others: see EstimatorSettings.

    Differs from the paper: b is the average before this batch. If the average included this batch, b would
    depend on the samples, and the estimate would be biased.

    >>> import regard
    >>> x, estimator = torch.randn(2, 5, 8, requires_grad=True), Reinforce(entropy=0.01)
    >>> with hard_selections() as drawn:
    ...     output = regard.attention(x, x, select=regard.Hard()).output
    >>> reward = -output.square().sum((1, 2))                              # a log-likelihood, (B,)
    >>> estimate = estimator(drawn, reward)
    >>> (estimate.loss - reward.sum()).backward()
    >>> sorted(estimate.shown)
    ['baseline', 'bound', 'entropy', 'reward']
    """

    def __init__(
        self,
        baseline: str | Mapping[str, Any] | Baseline = "moving-average",
        *,
        scale: float = 1.0,
        entropy: float = 0.0,
        samples: int = 1,
        expected: float = 0.0,
        processes: Processes | None = None,
    ):
        super().__init__()
        for name, value in (("scale", scale), ("entropy", entropy)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < torch.inf:
                raise ArgumentError(message("Reinforce()", f"{name} is {value!r}", expected="0 or more"))
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise ArgumentError(message("Reinforce()", f"samples is {samples!r}", expected="1 or more"))
        if isinstance(expected, bool) or not isinstance(expected, int | float) or not 0 <= expected < 1:
            problem = f"expected is {expected!r}"
            raise ArgumentError(message("Reinforce()", problem, expected="0 <= expected < 1"))
        self.scale, self.entropy, self.samples, self.expected = scale, entropy, samples, expected
        self.baseline = build_baseline(baseline, samples)
        if isinstance(self.baseline, MovingAverage):
            self.baseline.processes = processes or Processes()

    def extra_repr(self) -> str:
        return f"scale={self.scale}, entropy={self.entropy}, samples={self.samples}, expected={self.expected}"

    def collect(self, examples: int) -> AbstractContextManager[HardSelections]:
        """Return the context manager hard_selections(expected=self.expected), for one forward pass.

        examples: number of different examples in the batch. Each example has `samples` consecutive rows.
        """
        return hard_selections(expected=self.expected, examples=examples)

    def forward(
        self,
        drawn: HardSelections,
        reward: Tensor,
        lengths: Lengths = None,
        features: Tensor | None = None,
        counted: Tensor | None = None,
    ) -> Estimate:
        """Return the terms of the loss for the selections and rewards of one forward pass.

        drawn: the result of collect() or hard_selections().
        reward: (rows,), the reward of each decoder sequence (row), such as log_likelihood(); detached here.
        lengths: see HardSelections.sums().
        features: (rows, F), the input of a learned baseline; detached. It must not depend on sampled keys.
        counted: (rows,), False for rows that are padding. Default: all rows count.

        In training mode, the call also updates the moving average of the baseline.
        """
        reward, sums = reward.detach(), drawn.sums(lengths)
        if reward.shape != sums.entropy.shape or len(reward) % self.samples:
            shown = {"reward": (reward, "B"), "log_probability": (sums.log_probability, "B")}
            expected = f"one reward per row; the number of rows must be a multiple of samples={self.samples}"
            raise ArgumentError(message("Reinforce()", "the reward has the wrong shape", shown, expected))
        value, baseline_loss_R = self.baseline(reward, features)
        advantage = reward - value
        terms = self.scale * advantage * sums.log_probability + self.entropy * sums.entropy
        if self.training:
            self.baseline.update(reward, counted)

        def total(values_R: Tensor) -> Tensor:
            kept_R = values_R if counted is None else torch.where(counted, values_R, 0.0)
            return kept_R.sum() / self.samples

        means = {"reward": reward, "baseline": value, "entropy": sums.entropy.detach()}
        shown_values = {name: total(each) for name, each in means.items()}
        rewards_R = reward if counted is None else torch.where(counted, reward, 0.0)
        shown_values["bound"] = likelihood_bound(rewards_R, self.samples)
        return Estimate(-total(terms), total(baseline_loss_R), shown_values)


def likelihood_bound(log_likelihoods: Tensor, samples: int) -> Tensor:
    """Return a lower bound (in expectation) of the log-likelihood of N targets, from K samples per target.

    bound = sum_n log 1/K sum_k p(y_n | s_nk),  E[bound] <= sum_n log p(y_n)

    y_n is the target of example n, and s_nk are the keys that are selected in sample k. With K = 1, the
    expected bound is sum_n E[log p(y_n | s_n)]. With larger K, it is closer to sum_n log p(y_n) (Burda et al.
    2016, eq. 8).

    log_likelihoods: log p(y_n | s_nk), (N K,). The K samples of an example are consecutive.
    samples: K.

    >>> likelihood_bound(torch.tensor([0.1, 0.3]).log(), samples=2).exp()
    tensor(0.2000)
    """
    grouped_NK = log_likelihoods.detach().unflatten(0, (-1, samples))
    return (grouped_NK.logsumexp(1) - math.log(samples)).sum()


ESTIMATORS: dict[str, type[Reinforce]] = {"reinforce": Reinforce}


def build_estimator(estimator: str | Mapping[str, Any], processes: Processes | None = None) -> Reinforce:
    """Create an estimator from its name, or from a mapping with its name and options, as in config.toml.

    >>> build_estimator({"name": "reinforce", "samples": 2, "baseline": {"name": "learned", "features": 8}})
    Reinforce(
      scale=1.0, entropy=0.0, samples=2, expected=0.0
      (baseline): LearnedBaseline(
        (hidden): Linear(in_features=8, out_features=64, bias=True)
        (value): Linear(in_features=64, out_features=1, bias=True)
      )
    )
    """
    options = {"name": estimator} if isinstance(estimator, str) else dict(estimator)
    name = options.pop("name", None)
    if name not in ESTIMATORS:
        hint = 'for the straight-through estimator, set model.select="straight-through" instead'
        raise UnknownName("estimator", name, ESTIMATORS, hint=hint)
    known = set(signature(ESTIMATORS[name]).parameters) - {"processes"}
    for option in options:
        if option not in known:
            raise UnknownName(f"option of the estimator {name}", option, known)
    return ESTIMATORS[name](**options, processes=processes)


def check_selections(model: nn.Module, estimator: Reinforce | None) -> None:
    """Raise ArgumentError if the selections of a model and the estimator cannot be used together.

    The selection of a module is its attribute `select`. There are three errors: a module uses Best, which has
    no gradient; a module uses Hard, but there is no estimator; there is an estimator, but no module uses
    Hard.

    >>> from regard.models import build_model
    >>> check_selections(build_model("bahdanau", 9, 9, width=4), None)
    """
    selections = {name: getattr(module, "select", None) for name, module in model.named_modules()}
    hard = [name for name, select in selections.items() if isinstance(select, Hard)]
    if any(isinstance(select, Best) for select in selections.values()):
        raise ArgumentError(
            message(
                "model.select",
                "best (argmax) has no gradient, so the scores would not be trained",
                hint=(
                    *(
                        "use ",
                        Setting("model", "select", "hard"),
                        ", which selects the best key in eval mode, ",
                    ),
                    *("or ", Setting("model", "select", "straight-through")),
                ),
            )
        )
    if hard and estimator is None:
        raise ArgumentError(
            message(
                "model.select",
                "hard attention has no gradient without an estimator",
                hint=(
                    *("use ", Setting("training", "estimator.name", "reinforce")),
                    *(" or ", Setting("model", "select", "straight-through")),
                ),
            )
        )
    if estimator is not None and not hard:
        named = sorted({type(each).__name__ for each in selections.values() if isinstance(each, Select)})
        problem = f"the attention of this model is not hard ({', '.join(named) or 'no selection'})"
        hint = "use ", Setting("model", "select", "hard"), ", or do not set training.estimator"
        raise ArgumentError(message("training.estimator", problem, hint=hint))
