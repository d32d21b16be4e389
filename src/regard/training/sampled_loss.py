"""The loss of a task whose model samples its attention (select=Hard), with REINFORCE.

    loss = 1/K sum_k loss(y | s_k) + estimate.loss + estimate.baseline_loss, summed over examples

y is the target, s_k are the keys that the attention selects in sample k of K, and `estimate` is the result of
Reinforce.

A task calls add_estimator() in its constructor and sampled_loss() in loss(). The options of the estimator are
the settings training.estimator. See estimators.py for the equations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.data.batch import PAD
from regard.errors import ArgumentError, Hint, Setting, message
from regard.select import Best, Hard, Select
from regard.training.checkpoints.checkpoints import ESTIMATOR
from regard.training.distributed import Processes
from regard.training.estimators import Reinforce, likelihood_bound
from regard.training.hard_selections import Lengths
from regard.training.settings import Training
from regard.training.task import Loss

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
