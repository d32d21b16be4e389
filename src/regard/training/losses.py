"""Losses: cross-entropy with label smoothing, the guided-alignment loss and R-Drop."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batch import PAD
from regard.dimensions import autocast_on
from regard.errors import ArgumentError, Setting, message
from regard.fast import enabled
from regard.fast.aligned_linear import AlignedLinear
from regard.fast.hooks import contains_hooks, is_hooked, is_plain_linear
from regard.fast.vocabulary_loss import ChunkedLoss
from regard.kernels import by_kernel
from regard.models.base import Model


def model_loss(model: Model, batch: Any, labels: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Compute cross_entropy(model(batch), labels, smoothing); see output_loss().

    labels: (B, T), token ids.
    """
    separate = output_features(model, batch)
    if separate is None:
        return cross_entropy(model(batch), labels, smoothing)
    return output_loss(*separate, labels, smoothing)


class OutputFeatures(NamedTuple):
    """The inputs of the output layer of a model, (B, T, M), and this layer."""

    features: Tensor
    layer: nn.Module


def output_features(model: Model, batch: Any) -> OutputFeatures | None:
    """Compute the inputs of the output layer of a model. None if they must be computed by model(batch)."""
    if torch.compiler.is_compiling():
        return None
    layer = model.output_layer() if separates_output(type(model)) else None
    if layer is None:
        return None
    weight = next(layer.parameters())
    if not (by_kernel(weight) or _in_half_on_cpu(weight)) or contains_hooks(model):
        return None
    return OutputFeatures(model.features(*model.first_step(batch))[1], layer)


def _in_half_on_cpu(x: Tensor) -> bool:
    """Whether ChunkedLoss computes the loss: in training with autocast on a CPU."""
    return x.device.type == "cpu" and autocast_on("cpu") and torch.is_grad_enabled() and enabled()


def separates_output(kind: type[Model]) -> bool:
    """Whether output_layer() after features() computes the same as forward(), for models of this class.

    It is False for a class that overrides forward(), or overrides only step() of a class with features().
    """

    def owner(name: str) -> type:
        return next(each for each in kind.__mro__ if name in vars(each))

    stepped = owner("forward") is Model and issubclass(owner("features"), owner("step"))
    return stepped and owner("output_layer") is not Model


