"""Padded attention by FlashAttention with variable lengths, on CUDA: no key behind the padding is read.

The operator takes sequences of different lengths, one after another in one tensor, and the row at which each
begins. A padded batch is such a tensor if the padding of each row is a sequence of its own, to which no query
belongs:

    keys      [row 0: lengths[0] keys] [row 0: padding] [row 1: lengths[1] keys] [row 1: padding] ...
    queries   [row 0: T queries]       [none]           [row 1: T queries]       [none]           ...

So key and value need no copy, neither to remove the padding nor to set it to 0: the kernel loads only the
keys of the sequence that it computes, and the gradient of a key without queries is 0.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from regard.backends.transforms import once_differentiable_node

__all__ = ["MAX_SEQUENCES", "attend_padded"]

MAX_SEQUENCES = 65535
"""Maximum size of the second dimension of a CUDA grid, which counts sequences."""


def attend_padded(
    query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, dropout: float, scale: float
) -> tuple[Tensor, Tensor]:
    """Return output (B, H, T, E) and lse (B, H, T) for padding(lengths).

    query: (B, H, T, D); key and value: (B, H, S, D), in half precision and of one width.
    lengths: (B,) or (1,), integers.

    A query that sees no key gets output 0 and lse -inf. Keys and values behind the padding may be NaN.
    """
    (batch, heads, queries, width), keys = query.shape, key.shape[2]
    tensors = (query, key, value)
    heads_last = all(_joins(tensor.transpose(1, 2)) for tensor in tensors)
    if heads_last:  # as a linear layer returns them: the rows of all sequences are evenly spaced
        rows = [tensor.transpose(1, 2).flatten(0, 1) for tensor in tensors]
        sequences = batch
    else:  # each head is a sequence
        rows = [tensor.reshape(-1, 1, width) for tensor in tensors]
        sequences = batch * heads
    lengths = lengths.clamp(0, keys).expand(batch)
    each = lengths if heads_last else lengths.repeat_interleave(heads)
    first_query, first_key = _boundaries(each, sequences, queries, keys)
    output, lse, *_ = torch.ops.aten._flash_attention_forward(
        *rows, first_query, first_key, queries, keys, dropout, False, False, scale=scale
    )
    once_differentiable_node(output)
    if heads_last:
        output = output.unflatten(0, (batch, queries)).transpose(1, 2)
        lse = lse.unflatten(1, (batch, queries)).transpose(0, 1)
    else:
        output, lse = output.view(batch, heads, queries, width), lse.view(batch, heads, queries)
    return output, torch.where(lengths[:, None, None] > 0, lse, -torch.inf)


def _joins(tensor_BTHD: Tensor) -> bool:
    """Whether (B, T, H, D) can be viewed as (B T, H, D) without a copy, with dense vectors."""
    batch, rows, _, _ = tensor_BTHD.shape
    row_stride = tensor_BTHD.stride(1)
    return tensor_BTHD.stride(3) == 1 and (batch == 1 or tensor_BTHD.stride(0) == rows * row_stride)


def _boundaries(lengths_N: Tensor, sequences: int, queries: int, keys: int) -> tuple[Tensor, Tensor]:
    """Return the row at which each sequence begins, and the last ends: of queries and of keys, (2 N + 1,)."""
    device = lengths_N.device
    # Tensors that are created while a CUDA graph is captured belong to the graph and must not be cached.
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    constants = _constants.__wrapped__ if capturing else _constants
    first_query, base, odd, index = constants(sequences, queries, keys, device)
    return first_query, torch.addcmul(base, odd, lengths_N.to(torch.int32).index_select(0, index))


@functools.lru_cache(maxsize=64)
def _constants(
    sequences: int, queries: int, keys: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what the boundaries need besides the lengths, each (2 N + 1,).

    The boundaries of the queries; those of the keys for lengths of 0; 1 for the boundaries to which a length
    is added, else 0; and the index of this length.
    """
    with torch.inference_mode(False):
        number = torch.arange(2 * sequences + 1, device=device)
        odd, index = number % 2, (number // 2).clamp_max(sequences - 1)
        first_query, base = (number + 1) // 2 * queries, number // 2 * keys
        return first_query.int(), base.int(), odd.int(), index
