"""The input of a model: token embeddings, position embeddings and dropout."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.kernels.choice import by_kernel
from regard.layers.joint_linear import is_hooked
from regard.positions import Position
from regard.positions.embedded import Embedded

__all__ = ["embed_tokens"]


def embed_tokens(
    table: nn.Embedding, tokens: Tensor, multiplier: float, position: Position | None, start: int,
    dropout: nn.Dropout,
) -> Tensor:  # fmt: skip
    """Return dropout(multiplier * embedding + position embedding), (B, T, M).

    In training on CUDA, one kernel computes it (kernels/training/embedding_dropout.py).

    tokens: (B, T), token ids.
    position: a position scheme that is added to the embeddings, or None.
    start: position of the first token.

    >>> table = nn.Embedding(5, 2)
    >>> x = embed_tokens(table, torch.tensor([[3, 1]]), 2.0, None, 0, nn.Dropout(0.0))
    >>> torch.equal(x[0, 1], 2 * table.weight[1])
    True
    """
    if not _by_kernel(table, tokens, position, dropout):
        x = table(tokens) if multiplier == 1 else table(tokens) * multiplier
        return dropout(x if position is None else position(x, start))
    from regard.kernels.training.embedding_dropout import EmbeddingDropout

    places = None
    if isinstance(position, Embedded):
        places = position.rows(start, start + tokens.shape[1], table.weight)
    padding = -1 if table.padding_idx is None else table.padding_idx
    rate = dropout.p if dropout.training else 0.0
    return EmbeddingDropout.apply(table.weight, tokens, places, multiplier, rate, padding)


def _by_kernel(table: nn.Embedding, tokens: Tensor, position: Position | None, dropout: nn.Dropout) -> bool:
    """Whether one kernel can compute the input: in training, on CUDA, without learned positions."""
    if torch.compiler.is_compiling() or not (table.training and torch.is_grad_enabled()):
        return False
    if not by_kernel(table.weight) or tokens.dim() != 2 or any(map(is_hooked, (table, dropout))):
        return False
    plain = type(table) is nn.Embedding and table.max_norm is None
    plain = plain and not table.sparse and not table.scale_grad_by_freq
    if position is None:
        return plain
    width = getattr(position, "width", None)
    fixed = isinstance(position, Embedded) and not any(True for _ in position.parameters())
    return plain and fixed and not is_hooked(position) and width == table.embedding_dim
