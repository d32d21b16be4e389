"""The looking pass: entropy, alignment, column mass, pooled weights and the largest weights of each query."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["ARGUMENTS", "Weights"]

ARGUMENTS = (
    "Tensor query, Tensor key, Tensor lse, Tensor? bias, Tensor? table, Tensor? lengths, "
    "Tensor? document_of_query, Tensor? document_of_key, SymInt start, SymInt? left, SymInt? right, "
    "float scale, float cap, float bias_scale"
)
"""The arguments of inner_look() and inner_top() that define the weights, as part of their schemas."""


class Weights(NamedTuple):
    """What defines the weights: the first arguments of the operators inner_look() and inner_top().

    query: (B, H, T, D).
    key: (B, K, S, D), with K key heads.
    lse: (B, H, T), the log-sum-exp of the scores of each query.
    bias: added to the scores, broadcastable to (B, H, T, S).
    table: a bool mask, broadcastable to (B, H, T, S).
    lengths, of_query, of_key, start, left, right: the mask, as in additive/forward.Sight.
    scale: factor of the inner product.
    cap: the soft cap of the scores; 0 for no cap.
    bias_scale: factor of the score, after the cap and with the bias: 1 / temperature.
    """

    query: Tensor
    key: Tensor
    lse: Tensor
    bias: Tensor | None
    table: Tensor | None
    lengths: Tensor | None
    of_query: Tensor | None
    of_key: Tensor | None
    start: int
    left: int | None
    right: int | None
    scale: float
    cap: float
    bias_scale: float
