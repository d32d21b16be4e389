"""Selections of one key: a sample, the argmax, and the argmax with a straight-through gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import ArgumentError, message
from regard.select.soft import Select, Selection, softmax

__all__ = ["Best", "Hard", "StraightThrough"]


@dataclass(frozen=True, eq=False)
class Hard(Select):
    """Hard attention: sample one key from the softmax (Show, Attend and Tell, Xu et al. 2015, eq. 9).

    s ~ Multinoulli(softmax(score)), output = value_s

    Sampling has no gradient. For REINFORCE, the result has the fields log_probability and entropy, which have
    gradients. If a query sees no key, `chosen` is -1, and log_probability and entropy are 0.

    generator: random number generator. Default: the global generator of torch.

    >>> import regard, torch
    >>> seen = regard.attention(torch.eye(2), 50 * torch.eye(2), select=regard.Hard())  # almost one-hot
    >>> seen.chosen, seen.output
    (tensor([0, 1]), tensor([[50.,  0.],
            [ 0., 50.]]))
    """

    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            hint = "use Hard(torch.Generator().manual_seed(42))"
            raise ArgumentError(message("Hard()", f"generator is {self.generator!r}", hint=hint))

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        soft, lse = softmax(scores_BHTS, visible_BHTS)
        some_BHT = visible_BHTS.any(-1)
        if not scores_BHTS.shape[-1]:
            zero = scores_BHTS.sum(-1)
            return Selection(soft, lse, torch.full_like(zero, -1, dtype=torch.long), zero, zero)
        with torch.no_grad():
            # argmax of p / Exp(1) is a sample from p (exponential race), on any device and for any shape.
            race = torch.empty_like(soft).exponential_(generator=self.generator)
            chosen = torch.where(visible_BHTS, soft / race, -1.0).argmax(-1)
        weights = _one_hot(chosen, soft) * some_BHT.unsqueeze(-1) + _spoiled(scores_BHTS, visible_BHTS)
        safe = torch.where(visible_BHTS, scores_BHTS, 0.0)
        lse_safe = torch.where(some_BHT, lse, 0.0)
        drawn = safe.gather(-1, chosen.unsqueeze(-1)).squeeze(-1) - lse_safe
        entropy = lse_safe - (soft * safe).sum(-1)
        return Selection(
            weights.to(soft.dtype),
            lse,
            torch.where(some_BHT, chosen, -1),
            torch.where(some_BHT, drawn, 0.0),
            torch.where(some_BHT, entropy, 0.0),
        )

    def deterministic(self) -> Best:
        return Best()


@dataclass(frozen=True)
class Best(Select):
    """Argmax: read only the key with the highest score.

    output = value_s with s = argmax score_s

    If several keys have the highest score, the first of them is read. Argmax has no gradient, so query and
    key get no gradient.

    >>> import regard, torch
    >>> regard.attention(torch.eye(2), torch.eye(2), select=regard.Best()).output
    tensor([[1., 0.],
            [0., 1.]])
    """

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        if not scores_BHTS.shape[-1]:
            return Selection(scores_BHTS.detach(), chosen=visible_BHTS.sum(-1) - 1)
        some_BHT = visible_BHTS.any(-1)
        best = torch.where(visible_BHTS, scores_BHTS.detach(), -torch.inf).argmax(-1)
        weights = _one_hot(best, scores_BHTS) * some_BHT.unsqueeze(-1) + _spoiled(scores_BHTS, visible_BHTS)
        return Selection(weights.to(scores_BHTS.dtype), chosen=torch.where(some_BHT, best, -1))


@dataclass(frozen=True)
class StraightThrough(Select):
    """Straight-through argmax: forward like Best, backward with the gradient of Soft (Bengio et al. 2013).

    The gradient is biased: the forward pass computes argmax, but the backward pass uses the gradient of
    softmax.

    >>> import regard, torch
    >>> q = torch.eye(2).requires_grad_()
    >>> regard.attention(q, torch.eye(2), select=regard.StraightThrough()).output[0, 0].backward()
    >>> bool(q.grad.abs().sum() > 0)
    True
    """

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        hard = Best().choose(scores_BHTS, visible_BHTS)
        soft, lse = softmax(scores_BHTS, visible_BHTS)
        return Selection(hard.weights + (soft - soft.detach()).to(hard.weights.dtype), lse, hard.chosen)


def _one_hot(index_BHT: Tensor, like_BHTS: Tensor) -> Tensor:
    positions = torch.arange(like_BHTS.shape[-1], device=like_BHTS.device)
    return positions == index_BHT.unsqueeze(-1)


def _spoiled(scores: Tensor, visible: Tensor) -> Tensor:
    """Return (B, H, T, 1): NaN for each query that has a NaN score at a visible key, 0 for other queries.

    The result is added to the weights, so that the output of such a query is NaN, as with softmax.
    """
    return torch.where((visible & scores.isnan()).any(-1, keepdim=True), torch.nan, 0.0)
