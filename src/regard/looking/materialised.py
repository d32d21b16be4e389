"""materialised: compute what a Look requests from the whole matrix of weights.

This pass is the reference: the tests compare the results of the other looking passes with its results.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from regard.attended import Attended, Top
from regard.backends import reference
from regard.call import Call, Forward
from regard.look import Look
from regard.looking.block_pooling import block_means, block_sums
from regard.select import Soft

__all__ = ["reasons", "run"]


def reasons(call: Call, look: Look) -> list[str]:
    """Return an empty list: this pass can compute every Look."""
    return []


def run(call: Call, forward: Forward, look: Look) -> Attended:
    """Compute what `look` requests from the whole matrix of weights.

    For Soft, and if the forward pass returned no weights, they are computed again. Otherwise, the weights of
    the forward pass are used.
    """
    scores, visible = reference.compare(call.widened())
    if isinstance(call.select, Soft) or forward.weights is None:
        selection = reference.select(call, scores, visible)
        weights, lse, rank = selection.weights, selection.lse, scores
    else:  # the weights cannot always be recomputed: Hard samples a key
        weights, lse, rank = forward.weights, forward.lse, forward.weights
    rank = torch.where(visible, rank.detach(), -torch.inf)
    return Attended(
        forward.output,
        lse=lse,
        weights=weights if look.weights else None,
        rows=weights[:, :, list(look.rows)] if look.rows is not None else None,
        top=_top(weights, rank, look.top) if look.top else None,
        alignment=_alignment(rank) if look.alignment else None,
        entropy=_entropy(weights) if look.entropy else None,
        mass=weights.sum(-2) if look.mass else None,
        pooled=block_means(block_sums(weights, look.pooled), weights.shape, look.pooled)
        if look.pooled
        else None,
    )


def _top(weights: Tensor, rank: Tensor, count: int) -> Top:
    best = rank.topk(min(count, rank.shape[-1]), -1)
    keys = torch.where(best.values == -torch.inf, -1, best.indices)
    top = torch.where(keys >= 0, weights.gather(-1, best.indices), 0.0)
    short = (0, count - keys.shape[-1])
    return Top(functional.pad(top, short), functional.pad(keys, short, value=-1))


def _alignment(rank: Tensor) -> Tensor:
    if not rank.shape[-1]:
        return torch.full(rank.shape[:-1], -1, device=rank.device)
    best = rank.max(-1)
    return torch.where(best.values == -torch.inf, -1, best.indices)


def _entropy(weights: Tensor) -> Tensor:
    return 0.0 - (weights * torch.where(weights > 0, weights, 1.0).log()).sum(-1)
