"""Baselines of REINFORCE. A baseline is subtracted from the reward, to lower the variance of the gradient."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError, Setting, UnknownName, message, positive
from regard.training.distributed import Processes

__all__ = [
    "BASELINES",
    "Baseline",
    "LearnedBaseline",
    "LeaveOneOut",
    "MovingAverage",
    "NoBaseline",
    "build_baseline",
]


class Baseline(nn.Module):
    """Base class of baselines. A subclass implements forward().

    The baseline of a row must not depend on the keys that the attention sampled for this row. Otherwise the
    gradient estimate would be biased.
    """

    def forward(self, reward: Tensor, features: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the baseline of each row and the loss that trains the baseline, both of shape (rows,).

        A row is one sequence of the batch, with the keys that were sampled for it. The baseline is detached.
        The loss is 0 if the baseline has no parameters.

        reward: (rows,), detached. The loss may depend on the rewards. The baseline of a row must not depend
            on the reward of this row, because this reward depends on the keys that were sampled for the row.
        features: (rows, F), the input of a learned baseline, or None.
        """
        raise TypeError(f"{type(self).__name__} does not implement forward()")

    def update(self, reward: Tensor, counted: Tensor | None = None) -> None:
        """Update moving averages with the rewards of a batch. Called after forward(), in training mode only.

        counted: (rows,), False for rows that are padding. Default: all rows count.
        """


