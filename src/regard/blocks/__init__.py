"""Blocks: compute the T x S score matrix block by block, without storing it as a whole.

v . tanh(q + k), the additive score, has T x S x A intermediate values. They are computed in parts that fit in
the CPU cache. The backward pass computes them again, which is faster than writing them to memory and reading
them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.call import Call, divided
from regard.masks.mask import Tile

__all__ = [
    "at_once",
    "column_blocks",
    "row_blocks",
    "tile_scores",
]

AT_ONCE = 1 << 21
"""Maximum number of scores in a block on a CPU, 8 MiB of float32. For a GPU, at_once() increases it."""

ROWS = 128
"""Number of query rows in a block on a CPU. For a GPU, at_once() increases it."""

IN_CACHE = 1 << 21
"""Number of elements of the workspace on a CPU: 8 MiB of float32. It is small enough for the cache, and large
enough for several threads to work in parallel."""

ON_GPU = 32
"""On a GPU, the workspace is larger by this factor, because a kernel launch costs more than a cache miss."""


def at_once(count: int, device: torch.device) -> int:
    """Return how many elements or rows to process at once: `count` on a CPU, otherwise ON_GPU * `count`."""
    return count if device.type == "cpu" else count * ON_GPU


def additive_scores(query_BHTA: Tensor, key_BHSA: Tensor, vector_HA: Tensor) -> Tensor:
    """Return the additive scores v . tanh(q + k), (B, H, T, S), without allocating all T x S x A values."""
    scores: Tensor = _AdditiveScores.apply(query_BHTA.contiguous(), key_BHSA.contiguous(), vector_HA)
    return scores


class _AdditiveScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query_BHTA: Tensor, key_BHSA: Tensor, vector_HA: Tensor) -> Tensor:
        ctx.save_for_backward(query_BHTA, key_BHSA, vector_HA)
        return _additive_scores(query_BHTA, key_BHSA, vector_HA)

    @staticmethod
    def backward(ctx: Any, gradient_BHTS: Tensor) -> tuple[Tensor | None, ...]:
        query_BHTA, key_BHSA, vector_HA = tensors = ctx.saved_tensors
        if torch.is_grad_enabled():  # backward(create_graph=True), for a double backward
            hidden_BHTSA = torch.tanh(query_BHTA[:, :, :, None] + key_BHSA[:, :, None])
            scores_BHTS = (hidden_BHTSA * vector_HA[:, None, None]).sum(-1)
            learned = [each for each in tensors if each.requires_grad]
            found = iter(torch.autograd.grad(scores_BHTS, learned, gradient_BHTS, create_graph=True))
            return tuple(next(found) if each.requires_grad else None for each in tensors)
        dquery, dkey, dvector = map(torch.zeros_like, tensors)
        _add_additive_gradients(query_BHTA, key_BHSA, gradient_BHTS, dquery, dkey, dvector)
        return dquery.mul_(vector_HA[:, None]), dkey.mul_(vector_HA[:, None]), dvector


def _additive_scores(query_BHTA: Tensor, key_BHSA: Tensor, vector_HA: Tensor) -> Tensor:
    scores_BHTS = query_BHTA.new_empty(*query_BHTA.shape[:3], key_BHSA.shape[2])
    for query_NTA, key_NSA, vector_A, scores_NTS in _by_vector(query_BHTA, key_BHSA, vector_HA, scores_BHTS):
        for some, rows, hidden in _pieces(query_NTA, key_NSA):
            scores_NTS[some, rows] = hidden @ vector_A
    return scores_BHTS


def _add_additive_gradients(
    query_BHTA: Tensor,
    key_BHSA: Tensor,
    gradient_BHTS: Tensor,
    dquery_BHTA: Tensor,
    dkey_BHSA: Tensor,
    dvector_HA: Tensor,
) -> None:
    """Backward pass of additive_scores(): add to dquery, dkey and dvector, in place.

    gradient_BHTS: the gradient of the scores.

    The terms that are added to dquery and dkey lack the factor v. All rows and keys of a head have the same
    v, so the caller multiplies the sums by v once, at the end.
    """
    tanh_backward = torch.ops.aten.tanh_backward.grad_input
    pairs = zip(
        _by_vector(query_BHTA, key_BHSA, dvector_HA, gradient_BHTS),
        _by_vector(dquery_BHTA, dkey_BHSA, dvector_HA, gradient_BHTS),
        strict=True,
    )
    for (query_NTA, key_NSA, dvector_A, gradient_NTS), (dquery_NTA, dkey_NSA, _, _) in pairs:
        for some, rows, hidden in _pieces(query_NTA, key_NSA):
            gradient = gradient_NTS[some, rows]
            dvector_A += gradient.reshape(-1) @ hidden.flatten(0, -2)
            # This multiplies the gradient of each score by (1 - tanh^2). The product overwrites tanh in the
            # workspace.
            slope = tanh_backward(gradient.unsqueeze(-1).expand_as(hidden), hidden, grad_input=hidden)
            dquery_NTA[some, rows] += slope.sum(-2)
            dkey_NSA[some] += slope.sum(-3)


def _by_vector(
    query_BHTA: Tensor, key_BHSA: Tensor, vector_HA: Tensor, scores_BHTS: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Iterate over the heads: yield the query, key, vector and scores of one head.

    Query, key and scores are views with the first dimension N = B. If all heads share one vector, there is
    only one iteration. Its views contain all heads, with N = B * H.
    """
    if vector_HA.shape[0] == 1:
        query_NTA, key_NSA, scores_NTS = (_joined(each) for each in (query_BHTA, key_BHSA, scores_BHTS))
        yield query_NTA, key_NSA, vector_HA[0], scores_NTS
        return
    for head, vector_A in enumerate(vector_HA):
        yield query_BHTA[:, head], key_BHSA[:, head], vector_A, scores_BHTS[:, head]


