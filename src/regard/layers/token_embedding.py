"""The input of a model: token embeddings, position embeddings and dropout."""

from __future__ import annotations

from torch import Tensor, nn

from regard.positions import Position

__all__ = ["embed_tokens"]


def embed_tokens(
    table: nn.Embedding, tokens: Tensor, multiplier: float, position: Position | None, start: int,
    dropout: nn.Dropout,
) -> Tensor:  # fmt: skip
    """Return dropout(multiplier * embedding + position embedding), (B, T, M).

    tokens: (B, T), token ids.
    position: a position scheme that is added to the embeddings, or None.
    start: position of the first token.

    >>> import torch
    >>> table = nn.Embedding(5, 2)
    >>> x = embed_tokens(table, torch.tensor([[3, 1]]), 2.0, None, 0, nn.Dropout(0.0))
    >>> torch.equal(x[0, 1], 2 * table.weight[1])
    True
    """
    x = table(tokens) if multiplier == 1 else table(tokens) * multiplier
    return dropout(x if position is None else position(x, start))
