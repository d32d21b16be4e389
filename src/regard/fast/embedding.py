"""FastEmbedding: token embeddings whose gradient is computed by a kernel, in training on CUDA.

For the gradient, PyTorch sorts the tokens with about 20 kernels, or, if there are few tokens, uses a small
part of the GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.fast.hooks import is_hooked
from regard.fast.twin import Twin, plain_class
from regard.kernels import by_kernel
from regard.kernels.launch import power_of_two
from regard.positions.embedded import Embedded, Sinusoidal

__all__ = ["FastEmbedding", "embed_tokens"]

MOST_KEPT = 4096
"""The position vectors of Sinusoidal are kept up to this position."""

_KEPT: dict[tuple[int, float, int, torch.device], Tensor] = {}
"""Position vectors of Sinusoidal, by width, base, their number and the device."""


class FastEmbedding(nn.Embedding, Twin):
    """The twin of nn.Embedding."""

    @classmethod
    def reasons(cls, module: Any) -> list[str]:
        """The device, the dtype, and the options of nn.Embedding that change its gradient or its weight."""
        if not by_kernel(module.weight):
            return [f"its kernels do not run {module.weight.dtype} on {module.weight.device.type}"]
        return [] if _is_plain(module) else ["max_norm, sparse or scale_grad_by_freq is set"]

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() != 2 or not _trains(self):
            return nn.Embedding.forward(self, input)
        return _by_kernel(self, input)


def embed_tokens(
    table: nn.Embedding,
    tokens: Tensor,
    multiplier: float,
    position: Any,
    start: int,
    dropout: nn.Dropout,
) -> Tensor | None:
    """Return dropout(multiplier * embedding + position embedding), (B, T, M), from one kernel.

    None if the kernel cannot compute it: it runs in training on CUDA, without learned positions.

    tokens: (B, T), token ids.
    position: a position scheme that is added to the embeddings, or None.
    start: position of the first token.
    """
    if tokens.dim() != 2 or not _trains(table) or not _is_plain(table) or is_hooked(table):
        return None
    if plain_class(table) is not nn.Embedding or plain_class(dropout) is not nn.Dropout or is_hooked(dropout):
        return None
    places = None
    if position is not None:
        fixed = isinstance(position, Embedded) and not any(True for _ in position.parameters())
        if not fixed or is_hooked(position) or getattr(position, "width", None) != table.embedding_dim:
            return None
        places = _places(position, start, start + tokens.shape[1], table.weight)
    return _by_kernel(table, tokens, places, multiplier, dropout.p if dropout.training else 0.0)


def _places(position: Embedded, first: int, last: int, like: Tensor) -> Tensor:
    """Return position.rows(first, last, like). Those of Sinusoidal, which never change, are kept."""
    if type(position) is not Sinusoidal or last > MOST_KEPT:
        return position.rows(first, last, like)
    key = position.width, position.base, power_of_two(last), like.device
    if key not in _KEPT:
        rows = position.rows(0, key[2], like)
        if like.is_cuda and torch.cuda.is_current_stream_capturing():  # they are computed when it is replayed
            return rows[first:last]
        _KEPT[key] = rows
    return _KEPT[key][first:last]


def _is_plain(table: nn.Embedding) -> bool:
    return table.max_norm is None and not table.sparse and not table.scale_grad_by_freq


def _trains(table: nn.Embedding) -> bool:
    if torch.compiler.is_compiling() or not (table.training and torch.is_grad_enabled()):
        return False
    return by_kernel(table.weight)


def _by_kernel(
    table: nn.Embedding,
    tokens: Tensor,
    places: Tensor | None = None,
    multiplier: float = 1.0,
    dropout: float = 0.0,
) -> Tensor:
    from regard.kernels.training.embedding import EmbeddingDropout

    padding = -1 if table.padding_idx is None else table.padding_idx
    return EmbeddingDropout.apply(table.weight, tokens, places, multiplier, dropout, padding)