class NoBaseline(Baseline):
    """A baseline that is always 0: REINFORCE subtracts nothing from the reward."""

    def __init__(self) -> None:
        super().__init__()

    def forward(self, reward: Tensor, features: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(reward), torch.zeros_like(reward)


class LeaveOneOut(Baseline):
    """Baseline b of a sample: the mean reward of the other samples of the same example.

    b_k = 1/(K - 1) sum_{j != k} r_j   (Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!")

    Some targets have a lower likelihood than other targets, for all sampled keys. This difference is a large
    part of the variance of the rewards of a batch. r_k - b_k does not contain this difference.

    samples: K, at least 2. Row r of the rewards is a sample of example r // K.

    >>> LeaveOneOut(samples=3)(torch.tensor([-1.0, -2.0, -6.0]))[0]
    tensor([-4.0000, -3.5000, -1.5000])
    """

    def __init__(self, samples: int = 2):
        super().__init__()
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 2:
            problem, hint = f"samples is {samples!r}", ("use ", Setting("training", "estimator.samples", 4))
            raise ArgumentError(message("LeaveOneOut()", problem, expected="2 or more", hint=hint))
        self.samples = samples

    def forward(self, reward: Tensor, features: Tensor | None = None) -> tuple[Tensor, Tensor]:
        reward_NK = reward.unflatten(0, (-1, self.samples))
        others_NK = (reward_NK.sum(1, keepdim=True) - reward_NK) / (self.samples - 1)
        return others_NK.flatten(), torch.zeros_like(reward)


class MovingAverage(Baseline):
    """Baseline b: the exponential moving average of the mean reward r_k of each batch k.

    b_k = decay b_{k-1} + (1 - decay) r_k   (Xu et al. 2015, section 4.1, where decay is 0.9)

    decay: weight of the previous average.
    initial: the value b_0 before the first batch, such as the log-likelihood of a typical target before
        training.

    The average is a buffer, so it is saved in checkpoints. A mean reward that is NaN or infinite is ignored.

    In this example, the mean reward is -6, so b_1 = 0.5 * 0 + 0.5 * -6 = -3, for each of 3 rows:

    >>> baseline = MovingAverage(decay=0.5)
    >>> baseline.update(torch.tensor([-4.0, -8.0]))
    >>> baseline(torch.zeros(3))[0]
    tensor([-3., -3., -3.])
    """

    average: Tensor

    def __init__(self, decay: float = 0.9, initial: float = 0.0):
        super().__init__()
        if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay < 1:
            raise ArgumentError(message("MovingAverage()", f"decay is {decay!r}", expected="0 <= decay < 1"))
        self.decay, self.processes = decay, Processes()
        self.register_buffer("average", torch.tensor(float(initial)))

    def forward(self, reward: Tensor, features: Tensor | None = None) -> tuple[Tensor, Tensor]:
        # Copy the average, because update() changes the buffer in place.
        return self.average.to(reward.dtype, copy=True).expand_as(reward), torch.zeros_like(reward)

    @torch.no_grad()
    def update(self, reward: Tensor, counted: Tensor | None = None) -> None:
        self._follow(self.average, reward, counted)

    def _follow(self, average: Tensor, values: Tensor, counted: Tensor | None) -> None:
        """Update a moving average, in place, with the mean of the values over the rows of all processes.

        average: the moving average, a scalar tensor.
        values: (rows,).
        counted: (rows,), False for rows that are padding. None: all rows count.
        """
        counts = torch.ones_like(values) if counted is None else counted.to(values.dtype)
        total, count = torch.where(counts > 0, values, 0.0).sum(), counts.sum()
        if self.processes.world > 1:
            total, count = self.processes.sum(torch.stack((total, count))).unbind()
        after = self.decay * average + (1 - self.decay) * (total / count).to(average.dtype)
        average.copy_(torch.where(after.isfinite(), after, average))


class LearnedBaseline(MovingAverage):
    """Baseline b: a small network that predicts the reward r of a sequence (row) from input features x.

    b(x) = m + d (v . tanh(W x + c) + e),  loss = weight sum ((r - b(x)) / d)^2

    m and d are the moving averages of the mean and the standard deviation of the rewards. Because of the
    division by d, the gradient of this loss does not dominate the gradient of the model, whatever the scale
    of the rewards is.

    features: the size F of x.
    hidden: size of the tanh layer.
    weight: weight of the loss.
    decay: decay of the moving averages m and d.

    x is detached, so the loss trains this network only. x must not depend on the keys that the attention
    sampled.

    >>> baseline = LearnedBaseline(features=8)
    >>> value, loss = baseline(torch.tensor([-4.0, -8.0]), torch.randn(2, 8))
    >>> value.shape, value.requires_grad, loss.requires_grad
    (torch.Size([2]), False, True)
    """

    square: Tensor

    def __init__(self, features: int, hidden: int = 64, weight: float = 1.0, decay: float = 0.9):
        super().__init__(decay)
        positive("LearnedBaseline()", features=features, hidden=hidden)
        self.features, self.weight = features, weight
        self.hidden, self.value = nn.Linear(features, hidden), nn.Linear(hidden, 1)
        self.register_buffer("square", torch.tensor(1.0))

    def forward(self, reward: Tensor, features: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if features is None or features.shape != (*reward.shape, self.features):
            shown = {"reward": (reward, "B")} | ({} if features is None else {"features": (features, "BF")})
            problem = "features is None" if features is None else "the shape of features does not match"
            expected = f"features of shape ({len(reward)}, {self.features})"
            raise ArgumentError(message("LearnedBaseline()", problem, shown, expected))
        deviation = (self.square - self.average.square()).clamp_min(1e-4).sqrt().to(reward.dtype)
        hidden = torch.tanh(self.hidden(features.detach().to(self.hidden.weight.dtype)))
        value = self.average.to(reward.dtype) + deviation * self.value(hidden).squeeze(-1).to(reward.dtype)
        return value.detach(), self.weight * ((reward - value) / deviation).square()

    @torch.no_grad()
    def update(self, reward: Tensor, counted: Tensor | None = None) -> None:
        super().update(reward, counted)
        self._follow(self.square, reward.square(), counted)


BASELINES: dict[str, type[Baseline]] = {
    "none": NoBaseline,
    "moving-average": MovingAverage,
    "learned": LearnedBaseline,
    "leave-one-out": LeaveOneOut,
}


def build_baseline(baseline: str | Mapping[str, Any] | Baseline, samples: int | None = None) -> Baseline:
    """Create a baseline from its name, or from a dict with its name and options.

    A Baseline is returned unchanged.

    samples: number of samples per example, for "leave-one-out".

    >>> build_baseline({"name": "moving-average", "decay": 0.99}).decay
    0.99
    """
    if isinstance(baseline, Baseline):
        return baseline
    options: dict[str, Any] = {"name": baseline} if isinstance(baseline, str) else dict(baseline)
    name = options.pop("name", None)
    if name not in BASELINES:
        raise UnknownName("baseline", name, BASELINES)
    known = signature(BASELINES[name]).parameters
    if name == "leave-one-out" and samples is not None:
        options["samples"] = samples
    for option in options:
        if option not in known:
            raise UnknownName(f"option of the baseline {name}", option, known)
    missing = [each for each, parameter in known.items() if parameter.default is parameter.empty]
    if not set(missing) <= set(options):
        hint = f'if the encoder states have size 256, use {{"name": "{name}", "{missing[0]}": 256}}'
        raise ArgumentError(message(f"baseline {name}", f"{missing[0]} is not set", hint=hint))
    return BASELINES[name](**options)
