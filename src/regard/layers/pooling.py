"""Pooling: reduce the states of a sequence to one vector: the mean, the first, the last, or by attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention import attention
from regard.masks.constructors import padding
from regard.roles import POOLING
from regard.scores import Additive

__all__ = ["AttentionPooling", "FirstPooling", "LastPooling", "MeanPooling"]


class AttentionPooling(nn.Module):
    """Pool states by additive attention with one learned query (Yang et al. 2016; Lin et al. 2017).

    u_s = tanh(U h_s + W q),  a = softmax_s(v . u_s),  output = sum_s a_s h_s   (Yang et al. 2016, eq. 5-7)

    The query q is a parameter, the same for every text. So W q is the same for every text too: it is the bias
    b of the paper. Lin et al. (2017, eq. 5) compute the same without bias.

    width: size of the states.
    hidden: size of the tanh layer and of the query. Default: width.
    site: name of this layer for record() and intervene().

    >>> pooling, states = AttentionPooling(width=6), torch.randn(2, 5, 6)
    >>> pooling(states, torch.tensor([5, 3])).shape
    torch.Size([2, 6])
    """

    def __init__(self, width: int, hidden: int | None = None, *, site: str = "pool"):
        super().__init__()
        size = width if hidden is None else hidden
        self.query = nn.Parameter(torch.empty(size).normal_(std=size**-0.5))
        self.score = Additive(size, width, size)
        self.site, self.role = site, POOLING

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Pool the first `lengths` states of each sequence: (B, S, width) and (B,) to (B, width)."""
        query_B1A = self.query.to(states.dtype).expand(len(states), 1, -1)
        attended = attention(
            query_B1A, states, score=self.score, mask=padding(lengths), site=self.site, role=self.role
        )
        return attended.output[:, 0]


class MeanPooling(nn.Module):
    """Return the mean of the states of each sequence, without padding.

    >>> MeanPooling()(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([2]))
    tensor([[2.]])
    """

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Pool the first `lengths` states of each sequence: (B, S, width) and (B,) to (B, width)."""
        inside_BS = torch.arange(states.shape[1], device=states.device) < lengths[:, None]
        # Use where(), not a product with the mask: 0 * NaN is NaN, so NaN on padding would spread.
        total_BE = torch.where(inside_BS[..., None], states, 0.0).sum(1)
        return total_BE / lengths[:, None].clamp(min=1)


class LastPooling(nn.Module):
    """Return the final state of a recurrent layer.

    both_ways: whether the layer is bidirectional. Then the result is the concatenation of the final states of
    both directions; the final state of the backward direction is at the first position.

    >>> LastPooling()(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([2]))
    tensor([[3.]])
    """

    def __init__(self, *, both_ways: bool = False):
        super().__init__()
        self.both_ways = both_ways

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Pool the first `lengths` states of each sequence: (B, S, width) and (B,) to (B, width)."""
        place_B1E = (lengths - 1)[:, None, None].expand(-1, 1, states.shape[-1])
        last_BE = states.gather(1, place_B1E)[:, 0]
        if not self.both_ways:
            return last_BE
        half = states.shape[-1] // 2
        return torch.cat((last_BE[:, :half], states[:, 0, half:]), -1)


class FirstPooling(nn.Module):
    """Return the state of the first position; in a Transformer, this is the position of a special token.

    >>> FirstPooling()(torch.tensor([[[1.0], [3.0]]]), torch.tensor([2]))
    tensor([[1.]])
    """

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Return the first state of each sequence: (B, S, width) to (B, width)."""
        return states[:, 0]
