"""Estimators: train models whose attention samples one key (select=Hard), for which autograd has no gradient.

    L_s = sum_s p(s) log p(y | s) <= log p(y)                            (Xu et al. 2015, eq. 10)
    dL_s = sum_s p(s) (d log p(y | s) + (log p(y | s) - b) d log p(s))   (eq. 11, for any baseline b)

y is the target, and d means "the gradient of". A selection s consists of the keys that the attention selects,
one key for each query. L_s is a lower bound of the log-likelihood log p(y).

REINFORCE (Williams 1992) replaces the sum over all selections s by samples. dL_s has two parts. The part with
d log p(y | s) is the gradient of the usual loss. The part with d log p(s) is the gradient of one more term of
the loss. hard_selections() collects log p(s) in a forward pass. Reinforce computes the term from log p(s) and
the rewards log p(y | s). sampled_loss.py adds the term to the loss of a task.

The straight-through estimator (Bengio et al. 2013) needs no such term; it is the selection StraightThrough.
"""

from __future__ import annotations

import fnmatch
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attended import Attended
from regard.call import Call
from regard.data.batch import PAD
from regard.errors import ArgumentError, UnknownName, message
from regard.roles import Role
from regard.select import Best, Hard, Select, Selection, softmax
from regard.sites import Scope, open_scope
from regard.training.baselines import Baseline, MovingAverage, build_baseline
from regard.training.distributed import Processes

__all__ = [
    "ESTIMATORS",
    "Estimate",
    "HardSelections",
    "Reinforce",
    "build_estimator",
    "check_selections",
    "hard_selections",
    "likelihood_bound",
    "log_likelihood",
]

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
        (see Role.rows), or a pattern for site names. The first matching key is used. If no key matches, all
        steps count. A value can also be a list with one tensor for each call.
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
            sums.append(
                _row_sums(drawn, _lengths_at(drawn.site, drawn.role, calls[drawn.site], lengths), rows)
            )
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


def _lengths_at(site: str, role: Role, number: int, lengths: Lengths) -> Tensor | None:
    """Return the entry of `lengths` for call `number` (from 0) of a site. See HardSelections.sums()."""
    if not isinstance(lengths, Mapping):
        return lengths
    keys = (key for key in lengths if key == role.rows or fnmatch.fnmatchcase(site, key))
    matching = next((lengths[key] for key in keys), None)
    if matching is None or isinstance(matching, Tensor):
        return matching
    if number >= len(matching):
        problem = f"site '{site}' was called more than {len(matching)} times"
        raise ArgumentError(message("HardSelections.sums()", problem, expected="one tensor for each call"))
    return matching[number]


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
                hint='set model.select="hard" or "straight-through"; hard selects the best key in eval mode',
            )
        )
    if hard and estimator is None:
        raise ArgumentError(
            message(
                "model.select",
                "hard attention has no gradient without an estimator",
                hint='set training.estimator.name="reinforce" (--estimator reinforce), '
                'or model.select="straight-through"',
            )
        )
    if estimator is not None and not hard:
        named = sorted({type(each).__name__ for each in selections.values() if isinstance(each, Select)})
        problem = f"the attention of this model is not hard ({', '.join(named) or 'no selection'})"
        hint = 'set model.select="hard" (--select hard), or do not set training.estimator'
        raise ArgumentError(message("training.estimator", problem, hint=hint))
