"""Additive scores through a workspace that stays in cache, forward and backward.

v . tanh(q + k) needs T x S x A numbers between; here they exist only a cache-full at a time, and are computed
again in the backward pass, which is cheaper than writing them to memory and reading them back.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["additive_gradients", "additive_scores"]

IN_CACHE = 1 << 18
"""How many numbers the workspace holds: a megabyte of float32."""


def additive_scores(query_BHTA: Tensor, key_BHSA: Tensor, vector_HA: Tensor) -> Tensor:
    """v . tanh(q + k), of shape (B, H, T, S)."""
    scores_BHTS = query_BHTA.new_empty(*query_BHTA.shape[:3], key_BHSA.shape[2])
    for query_NTA, key_NSA, vector_A, scores_NTS in _by_vector(query_BHTA, key_BHSA, vector_HA, scores_BHTS):
        for some, rows, hidden in _pieces(query_NTA, key_NSA):
            scores_NTS[some, rows] = hidden @ vector_A
    return scores_BHTS


def additive_gradients(
    query_BHTA: Tensor, key_BHSA: Tensor, vector_HA: Tensor, gradient_BHTS: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and vector, given that of the scores."""
    dquery, dkey, dvector = (torch.zeros_like(t) for t in (query_BHTA, key_BHSA, vector_HA))
    pairs = zip(
        _by_vector(query_BHTA, key_BHSA, vector_HA, gradient_BHTS),
        _by_vector(dquery, dkey, dvector, gradient_BHTS),
        strict=True,
    )
    for (query_NTA, key_NSA, _, gradient_NTS), (dquery_NTA, dkey_NSA, dvector_A, _) in pairs:
        for some, rows, hidden in _pieces(query_NTA, key_NSA):
            gradient = gradient_NTS[some, rows]
            dvector_A += gradient.reshape(-1) @ hidden.flatten(0, -2)
            # d tanh = 1 - tanh^2: the 1 sums to the gradient itself, and v, the same everywhere, comes last.
            bent = hidden.mul_(hidden).mul_(gradient.unsqueeze(-1))
            dquery_NTA[some, rows] += gradient.sum(-1, keepdim=True) - bent.sum(-2)
            dkey_NSA[some] += gradient.sum(-2).unsqueeze(-1) - bent.sum(-3)
    dquery *= vector_HA[:, None, :]
    dkey *= vector_HA[:, None, :]
    return dquery, dkey, dvector


def _by_vector(
    query_BHTA: Tensor, key_BHSA: Tensor, vector_HA: Tensor, scores_BHTS: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Views in which one vector serves all: the heads one by one, or all together where they share it."""
    if vector_HA.shape[0] == 1:
        yield query_BHTA.flatten(0, 1), key_BHSA.flatten(0, 1), vector_HA[0], scores_BHTS.flatten(0, 1)
        return
    for head, vector_A in enumerate(vector_HA):
        yield query_BHTA[:, head], key_BHSA[:, head], vector_A, scores_BHTS[:, head]


def _pieces(query_NTA: Tensor, key_NSA: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """tanh(q + k) for some sequences and rows at a time, in one workspace that is used again and again."""
    count, queries, width = query_NTA.shape
    keys = key_NSA.shape[1]
    rows = max(1, min(queries, IN_CACHE // max(1, keys * width)))
    some = max(1, min(count, IN_CACHE // max(1, keys * width * rows))) if rows == queries else 1
    workspace = query_NTA.new_empty(some, rows, keys, width)
    for first in range(0, count, some):
        for row in range(0, queries, rows):
            chosen = slice(first, first + some), slice(row, row + rows)
            query_nt1A, key_n1SA = query_NTA[chosen].unsqueeze(-2), key_NSA[chosen[0]].unsqueeze(-3)
            place = workspace[: query_nt1A.shape[0], : query_nt1A.shape[1]]
            yield *chosen, torch.add(query_nt1A, key_n1SA, out=place).tanh_()
