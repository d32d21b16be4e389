"""The weights of Sparse for the rows of a block, by Newton's method instead of a sort: fast on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

GROUPS = 64
"""The threshold of the maxima of this many groups of keys is a first bound of the threshold of a row."""

MOST_STEPS = 50
"""Maximum number of Newton steps; about five are needed. Only a row with NaN takes all of them."""


def sparse_weights(scores: Tensor, alpha: float) -> Tensor:
    """Return the weights of sparsemax (alpha = 2) or 1.5-entmax (alpha = 1.5) over the last dimension.

    weight = [(alpha - 1) score - tau]_+ ^ (1 / (alpha - 1)), with tau so that the weights sum to 1

    scores: -inf where a key is hidden; each row needs a finite score.

    tau is the root of a convex, decreasing function of tau. Newton's method finds the keys with a weight
    above 0. For these, tau has a closed form, whose derivatives of any order are exact.
    """
    if not scores.numel():
        return scores
    shifted = (scores - scores.detach().amax(-1, keepdim=True)) * (alpha - 1)
    low = _lower_bound(shifted.detach(), alpha)
    above = torch.relu(shifted - low)  # without gradient at 0, as a key at tau is not counted
    total, count = above.sum(-1, keepdim=True), _count(above)
    if alpha == 2:
        return (shifted - (low + (total - 1) / count)).clamp_min(0)
    # The smaller root x of sum (above - x)^2 = 1, without the difference of nearly equal numbers.
    excess = above.square().sum(-1, keepdim=True) - 1
    root = excess / (total + (total.square() - count * excess).sqrt())
    return (shifted - (low + root)).clamp_min(0).square()


@torch.no_grad()
def _lower_bound(scores: Tensor, alpha: float) -> Tensor:
    """Return a number slightly below tau for each row, (..., 1).

    scores: (alpha - 1) times the scores, less their maximum, so that tau is between -1 and 0.

    Newton's method approaches tau from below. The threshold of a part of the keys is a lower bound too.
    """
    keys = scores.shape[-1]
    if keys < 4 * GROUPS:
        low = torch.full_like(scores[..., :1], -1.0)
    else:
        groups = scores[..., : keys // GROUPS * GROUPS].unflatten(-1, (-1, GROUPS))
        low = _lower_bound(groups.amax(-2), alpha)
    # Newton's method converges quadratically for entmax, and in finitely many steps for sparsemax.
    enough = torch.finfo(scores.dtype).eps ** (0.5 if alpha == 1.5 else 1.0)
    for _ in range(MOST_STEPS):
        above = (scores - low).relu_()
        total = above.sum(-1, keepdim=True)
        if alpha == 2:
            step = (total - 1) / _count(above)
        else:
            step = (torch.linalg.vecdot(above, above).unsqueeze(-1) - 1) / (2 * total)
        low += step.clamp_min_(0)
        if step.amax() <= enough:
            break
    return low


def _count(above: Tensor) -> Tensor:
    """Return how many numbers of each row are above 0, (..., 1)."""
    return torch.linalg.vector_norm(above.detach(), 0, -1, keepdim=True)
