"""Pooling: reduce the states of a sequence to one vector (mean, first state, last state, or attention)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import attention
from regard.errors import ArgumentError, Setting, message
from regard.masks.constructors import padding
from regard.options.attention_options import ScoreOption, SelectOption, build_layer_score
from regard.roles import POOLING
from regard.scores import Location, learned_in
from regard.select import build_select

__all__ = [
    "POOL",
    "AttentionPooling",
    "FirstPooling",
    "LastPooling",
    "MeanPooling",
    "PoolingOption",
    "build_pooling",
    "pooled",
]

PoolingOption = str | Mapping[str, Any]

POOL = "pool"
"""The name of the attention layer that pools the states, for record() and intervene()."""


class AttentionPooling(nn.Module):
    """Pool states by additive attention with one learned query (Yang et al. 2016; Lin et al. 2017).

    u_s = tanh(U h_s + W q),  a = softmax_s(v . u_s),  output = sum_s a_s h_s   (Yang et al. 2016, eq. 5-7)

    The query q is a learned parameter, so W q is the same vector for every text. It corresponds to the bias b
    of Yang et al. The equation of Lin et al. (2017, eq. 5) is the same without this bias.

    width: size of the states.
    hidden: size of the tanh layer and of the query. Default: width.
    score: the score function between the query and the states: a name, a mapping with options such as
        {"name": "cosine", "sharpness": 9.0}, or a Score.
    select: how scores become attention weights: a name, a mapping with options such as {"name": "softmax",
        "temperature": 0.5}, or a Select. In eval mode, "hard" reads the state with the highest score.
    site: name of this layer for record() and intervene().

    >>> pooling, states = AttentionPooling(width=6), torch.randn(2, 5, 6)
    >>> pooling(states, torch.tensor([5, 3])).shape
    torch.Size([2, 6])
    """

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        *,
        score: ScoreOption = "additive",
        select: SelectOption = "softmax",
        site: str = POOL,
    ):
        super().__init__()
        size = width if hidden is None else hidden
        self.query = nn.Parameter(torch.empty(size).normal_(std=size**-0.5))
        name = score.get("name") if isinstance(score, Mapping) else score
        if name in ("additive", "concat"):
            score = {"hidden": size, **(score if isinstance(score, Mapping) else {"name": name})}
        self.score = build_layer_score(score, size, width)
        self.sharpness = learned_in(self.score)
        if isinstance(self.score, Location):
            problem = "the score location ignores the states: every text would get the same weights"
            raise ArgumentError(
                message(
                    "AttentionPooling()", problem, hint=("use ", Setting("build_model", "score", "additive"))
                )
            )
        self.select, self.site, self.role = build_select(select), site, POOLING

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Pool the states of each sequence, without padding; return (B, width).

        states: (B, S, width), padded at the end.
        lengths: (B,), number of states of each sequence without padding.
        """
        query_B1A = self.query.to(states.dtype).expand(len(states), 1, -1)
        select = self.select if self.training else self.select.deterministic()
        options: dict[str, Any] = {"mask": padding(lengths), "select": select}
        options |= {"site": self.site, "role": self.role}
        return attention(query_B1A, states, score=self.score, **options).output[:, 0]


class MeanPooling(nn.Module):
    """Return the mean of the states of each sequence, without padding.

    >>> MeanPooling()(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([2]))  # the last state is padding
    tensor([[2.]])
    """

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Pool the states of each sequence, without padding; return (B, width).

        states: (B, S, width), padded at the end.
        lengths: (B,), number of states of each sequence without padding.
        """
        inside_BS = torch.arange(states.shape[1], device=states.device) < lengths[:, None]
        # Use where(), not a product with the mask: 0 * NaN is NaN, so a NaN on padding would reach the mean.
        total_BE = torch.where(inside_BS[..., None], states, 0.0).sum(1)
        return total_BE / lengths[:, None].clamp(min=1)


class LastPooling(nn.Module):
    """Return the final state of a recurrent layer.

    both_ways: whether the layer is bidirectional. If True, the result is the concatenation of the final
        states of both directions. The final state of the backward direction is at the first position.

    >>> LastPooling()(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([2]))  # the last state is padding
    tensor([[3.]])
    """

    def __init__(self, *, both_ways: bool = False):
        super().__init__()
        self.both_ways = both_ways

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Pool the states of each sequence, without padding; return (B, width).

        states: (B, S, width), padded at the end.
        lengths: (B,), number of states of each sequence without padding.
        """
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
        """Return the first state of each sequence, (B, width). states: (B, S, width). lengths: ignored."""
        return states[:, 0]


def build_pooling(
    pooling: PoolingOption, width: int, *, both_ways: bool = False, **attention: Any
) -> nn.Module:
    """Create a pooling layer by name: "mean", "first", "last" or "attention".

    pooling: the name, or a mapping such as {"name": "attention", "select": "hard"}.
    width: size of the states.
    both_ways: whether the states are those of bidirectional layers.
    attention: the options `score` and `select` of AttentionPooling. A value in `pooling` has priority.

    >>> build_pooling({"name": "attention", "select": "hard"}, 6).select
    Hard(generator=None)
    """
    options = {"name": pooling} if isinstance(pooling, str) else dict(pooling)
    layers: dict[str, Callable[..., nn.Module]] = {
        "mean": MeanPooling,
        "first": FirstPooling,
        "last": partial(LastPooling, both_ways=both_ways),
        "attention": partial(AttentionPooling, width),
    }
    return layers[options.pop("name")](**{**attention, **options})


def pooled(pooling: nn.Module, states: Tensor, lengths: Tensor) -> Tensor:
    """Pool the states (B, S, E) of texts that end with EOS to (B, E).

    lengths: number of tokens of each text, including EOS, (B,).

    MeanPooling and AttentionPooling skip the state of EOS, so that the weights of the words sum to 1. For a
    text without words, the result is the state of EOS.
    """
    whole = isinstance(pooling, FirstPooling | LastPooling)
    return pooling(states, lengths if whole else (lengths - 1).clamp(min=1))
