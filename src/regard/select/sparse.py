"""Sparse: sparsemax and 1.5-entmax, which give most keys a weight of exactly 0."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import ArgumentError, message
from regard.select.soft import Select, Selection

__all__ = ["Sparse"]


@dataclass(frozen=True)
class Sparse(Select):
    """Sparse weights: sparsemax or 1.5-entmax, which give most keys a weight of exactly 0.

    weight = argmax_p  p . score + H_alpha(p) = [(alpha - 1) score - tau]_+ ^ (1 / (alpha - 1))

    alpha = 2 is sparsemax (Martins and Astudillo 2016). alpha = 1.5 is 1.5-entmax (Peters et al. 2019).
    H_alpha is the Tsallis entropy. tau is the threshold for which the weights sum to 1. Gradients are exact.

    >>> import regard, torch
    >>> q, k = torch.tensor([[1.0]]), torch.tensor([[1.0], [0.5], [-2.0]])
    >>> for alpha in (1.5, 2.0):
    ...     regard.attention(q, k, select=regard.Sparse(alpha), look=regard.Look(weights=True)).weights
    tensor([[0.6740, 0.3260, 0.0000]])
    tensor([[0.7500, 0.2500, 0.0000]])
    """

    alpha: float = 1.5

    def __post_init__(self) -> None:
        if self.alpha not in (1.5, 2.0):
            raise ArgumentError(
                message(
                    "Sparse()",
                    f"alpha is {self.alpha}",
                    expected="1.5 (entmax) or 2 (sparsemax)",
                    hint="use Soft() for alpha = 1, or Best() for alpha = infinity",
                )
            )

    def choose(self, scores_BHTS: Tensor, visible_BHTS: Tensor) -> Selection:
        # Subtracting the row maximum does not change the weights. Keys more than 2 below the maximum get
        # weight 0. So scores below -4, and the scores of hidden keys, are set to -4. Sums of larger numbers
        # would be less exact.
        filled = torch.where(visible_BHTS, scores_BHTS, _lowest(scores_BHTS))
        best = filled.amax(-1, keepdim=True).detach() if filled.shape[-1] else filled.new_zeros(())
        shifted = torch.where(visible_BHTS, scores_BHTS - best, -4.0).clamp_min(-4.0)
        weights = _entmax(shifted / 2) if self.alpha == 1.5 else _sparsemax(shifted)
        return Selection(torch.where(visible_BHTS, weights, 0.0))


def _lowest(scores: Tensor) -> float:
    return torch.finfo(scores.dtype).min


def _sparsemax(scores: Tensor) -> Tensor:
    """Return max(score - tau, 0), with tau = (sum of the scores in the support - 1) / size of the support.

    The support is the set of keys with a weight above 0.

    The gradient that autograd computes is exact.
    """
    if not scores.shape[-1]:
        return scores
    ranked = scores.sort(-1, descending=True).values
    k = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype, device=scores.device)
    total = ranked.cumsum(-1)
    size = (1 + k * ranked.detach() > total.detach()).sum(-1, keepdim=True).clamp_min(1)
    tau = (total.gather(-1, size - 1) - 1) / size
    rounding = ((scores - tau).detach().clamp_min(0).sum(-1, keepdim=True) - 1) / size
    return (scores - tau - rounding).clamp_min(0)


def _entmax(halved: Tensor) -> Tensor:
    """Return max(score/2 - tau, 0)^2, with tau computed from the sorted scores in the support.

    halved: score/2.

    The support is the set of keys with a weight above 0.

    The gradient that autograd computes is exact.
    """
    if not halved.shape[-1]:
        return halved
    ranked = halved.sort(-1, descending=True).values
    k = torch.arange(1, halved.shape[-1] + 1, dtype=halved.dtype, device=halved.device)
    mean, square = ranked.cumsum(-1) / k, ranked.square().cumsum(-1) / k
    spread = k * (square - mean.square())
    candidate = mean - ((1 - spread) / k).clamp_min(0).sqrt()
    size = (candidate <= ranked).detach().sum(-1, keepdim=True).clamp_min(1)
    # Compute tau again, only for the support: at other entries the gradient of sqrt may be infinite.
    mean, spread = mean.gather(-1, size - 1), spread.gather(-1, size - 1)
    tau = mean - ((1 - spread) / size).clamp_min(0).sqrt()
    roots = (halved - tau).detach().clamp_min(0)  # one Newton step corrects the rounding of the sums
    rounding = (roots.square().sum(-1, keepdim=True) - 1) / (2 * roots.sum(-1, keepdim=True))
    return (halved - tau - rounding).clamp_min(0).square()