def _joined(tensor_BHXY: Tensor) -> Tensor:
    """Flatten batch and heads into one dimension. The result is a view: callers write to it in place."""
    batch, heads, *rest = tensor_BHXY.shape
    return tensor_BHXY.view(batch * heads, *rest)


def _pieces(query_NTA: Tensor, key_NSA: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Iterate over parts of the query rows that fit in the workspace.

    Yields three items: a slice of n of the N sequences; a slice of t of the T rows; and tanh(q + k) for these
    rows and all keys, (n, t, S, A). The next iteration overwrites the values of tanh(q + k).
    """
    count, queries, width = query_NTA.shape
    keys, room = key_NSA.shape[1], at_once(IN_CACHE, key_NSA.device)
    rows = max(1, min(queries, room // max(1, keys * width)))
    some = max(1, min(count, room // max(1, keys * width * rows))) if rows == queries else 1
    workspace = query_NTA.new_empty(some, rows, keys, width)
    for first in range(0, count, some):
        for row in range(0, queries, rows):
            chosen = slice(first, first + some), slice(row, row + rows)
            query_nt1A, key_n1SA = query_NTA[chosen].unsqueeze(-2), key_NSA[chosen[0]].unsqueeze(-3)
            place = workspace[: query_nt1A.shape[0], : query_nt1A.shape[1]]
            yield *chosen, torch.add(query_nt1A, key_n1SA, out=place).tanh_()


def row_blocks(call: Call) -> Iterator[slice]:
    """Divide the T queries of the call into blocks, and yield each block as a slice of query indices."""
    _, _, queries, _ = call.sizes
    rows = at_once(ROWS, call.query.device)
    for first in range(0, queries, rows):
        yield slice(first, min(first + rows, queries))


def column_blocks(call: Call, rows: slice, parts: int = 1) -> Iterator[tuple[slice, Tile]]:
    """Divide the keys into blocks; yield each block as a slice of key indices, with its Tile.

    rows: the queries of the tiles, as a slice.
    parts: a divisor of the maximum number of scores in a block.

    Keys at the beginning and at the end are skipped if no query in `rows` can see them. Only the causal part
    and the window of the mask are used for this.
    """
    batch, heads, _, keys = call.sizes
    low, high = call.mask.span(rows.start + call.start, rows.stop - 1 + call.start, keys)
    device = call.query.device
    most = at_once(AT_ONCE, device) // parts
    width = max(16, most // max(batch * heads * (rows.stop - rows.start), 1))
    rows_T = torch.arange(rows.start, rows.stop, device=device)
    for first in range(low, high, width):
        columns = slice(first, min(first + width, high))
        yield (
            columns,
            Tile(rows_T, torch.arange(columns.start, columns.stop, device=device), call.start, batch, heads),
        )


def tile_scores(call: Call, query_BHTD: Tensor, key_BHSD: Tensor, tile: Tile) -> Tensor:
    """Return (score + bias) / temperature for one tile; -inf where masked.

    query_BHTD, key_BHSD: the queries and keys of the tile.
    """
    if call.softcap is None:
        scores = _compared(call, query_BHTD, key_BHSD, call.temperature)
    else:
        scores = call.capped(_compared(call, query_BHTD, key_BHSD)) / call.temperature
    bias = call.bias_tile(query_BHTD, tile)
    if bias is not None:
        scores = scores + divided(bias, call.temperature, scores.dtype)
    if call.mask.parts:
        scores = torch.where(call.mask.tile(tile), scores, -torch.inf)
    return scores


def _compared(call: Call, query_BHTD: Tensor, key_BHSD: Tensor, temperature: float = 1.0) -> Tensor:
    """Return score / temperature for one tile, without soft cap, bias and mask."""
    if call.combine == "inner":
        return (query_BHTD * (call.scale / temperature)) @ key_BHSD.transpose(-2, -1)
    assert call.vector is not None
    return additive_scores(query_BHTD, key_BHSD, divided(call.vector, temperature, query_BHTD.dtype))