def output_loss(
    features: Tensor, layer: nn.Module, labels: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute cross_entropy(layer(features), labels, smoothing).

    On CUDA, and in bfloat16 on a CPU, the logits are computed in chunks of rows, so that they need little
    memory; see kernels/training/vocabulary_loss.py and fast/vocabulary_loss.py.

    features: (B, T, M).
    layer: the output layer, usually nn.Linear(M, V).
    labels: (B, T), token ids.

    >>> layer, labels = nn.Linear(3, 5), torch.tensor([[2, 4, PAD]])
    >>> features = torch.randn(1, 3, 3)
    >>> smoothed, plain = output_loss(features, layer, labels, 0.1)
    >>> torch.allclose(smoothed, cross_entropy(layer(features), labels, 0.1)[0])
    True
    """
    # Whether calling the layer only computes functional.linear() with its weight and bias.
    linear = is_plain_linear(layer) or (type(layer) is AlignedLinear and not is_hooked(layer))
    if torch.compiler.is_compiling() or not (enabled() and linear):
        return cross_entropy(layer(features), labels, smoothing)
    inputs = (features.flatten(0, 1), layer.weight, layer.bias, labels.flatten())
    if not by_kernel(features):
        if not _in_half_on_cpu(features):
            return cross_entropy(layer(features), labels, smoothing)
        dtype = torch.get_autocast_dtype("cpu")
        with torch.autocast("cpu", enabled=False):
            return ChunkedLoss.apply(*inputs, smoothing, PAD, dtype)
    from regard.kernels.training.vocabulary_loss import VocabularyLoss

    trains = torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in inputs[:3])
    return VocabularyLoss.apply(*inputs, smoothing, PAD, trains)


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Compute the label-smoothed and the plain cross-entropy, each summed over the labels that are not PAD.

    plain    = sum_t -log p(y_t)
    smoothed = (1 - smoothing) plain + smoothing sum_t mean_v -log p(v)       (Szegedy et al. 2016, section 7)

    y_t is the label of position t, and v is any token of the vocabulary.

    logits: (B, T, V).
    labels: (B, T), token ids.

    The sums are float32 for any dtype of the logits. The plain loss is detached.

    >>> logits, labels = torch.zeros(1, 2, 4), torch.tensor([[2, PAD]])
    >>> smoothed, plain = cross_entropy(logits, labels, 0.1)
    >>> round(smoothed.item(), 4), round(plain.item(), 4)
    (1.3863, 1.3863)
    """
    # Compute the log-softmax only once: both losses need it.
    scores = torch.log_softmax(logits.flatten(0, 1), -1, dtype=torch.float32)
    flat = labels.flatten()
    plain = functional.nll_loss(scores, flat, ignore_index=PAD, reduction="sum")
    if not smoothing:
        return plain, plain.detach()
    uniform = -scores.mean(-1).masked_fill(flat == PAD, 0.0).sum()
    return (1 - smoothing) * plain + smoothing * uniform, plain.detach()


def sequence_losses(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Compute the label-smoothed and the plain cross-entropy of each sequence, both of shape (B,).

    The losses are computed as in cross_entropy(), but not summed over sequences. The plain loss is detached.

    logits: (B, T, V).
    labels: (B, T), token ids. Labels that are PAD do not count.

    >>> smoothed, plain = sequence_losses(torch.zeros(2, 2, 4), torch.tensor([[2, PAD], [2, 3]]))
    >>> (plain / plain[0]).tolist()
    [1.0, 2.0]
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    scores_BTV = torch.log_softmax(logits, -1, dtype=dtype)
    real_BT = labels != PAD
    picked_BT = scores_BTV.gather(-1, labels[..., None]).squeeze(-1)
    plain_B = -torch.where(real_BT, picked_BT, 0.0).sum(-1)
    if not smoothing:
        return plain_B, plain_B.detach()
    uniform_B = -torch.where(real_BT, scores_BTV.mean(-1), 0.0).sum(-1)
    return (1 - smoothing) * plain_B + smoothing * uniform_B, plain_B.detach()


def guided_alignment(weights: Tensor, wanted: Tensor) -> Tensor:
    """Compute the guided-alignment loss of Chen et al. (2016): a cross-entropy, summed over the batch.

    loss = -sum_t sum_s a*_ts log a_ts, for target tokens t and source tokens s

    weights: (B, T, S), the attention weights a.
    wanted: (B, T, S), the reference alignment: 1 if source token s is aligned with target token t, else 0. a*
        is the reference alignment, divided by its sum over s. A target token without aligned source tokens
        adds no loss.

    >>> weights = torch.tensor([[[0.5, 0.5], [0.9, 0.1]]])
    >>> guided_alignment(weights, torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])).item().__round__(4)
    0.6931
    """
    share = wanted / wanted.sum(-1, keepdim=True).clamp(min=1)
    return -(share * weights.float().clamp(min=1e-6).log()).sum()


class RDropLoss(NamedTuple):
    """The losses of r_drop(), each summed over the labels that are not PAD.

    total: the value to minimise.
    plain: the cross-entropy without label smoothing, the mean of both passes; detached.
    divergence: the divergence between both passes; detached.
    """

    total: Tensor
    plain: Tensor
    divergence: Tensor


def r_drop(logits: Tensor, labels: Tensor, smoothing: float, weight: float) -> RDropLoss:
    """Compute the cross-entropy of two passes, and a divergence between their output distributions p and q.

    total      = 1/2 (loss of p + loss of q + weight divergence)               (Liang et al. 2021, equation 4)
    divergence = 1/2 sum_t (KL(p_t || q_t) + KL(q_t || p_t))                                  (and equation 2)

    logits: (2 B, T, V). Rows 0 and 1 are two passes of the same sentence, and so on.
    labels: (2 B, T), token ids.
    smoothing: label smoothing of both losses.
    weight: alpha in the paper.

    Differs from the paper: the factor 1/2 of the total. It makes the loss as large as the loss of one pass.

    >>> logits = torch.tensor([[[0.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]])
    >>> r_drop(logits, torch.tensor([[2], [2]]), 0.0, 1.0).divergence.item().__round__(4)
    0.1214
    """
    total, plain = cross_entropy(logits, labels, smoothing)
    scores_BPTV = torch.log_softmax(logits.unflatten(0, (-1, 2)), -1, dtype=torch.float32)
    p_BTV, q_BTV = scores_BPTV.unbind(1)
    # KL(p || q) + KL(q || p) = sum_v (p_v - q_v) (log p_v - log q_v)
    both_BT = ((p_BTV.exp() - q_BTV.exp()) * (p_BTV - q_BTV)).sum(-1)
    divergence = 0.5 * both_BT.masked_fill(labels[::2] == PAD, 0.0).sum()
    return RDropLoss(0.5 * (total + weight * divergence), 0.5 * plain, divergence.detach())


def check_dropout(model: nn.Module) -> None:
    """Raise ArgumentError if a model has no dropout, because then both passes of R-Drop are equal."""
    rates = (getattr(each, name, 0.0) for each in model.modules() for name in ("p", "dropout"))
    if not any(isinstance(rate, float) and rate > 0 for rate in rates):
        problem = "R-Drop compares two passes with different dropout masks, but the model has no dropout"
        hint = (
            *("use ", Setting("model", "dropout", 0.3), " (for few epochs, the default is 0)"),
            *(" or ", Setting("training", "r_drop", 0)),
        )
        raise ArgumentError(message("training.r_drop", problem, hint=hint))
