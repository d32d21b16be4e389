"""Estimators: train models whose attention samples one key (select=Hard), for which autograd has no gradient.

    L_s = sum_s p(s) log p(y | s) <= log p(y)                            (Xu et al. 2015, eq. 10)
    dL_s = sum_s p(s) (d log p(y | s) + (log p(y | s) - b) d log p(s))   (eq. 11, for any baseline b)

y is the target, and d means "the gradient of". A selection s consists of the keys that the attention selects,
one key for each query. L_s is a lower bound of the log-likelihood log p(y).

REINFORCE (Williams 1992) replaces the sum over all selections s by samples. dL_s has two parts. The part with
d log p(y | s) is the gradient of the usual loss. The part with d log p(s) is the gradient of one more term of
the loss. hard_selections() collects log p(s) in a forward pass. Reinforce computes the term from log p(s) and
the rewards log p(y | s). A baseline is subtracted from the reward, to lower the variance of the gradient.
sampled_loss() adds the term to the loss of a task, which calls add_estimator() in its constructor:

    loss = 1/K sum_k loss(y | s_k) + estimate.loss + estimate.baseline_loss, summed over examples

s_k are the keys that the attention selects in sample k of K. The options are the settings training.estimator.

The straight-through estimator (Bengio et al. 2013) needs no such term; it is the selection StraightThrough.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attended import Attended
from regard.call import Call
from regard.data.batch import PAD
from regard.errors import ArgumentError, Hint, Setting, UnknownName, message
from regard.roles import Role
from regard.select import Best, Hard, Select, Selection, softmax
from regard.sites import Scope, open_scope
from regard.training.checkpoints.checkpoints import ESTIMATOR
from regard.training.distributed import Processes
from regard.training.settings import Training
from regard.training.task import Loss


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
        if samples < 2:
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
    if name == "leave-one-out" and samples is not None:
        options["samples"] = samples
    return BASELINES[name](**options)


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
        reward: (rows,), the reward of each decoder sequence (row), such as its log-likelihood; detached here.
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


Lengths = Tensor | Mapping[str, Tensor | Sequence[Tensor]] | None


class _Drawn(NamedTuple):
    """Log-probabilities of the keys that one attention call sampled, and entropies of its softmax weights.

    position_T: the index of each query in its sequence (the decoding step).
    beams: number of decoder sequences (rows) per encoded source.
    """

    site: str
    role: Role
    log_probability_BHT: Tensor
    entropy_BHT: Tensor
    position_T: Tensor
    beams: int


class Sums(NamedTuple):
    """Sums over the attention steps of each decoder sequence: of log p(sampled key), and of the entropy."""

    log_probability: Tensor
    entropy: Tensor


@dataclass(frozen=True, eq=False)
class _PartlyExpected(Select):
    """Hard selection for some queries only. Queries with expected_B1T = True use softmax weights instead."""

    hard: Hard
    expected_B1T: Tensor

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        drawn = self.hard.choose(scores_BHTS, visible_BHTS)
        assert drawn.log_probability is not None
        soft_BHTS, _ = softmax(scores_BHTS, visible_BHTS)
        return drawn._replace(
            weights=torch.where(self.expected_B1T[..., None], soft_BHTS, drawn.weights),
            log_probability=torch.where(self.expected_B1T, 0.0, drawn.log_probability),
        )


@dataclass(eq=False)
class HardSelections(Scope):
    """The result of hard_selections(): log-probabilities of all sampled keys, and entropies of the weights.

    A row is a sequence of the decoder. With K beams for each of B encoded sources, there are B K rows.

    expected, examples: see hard_selections().
    """

    expected: float = 0.0
    examples: int | None = None

    def __post_init__(self) -> None:
        self._drawn: list[_Drawn] = []
        self._soft: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of attention calls so far that sampled keys."""
        return len(self._drawn)

    def applied(self, call: Call) -> Call:
        if not self.expected or not isinstance(call.select, Hard):
            return call
        batch, queries = len(call.query), call.query.shape[2]
        rows = batch * call.beams
        if self._soft is None:
            examples = self.examples or rows
            self._soft = torch.rand(examples, device=call.query.device) < self.expected
        if rows % len(self._soft) and len(self._soft) % rows:
            problem = f"an attention call has {rows} rows, but there are {len(self._soft)} examples"
            raise ArgumentError(message("hard_selections()", problem, expected="a multiple of `examples`"))
        soft_R = self._soft.repeat_interleave(max(rows // max(len(self._soft), 1), 1))
        soft_BT = soft_R.view(batch, call.beams).repeat_interleave(queries // call.beams, 1)
        return replace(call, select=_PartlyExpected(call.select, soft_BT[:, None]))

    def keep(self, site: str, attended: Attended, call: Call, to_user: Callable[[Tensor], Tensor]) -> None:
        if attended.log_probability is not None and attended.entropy is not None:
            values = attended.log_probability, attended.entropy, call.positions, call.beams
            self._drawn.append(_Drawn(site, self.seen.role(site), *values))

    def sums(self, lengths: Lengths = None) -> Sums:
        """Return the log-probability of the sampled keys and the entropy, summed over steps, heads and sites.

        A step is the position of a query. Both sums have shape (rows,): one value for each decoder sequence
        (row). They have gradients.

        lengths: number of steps of each row, as a tensor (rows,), or (B,) if all rows of an encoded source
            have the same length. Later steps are padding and do not count. Default: all steps count.

        If encoder and decoder sample keys, `lengths` is a dict, such as
        {"source": source_lengths, "target": target_lengths}. A key is the sequence of the queries of a site
        (see Role.rows). All steps of sites without a key count. A value can also be a list with one tensor
        for each call.
        """
        if not self._drawn:
            raise ArgumentError(
                message(
                    "HardSelections.sums()",
                    "no attention call sampled a key; attention calls were made at these sites: "
                    f"{', '.join(self.seen.called) or 'none'}",
                    expected='a model in training mode with select="hard"',
                )
            )
        rows = max(len(each.entropy_BHT) * each.beams for each in self._drawn)
        calls: Counter[str] = Counter()
        sums = []
        for drawn in self._drawn:
            own = lengths.get(drawn.role.rows) if isinstance(lengths, Mapping) else lengths
            if own is not None and not isinstance(own, Tensor):  # one tensor for each call of the site
                if calls[drawn.site] == len(own):
                    problem = f"site '{drawn.site}' was called more than {len(own)} times"
                    expected = "one tensor for each call"
                    raise ArgumentError(message("HardSelections.sums()", problem, expected=expected))
                own = own[calls[drawn.site]]
            sums.append(_row_sums(drawn, own, rows))
            calls[drawn.site] += 1
        log_probability, entropy = zip(*sums, strict=True)
        return Sums(torch.stack(log_probability).sum(0), torch.stack(entropy).sum(0))


@contextmanager
def hard_selections(
    at: str = "*", *, expected: float = 0.0, examples: int | None = None
) -> Iterator[HardSelections]:
    """Collect the log-probabilities of the keys that attention calls inside a `with` statement sample.

    at: pattern for the names of sites, with * and ? as wildcards.
    expected: probability that an example uses softmax weights for all its queries. Its attention output is
        then a weighted mean of the values, not the value of a sampled key. Xu et al. (2015, section 4.1) use
        0.5. With 0, the outputs are the same as without hard_selections().
    examples: number of different examples in the batch. All examples have the same number of rows (samples),
        and the rows of an example are consecutive. Default: the number of rows of the first call.

    >>> import regard
    >>> x = torch.randn(2, 5, 8)
    >>> with hard_selections() as drawn:
    ...     _ = regard.attention(x, x, select=regard.Hard())
    >>> drawn.sums().log_probability.shape
    torch.Size([2])
    """
    with open_scope(HardSelections(at=at, expected=expected, examples=examples)) as drawn:
        yield drawn


def _row_sums(drawn: _Drawn, lengths_X: Tensor | None, rows: int) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities and entropies of an attention call, each summed per sequence, (rows,)."""
    sums = []
    batch, steps = len(drawn.entropy_BHT), drawn.entropy_BHT.shape[2] // drawn.beams
    own = batch * drawn.beams
    for values_BHT in (drawn.log_probability_BHT, drawn.entropy_BHT):
        values = values_BHT.to(torch.promote_types(values_BHT.dtype, torch.float32))
        values_RHT = values.unflatten(2, (drawn.beams, steps)).transpose(1, 2).flatten(0, 1)
        if lengths_X is not None:
            if len(lengths_X) not in (own, batch):
                shown = {"lengths": (lengths_X, "B"), "log_probability": (drawn.log_probability_BHT, "BHT")}
                problem = f"{len(lengths_X)} lengths for {own} rows at site '{drawn.site}'"
                raise ArgumentError(message("HardSelections.sums()", problem, shown, "one length per row"))
            lengths_R = lengths_X.repeat_interleave(own // max(len(lengths_X), 1))
            counts_RT = drawn.position_T[:steps] < lengths_R[:, None]
            values_RHT = torch.where(counts_RT[:, None], values_RHT, 0.0)
        # An encoder call has only one row for all samples of a source, so its sums are repeated.
        sums.append(values_RHT.sum((1, 2)).repeat_interleave(rows // max(own, 1)))
    return sums[0], sums[1]


SAMPLED = "the loss collects the keys that the attention samples (training.estimator)"
"""The value of Speed.uncapturable for tasks that use sampled_loss(): the reason why CUDA graphs cannot be
used."""


class RowLosses(NamedTuple):
    """The loss and the log-likelihood of each sequence (row) of a batch, both (rows,).

    total: the loss to minimise, not detached, such as the label-smoothed cross-entropy.
    log_likelihood: the log-likelihood of the target, given the keys that the attention sampled. It is only
        logged.
    """

    total: Tensor
    log_likelihood: Tensor


def check_estimator(model: nn.Module, training: Training) -> None:
    """Raise ArgumentError if the attention of a model cannot be trained with the setting training.estimator.

    The selection of a module is its attribute `select`. There are four errors: a module uses Best, which has
    no gradient; a module uses Hard, but there is no estimator; there is an estimator, but no module uses
    Hard, or the model is compiled.

    >>> from regard.models import build_model
    >>> check_estimator(build_model("bahdanau", 9, 9, width=4, select="straight-through"), Training())
    """
    selections = [getattr(module, "select", None) for module in model.modules()]
    hard = any(isinstance(select, Hard) for select in selections)
    straight = " or ", Setting("model", "select", "straight-through")
    place, problem = "model.select", ""
    hint: Hint = ""
    if any(isinstance(select, Best) for select in selections):
        problem = "best (argmax) has no gradient, so the scores would not be trained"
        hint = (
            "use ",
            Setting("model", "select", "hard"),
            ", which selects the best key in eval mode,",
            *straight,
        )
    elif hard and training.estimator is None:
        problem = "hard attention has no gradient without an estimator"
        hint = "use ", Setting("training", "estimator.name", "reinforce"), *straight
    elif training.estimator is not None:
        place = "training.estimator"
        if not hard:
            named = sorted({type(each).__name__ for each in selections if isinstance(each, Select)})
            problem = f"the attention of this model is not hard ({', '.join(named) or 'no selection'})"
            hint = "use ", Setting("model", "select", "hard"), ", or do not set training.estimator"
        elif training.compile:
            problem = "the keys that the attention samples cannot be collected in a compiled model"
            hint = "use ", Setting("training", "compile", False)
    if problem:
        raise ArgumentError(message(place, problem, hint=hint))


def add_estimator(
    model: nn.Module, training: Training, *, features: int = 0, processes: Processes | None = None
) -> Reinforce | None:
    """Add the estimator of the settings to a model as model.estimator, and return the estimator.

    Return None if the settings have no estimator. The estimator becomes a part of the model. So the optimizer
    trains its baseline, and checkpoints contain it.

    features: the size F of the input of a learned baseline.
    processes: the processes of distributed training.

    >>> from regard.models import build_model
    >>> model = build_model("bahdanau", 9, 9, width=4, select="hard")
    >>> estimator = add_estimator(model, Training(estimator={"samples": 1}))
    >>> estimator.expected, [name for name in model.state_dict() if name.startswith("estimator.")]
    (0.5, ['estimator.baseline.average'])
    """
    check_estimator(model, training)
    if training.estimator is None:
        return None
    estimator = Reinforce(**training.estimator.options(features), processes=processes)
    device = next(model.parameters()).device
    model.add_module(ESTIMATOR, estimator.to(device))
    return estimator


def sampled_loss(
    estimator: Reinforce,
    row_losses: Callable[[], RowLosses],
    examples: int,
    *,
    lengths: Lengths = None,
    features: Tensor | None = None,
    counted: Tensor | None = None,
) -> Loss:
    """Run the forward pass of a batch inside estimator.collect(), and return the loss for REINFORCE.

    The result is the mean loss over the samples, plus the two terms of the loss from the estimator.

    The reward of a row is its negative loss. So the gradient is an unbiased estimate of the gradient of the
    expected loss (Williams 1992). In Xu et al. (2015, eq. 12), the loss is the negative log-likelihood.

    row_losses: a function that computes K = estimator.samples rows for each example, and returns the losses
        of the rows. For example, it calls the model on batch.repeat(K). Row r belongs to example r // K.
    examples: N, the number of different examples in the batch. There are N K rows.
    lengths, features, counted: see Reinforce.forward().

    The returned Loss has these values for the log: "loss" (the negative log-likelihood -log p(y | s)),
    "entropy" (the entropy of the attention), "baseline" (the value that is subtracted from the reward), and
    "bound" (see likelihood_bound()).
    """
    with estimator.collect(examples) as drawn:
        total_R, likelihood_R = row_losses()
    estimate = estimator(drawn, -total_R, lengths, features, counted)
    total = total_R.sum() / estimator.samples + estimate.loss + estimate.baseline_loss
    shown = {
        "loss": -likelihood_R.detach().sum() / estimator.samples,
        "bound": likelihood_bound(likelihood_R, estimator.samples),
        "baseline": estimate.shown["baseline"],
        "entropy": estimate.shown["entropy"],
    }
    return Loss(total, shown)


def features_size(*tables: nn.Embedding) -> int:
    """Return F, the number of features per row that embedding_features() returns for these tables."""
    return sum(table.embedding_dim + 1 for table in tables)


@torch.no_grad()
def embedding_features(*texts: tuple[nn.Embedding, Tensor]) -> Tensor:
    """Return the input of a learned baseline, (rows, F): the mean embedding and log(length) of each text.

    These features do not depend on the sampled keys, so the baseline does not bias the gradient.

    texts: pairs (embedding table, tokens). The tokens have shape (rows, S) and are padded.

    >>> table = nn.Embedding(9, 4)
    >>> embedding_features((table, torch.tensor([[5, 6, 0], [7, 0, 0]]))).shape
    torch.Size([2, 5])
    """
    features = []
    for table, tokens_BS in texts:
        real_BS = tokens_BS != PAD
        lengths_B1 = real_BS.sum(1, keepdim=True).clamp(min=1).to(table.weight.dtype)
        total_BM = (table(tokens_BS) * real_BS[..., None]).sum(1)
        features += [total_BM / lengths_B1, lengths_B1.log()]
    return torch.cat(features, 1)
