"""Additive attention: run_forward() and run_backward(), and the same two as custom operators.

torch.compile does not trace into the operators. Outside of it, the functions take less time on the host.

output = softmax(scale * v . tanh(q + k)) value, with masks by lengths, window and documents. Extra memory is
O(B (T + S) D). No tensor with B x T x S x D elements is allocated. A tensor with B x T x S elements is
allocated only if B (T + S) D is larger. The reductions use no atomics, so results are reproducible bit by
bit.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from regard.kernels.backward_pass import Backward
from regard.kernels.forward_pass import Forward, Sight
from regard.kernels.kernel_choice import is_current
from regard.kernels.launch import Shape
from regard.kernels.replay import replayed

__all__ = ["additive_backward", "additive_forward", "run_backward", "run_forward"]

_SIGHT = "Tensor? lengths, Tensor? document_of_query, Tensor? document_of_key"
_PLACE = "SymInt start, SymInt? left, SymInt? right, float scale"


def _on_device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context manager that makes the device of `tensor` current, so that Triton launches there."""
    return nullcontext() if is_current(tensor.device) else torch.cuda.device(tensor.device)


FEW_SCORES, FEW_ELEMENTS = 1 << 24, 1 << 26
"""Calls with at most this many scores and elements of the key are replayed (see replay.py). For larger calls,
the time on the device is longer than that on the host."""


def _run(
    function: Callable[..., tuple[Tensor, ...]], tensors: tuple[Tensor | None, ...], numbers: tuple[Any, ...],
    query: Tensor, key: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return function(*tensors, *numbers), replayed if the call is small enough."""
    batch, heads, queries, _ = query.shape
    few = batch * heads * queries * key.shape[2] <= FEW_SCORES and key.numel() <= FEW_ELEMENTS
    with _on_device_of(query):
        return replayed(function, tensors, numbers) if few else function(*tensors, *numbers)


def run_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vector: Tensor,
    lengths: Tensor | None,
    document_of_query: Tensor | None,
    document_of_key: Tensor | None,
    start: int,
    left: int | None,
    right: int | None,
    scale: float,
    hold: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute additive attention; return output, lse, norm and scores.

    query: (B, H, T, D), for B sequences of T queries with H heads.
    key: (B, K, S, D), for S keys with K key heads.
    value: (B, K, S, E).
    vector: v in the score v . tanh(q + k), (1 or H, D).
    lengths, document_of_query, document_of_key, start, left, right: the mask, as in forward_pass.Sight.
    scale: the factor of the score.
    hold: whether to return the scores, so that the backward pass need not recompute them. If there are too
        many scores (see launch.Shape.held), they are not returned.

    Returns:
    output: (B, H, T, E).
    lse: (B, H, T), the log-sum-exp of the scores of each query.
    norm: (2, B, H, T), two numbers for each query: the maximum of its scores, and 1 / sum of
        exp(score - maximum). The backward pass recomputes the weights from them.
    scores: (B H, T, S) if they are kept, otherwise an empty tensor.
    """
    if left is None and right is None and document_of_query is None:
        start = 0  # not read
    tensors = (query, key, value, vector, lengths, document_of_query, document_of_key)
    output, lse, norm, scores = _run(_forward, tensors, (start, left, right, scale, hold), query, key)
    return output, lse, norm, scores


def _forward(
    query: Tensor, key: Tensor, value: Tensor, vector: Tensor, lengths: Tensor | None,
    document_of_query: Tensor | None, document_of_key: Tensor | None, start: int, left: int | None,
    right: int | None, scale: float, hold: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """run_forward() as replayed() needs it."""
    sight = Sight(lengths, document_of_query, document_of_key, start, left, right)
    return Forward(query, key, value, vector, sight, scale, hold).run()


additive_forward = torch.library.custom_op(
    "regard::additive_forward",
    run_forward,
    mutates_args=(),
    schema=f"(Tensor query, Tensor key, Tensor value, Tensor vector, {_SIGHT}, {_PLACE}, bool hold)"
    " -> (Tensor output, Tensor lse, Tensor norm, Tensor scores)",
)


@additive_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, vector: Tensor, *rest: object) -> tuple[Tensor, ...]:
    hold = bool(rest[-1])
    shape = Shape.of(query, key, value)
    batch, heads, queries, keys = shape.batch, shape.heads, shape.queries, shape.keys
    held = hold and shape.held
    new = torch.float32
    return (
        value.new_empty(batch, heads, queries, shape.depth),
        query.new_empty(batch, heads, queries, dtype=new),
        query.new_empty(2, batch, heads, queries, dtype=new),
        query.new_empty((batch * heads, queries, keys) if held else (0,), dtype=new),
    )


def run_backward(
    doutput: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vector: Tensor,
    norm: Tensor,
    scores: Tensor,
    lengths: Tensor | None,
    document_of_query: Tensor | None,
    document_of_key: Tensor | None,
    start: int,
    left: int | None,
    right: int | None,
    scale: float,
    others: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Backward pass of run_forward(): return the gradients of query, key, value and vector.

    doutput: gradient of the output, (B, H, T, E).
    norm, scores: the results of run_forward() with these names.
    others: whether to compute the gradients of key, value and vector too. If False, only the gradient of the
        query is computed, and the other three results are empty tensors.

    The other arguments are those of run_forward().
    """
    if left is None and right is None and document_of_query is None:
        start = 0  # not read
    tensors = (
        doutput, query, key, value, vector, norm, scores, lengths, document_of_query, document_of_key
    )  # fmt: skip
    gradients = _run(_backward, tensors, (start, left, right, scale, others), query, key)
    dquery, dkey, dvalue, dvector = gradients
    return dquery, dkey, dvalue, dvector


def _backward(
    doutput: Tensor, query: Tensor, key: Tensor, value: Tensor, vector: Tensor, norm: Tensor, scores: Tensor,
    lengths: Tensor | None, document_of_query: Tensor | None, document_of_key: Tensor | None, start: int,
    left: int | None, right: int | None, scale: float, others: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """run_backward() as replayed() needs it."""
    sight = Sight(lengths, document_of_query, document_of_key, start, left, right)
    forward = Forward(query, key, value, vector, sight, scale, hold=False, back=True)
    return Backward(forward, doutput, norm, scores, others).run()


additive_backward = torch.library.custom_op(
    "regard::additive_backward",
    run_backward,
    mutates_args=(),
    schema="(Tensor doutput, Tensor query, Tensor key, Tensor value, Tensor vector, "
    f"Tensor norm, Tensor scores, {_SIGHT}, {_PLACE}, bool others)"
    " -> (Tensor dquery, Tensor dkey, Tensor dvalue, Tensor dvector)",
)


@additive_backward.register_fake
def _(
    doutput: Tensor, query: Tensor, key: Tensor, value: Tensor, vector: Tensor, *rest: object
) -> tuple[Tensor, ...]:
    others = bool(rest[-1])
    gradients = (each.new_empty(each.shape if others else (0,)) for each in (key, value, vector))
    return query.new_empty(query.shape), *gradients
