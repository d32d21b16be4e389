"""Additive attention: run_forward() and run_backward(), also as custom operators.

torch.compile does not trace into the operators. Outside of it, the functions are called directly.

output = softmax(scale * (v . tanh(q + k) + bias)) value, with dropout of the weights, and with masks by
lengths, window and documents. Other masks are a bias of -inf. Extra memory is
O(B (T + S) D). No tensor with B x T x S x D elements is allocated. A tensor with B x T x S elements is
allocated only if B (T + S) D is larger. The reductions use no atomics, so results are reproducible bit by
bit.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.kernels import on_device
from regard.kernels.additive.backward import Backward
from regard.kernels.additive.forward import Extra, Forward, Sight
from regard.kernels.additive.tile_sizes import Shape
from regard.kernels.launch import MAX_GRID

__all__ = [
    "additive_backward",
    "additive_forward",
    "run_backward",
    "run_forward",
    "with_heads",
]

_SIGHT = "Tensor? lengths, Tensor? document_of_query, Tensor? document_of_key"
_PLACE = "SymInt start, SymInt? left, SymInt? right, float scale"
_EXTRA = "Tensor? bias, Tensor? seed, float dropout"


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
    bias: Tensor | None,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute additive attention; return output, lse, norm and scores.

    query: (B, H, T, D), for B sequences of T queries with H heads; or (B, T, D), and key and value likewise.
    key: (B, K, S, D), for S keys with K key heads.
    value: (B, K, S, E).
    vector: v in the score v . tanh(q + k), (1 or H, D), or (D,).
    lengths, document_of_query, document_of_key, start, left, right: the mask, as in additive/forward.Sight.
    scale: the factor of the score.
    hold: whether to return the scores, so that the backward pass need not recompute them. If there are too
        many scores (see tile_sizes.Shape.held), they are not returned.
    bias, seed, dropout: as in additive/forward.Extra.

    Returns:
    output: (B, H, T, E), or (B, T, E) if the inputs have no head dimension.
    lse: (B, H, T) or (B, T), the log-sum-exp of the scores of each query.
    norm: (2, B, H, T), two numbers for each query: the maximum of its scores, and 1 / sum of
        exp(score - maximum). The backward pass recomputes the weights from them.
    scores: (B H, T, S) if they are kept, otherwise an empty tensor.
    """
    sight = Sight(lengths, document_of_query, document_of_key, start, left, right)
    extra, tensors = Extra(bias, seed, dropout), with_heads(query, key, value, vector)
    with on_device(query):
        output, lse, norm, scores = Forward(*tensors, sight, scale, hold, extra=extra).run()
    return (output, lse, norm, scores) if query.dim() == 4 else (output[:, 0], lse[:, 0], norm, scores)


def with_heads(
    query: Tensor, key: Tensor, value: Tensor, vector: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return query, key and value as (B, H, ...) if they are (B, ...), and vector as (1, D) if it is (D,)."""
    if query.dim() == 3:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
    return query, key, value, vector if vector.dim() == 2 else vector.unsqueeze(0)


additive_forward = torch.library.custom_op(
    "regard::additive_forward",
    run_forward,
    mutates_args=(),
    schema=f"(Tensor query, Tensor key, Tensor value, Tensor vector, {_SIGHT}, {_PLACE}, bool hold, {_EXTRA})"
    " -> (Tensor output, Tensor lse, Tensor norm, Tensor scores)",
)


@additive_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, vector: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    hold = rest[7]
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
    bias: Tensor | None,
    seed: Tensor | None,
    dropout: float,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Backward pass of run_forward(): return the gradients of query, key, value, vector and bias.

    doutput: gradient of the output, (B, H, T, E).
    norm, scores: the results of run_forward() with these names.
    others: whether to compute the gradients of key, value and vector too. If False, only the gradient of the
        query is computed, and these three results are empty tensors.
    learned: whether to compute the gradient of the bias. If False, it is an empty tensor.

    The other arguments are those of run_forward().
    """
    flat = query.dim() == 3, vector.dim() == 1
    tensors = with_heads(query, key, value, vector)
    sight = Sight(lengths, document_of_query, document_of_key, start, left, right)
    with on_device(query):
        dquery, dkey, dvalue, dvector, dbias = _backward(
            doutput.unsqueeze(1) if flat[0] else doutput, *tensors, norm, scores, sight,
            Extra(bias, seed, dropout), scale, others, learned,
        )  # fmt: skip
    if flat[0]:
        dquery, dkey, dvalue = (each[:, 0] if each.dim() == 4 else each for each in (dquery, dkey, dvalue))
    return dquery, dkey, dvalue, dvector[0] if flat[1] and others else dvector, dbias


MANY_QUERIES, ROWS_OF_PART = 1024, 64
"""At least MANY_QUERIES queries, and 16 times as many as keys, are split into parts of ROWS_OF_PART queries
for the backward pass. The kernels for the gradients of key and value run one program for some keys and all
queries, which would use a small part of the GPU."""


def _backward(
    doutput: Tensor, query: Tensor, key: Tensor, value: Tensor, vector: Tensor, norm: Tensor, scores: Tensor,
    sight: Sight, extra: Extra, scale: float, others: bool, learned: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """run_backward() for tensors with a head dimension.

    Parts of many queries are computed like heads. All have the same keys and values, by a stride of 0, so
    that they are not copied. The gradients that the parts have for them are added.
    """
    (batch, heads, queries, _), keys = query.shape, key.shape[2]
    by_place = sight.document_of_query is not None or sight.left is not None or sight.right is not None
    many = heads == 1 and queries >= max(MANY_QUERIES, 16 * keys) and queries % ROWS_OF_PART == 0
    parts = queries // ROWS_OF_PART
    plain = extra.bias is None and extra.seed is None and scores.numel() > 0
    split = many and plain and not by_place and batch * parts <= MAX_GRID
    if split:
        doutput, query = (
            each.reshape(batch, parts, ROWS_OF_PART, each.shape[3]) for each in (doutput, query)
        )
        key, value = (each.expand(-1, parts, -1, -1) for each in (key, value))
        norm = norm.reshape(2, batch, parts, ROWS_OF_PART)
        scores = scores.reshape(batch * parts, ROWS_OF_PART, keys)
    forward = Forward(query, key, value, vector, sight, scale, hold=False, back=True, extra=extra)
    dquery, dkey, dvalue, dvector, dbias = Backward(forward, doutput, norm, scores, others, learned).run()
    if split:
        dquery = dquery.reshape(batch, 1, queries, -1)
        dkey, dvalue = (each.sum(1, keepdim=True) if others else each for each in (dkey, dvalue))
    return dquery, dkey, dvalue, dvector, dbias


additive_backward = torch.library.custom_op(
    "regard::additive_backward",
    run_backward,
    mutates_args=(),
    schema="(Tensor doutput, Tensor query, Tensor key, Tensor value, Tensor vector, "
    f"Tensor norm, Tensor scores, {_SIGHT}, {_PLACE}, bool others, {_EXTRA}, bool learned)"
    " -> (Tensor dquery, Tensor dkey, Tensor dvalue, Tensor dvector, Tensor dbias)",
)


@additive_backward.register_fake
def _(
    doutput: Tensor, query: Tensor, key: Tensor, value: Tensor, vector: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    others, bias, learned = rest[9], rest[10], rest[13]
    gradients = (each.new_empty(each.shape if others else (0,)) for each in (key, value, vector))
    dbias = query.new_empty(0, dtype=torch.float32) if bias is None or not learned else torch.empty_like(bias)
    return query.new_empty(query.shape), *gradients, dbias
