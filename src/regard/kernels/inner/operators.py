"""Inner-product attention with masks: run_forward() and run_backward(), and the same as custom operators.

torch.compile does not trace into the operators. Outside of it, the functions take less time on the host.
Extra memory is linear in T + S. The reductions use no atomics, so results are reproducible bit by bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.kernels.inner.launch import Hidden, backward, forward

__all__ = ["inner_backward", "inner_forward", "run_backward", "run_forward"]

_MASK = (
    "Tensor? lengths, Tensor? table, Tensor? document_of_query, Tensor? document_of_key, SymInt start, "
    "SymInt? left, SymInt? right, float scale"
)


def run_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None,
    table: Tensor | None,
    document_of_query: Tensor | None,
    document_of_key: Tensor | None,
    start: int,
    left: int | None,
    right: int | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return output (B, H, T, E) and lse (B, H, T).

    query: (B, H, T, D).
    key: (B, K, S, D), with K key heads.
    value: (B, K, S, E).
    lengths, table, document_of_query, document_of_key, start, left, right: the mask, as in
        launch.Hidden.
    scale: factor of the inner product.

    A query that sees no key gets output 0 and lse -inf. Hidden keys and values may be NaN.
    """
    hidden = Hidden(lengths, table, document_of_query, document_of_key, start, left, right)
    return forward(query, key, value, hidden, scale)


inner_forward = torch.library.custom_op(
    "regard::inner_forward",
    run_forward,
    mutates_args=(),
    schema=f"(Tensor query, Tensor key, Tensor value, {_MASK}) -> (Tensor output, Tensor lse)",
)


@inner_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    batch, heads, queries, _ = query.shape
    sizes = (batch, heads, queries, value.shape[3])
    if query.stride(1) < query.stride(2):
        output = query.new_empty(batch, queries, heads, value.shape[3]).transpose(1, 2)
    else:
        output = query.new_empty(sizes)
    return output, query.new_empty(sizes[:3], dtype=torch.float32)


def run_backward(
    doutput: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None,
    table: Tensor | None,
    document_of_query: Tensor | None,
    document_of_key: Tensor | None,
    start: int,
    left: int | None,
    right: int | None,
    scale: float,
    output: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Backward pass of run_forward(): return the gradients of query, key and value.

    doutput: gradient of the output. output, lse: the results of run_forward().
    """
    hidden = Hidden(lengths, table, document_of_query, document_of_key, start, left, right)
    return backward(doutput, query, key, value, output, lse, hidden, scale)


inner_backward = torch.library.custom_op(
    "regard::inner_backward",
    run_backward,
    mutates_args=(),
    schema=f"(Tensor doutput, Tensor query, Tensor key, Tensor value, {_MASK}, Tensor output, Tensor lse)"
    " -> (Tensor dquery, Tensor dkey, Tensor dvalue)",
)


@inner_backward.register_fake
def _(doutput: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: object) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(each) for each in (query, key, value))
