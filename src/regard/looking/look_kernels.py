"""Run the looking kernels: kernel_looks(), for additive scores also as a custom operator.

torch.compile does not trace into the operators. Outside of it, the functions take less time on the host.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.kernels.looking import ARGUMENTS, Weights
from regard.looking.block_pooling import block_means

__all__ = ["POOLED_STEP", "Wanted", "Weights", "additive_look", "kernel_looks"]

POOLED_STEP = 64
"""The block size of Look(pooled=...) must be a multiple of this number."""

NO_PRODUCT = 16
"""Width of the queries and keys that are 0, which the kernels multiply if the score is additive."""


class _Looks(NamedTuple):
    """The results of the kernels for all queries, or for a chunk of them. Fields not requested are None."""

    entropy: Tensor | None
    alignment: Tensor | None
    mass: Tensor | None
    pooled: Tensor | None
    top_weights: Tensor | None
    top_keys: Tensor | None


class Wanted(NamedTuple):
    """The fields of a Look that the kernels compute. pooled: the block size. top: k."""

    entropy: bool
    alignment: bool
    mass: bool
    pooled: int
    top: int


def kernel_looks(
    weights: Weights, vector: Tensor | None, wanted: Wanted, by_operator: bool = False
) -> tuple[Tensor, ...]:
    """Return the requested tensors.

    vector: v in an additive score v . tanh(q + k), (1 or H, D); None for an inner product. For an additive
        score, `scale` and `cap` are not used, and the scores of some queries at a time are computed.
    """
    if vector is None:
        sizes = weights.query.shape[2], weights.key.shape[2]
        return _finished(_looks(weights, wanted, by_operator), wanted, *sizes)
    if by_operator:
        results = additive_look(*weights, vector, *wanted)
        fields = (*wanted[:4], wanted.top, wanted.top)
        return tuple(each for each, field in zip(results, fields, strict=True) if field)
    from regard.kernels.additive.forward import Sight, score_chunks

    query, key, lse, bias, table, lengths, of_query, of_key, start, left, right, *_ = weights
    sight = Sight(lengths, of_query, of_key, start, left, right)
    zero_key = key.new_zeros(key.shape[0], 1, key.shape[2], NO_PRODUCT)
    chunks = []
    for first, scores in score_chunks(query, key, vector, sight, wanted.pooled or POOLED_STEP):
        rows = slice(first, first + scores.shape[2])
        zero_query = query.new_zeros(*query.shape[:2], scores.shape[2], NO_PRODUCT)
        if bias is not None:
            scores = scores + _rows_of(bias, rows)
        chunk = weights._replace(
            query=zero_query, key=zero_key, lse=lse[:, :, rows], bias=scores, scale=1.0, cap=0.0,
            table=None if table is None else _rows_of(table, rows), start=start + first,
        )  # fmt: skip
        chunks.append(_looks(chunk, wanted, by_operator=False))
    return _finished(_joined(chunks), wanted, query.shape[2], key.shape[2])


def _additive_look(*arguments: Any) -> tuple[Tensor, ...]:
    """Return all fields of _Looks; empty tensors for those that are not requested."""
    weights, vector, wanted = Weights(*arguments[:14]), arguments[14], Wanted(*arguments[15:])
    results = iter(kernel_looks(weights, vector, wanted))
    fields = (*wanted[:4], wanted.top, wanted.top)
    return tuple(next(results) if field else vector.new_empty(0) for field in fields)


additive_look = torch.library.custom_op(
    "regard::additive_look",
    mutates_args=(),
    schema=f"({ARGUMENTS}, Tensor vector, bool entropy, bool alignment, bool mass, SymInt pooled, SymInt top)"
    " -> (Tensor entropy, Tensor alignment, Tensor mass, Tensor pooled, Tensor weights, Tensor keys)",
)(_additive_look)
"""kernel_looks() of an additive score as an operator, which torch.compile does not trace into."""


@additive_look.register_fake
def _(query: Tensor, key: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    entropy, alignment, mass, pooled, top = rest[-5:]
    (batch, heads, queries, _), keys = query.shape, key.shape[2]
    rows = (batch, heads, queries)
    blocks = (batch, heads, -(-queries // pooled), -(-keys // pooled)) if pooled else 0

    def field(size: Any, requested: Any, dtype: torch.dtype = torch.float32) -> Tensor:
        return query.new_empty(size, dtype=dtype) if requested else query.new_empty(0)

    largest = (*rows, top)
    return (
        field(rows, entropy),
        field(rows, alignment, torch.int64),
        field((batch, heads, keys), mass),
        field(blocks, pooled),
        field(largest, top),
        field(largest, top, torch.int64),
    )


def _looks(weights: Weights, wanted: Wanted, by_operator: bool) -> _Looks:
    """Run the kernels."""
    from regard.kernels.looking.measures import inner_look, run_inner_look
    from regard.kernels.looking.top import inner_top, run_inner_top

    entropy, alignment, mass, pooled, top = wanted
    fields = entropy, alignment and not top, mass, pooled
    looks: Any = [None] * 4
    tops: Any = [None] * 2
    if any(fields):
        looks = inner_look(*weights, *fields) if by_operator else run_inner_look(weights, *fields)
    if top:
        tops = inner_top(*weights, top) if by_operator else run_inner_top(weights, top)
    return _Looks(*(each if field else None for each, field in zip(looks, fields, strict=True)), *tops)


def _finished(looks: _Looks, wanted: Wanted, queries: int, keys: int) -> tuple[Tensor, ...]:
    """Return the requested tensors: the alignment from the largest weights, and means of pooled weights."""
    alignment, pooled = looks.alignment, looks.pooled
    if wanted.top and wanted.alignment:
        assert looks.top_keys is not None
        alignment = looks.top_keys[..., 0].clone()  # a view would keep all of them in memory
    if pooled is not None:
        pooled = block_means(pooled, (queries, keys), wanted.pooled)
    fields = looks._replace(alignment=alignment, pooled=pooled)
    return tuple(field for field in fields if field is not None)


def _joined(chunks: list[_Looks]) -> _Looks:
    """Join the results of chunks of queries: the mass is added, the rest is concatenated."""
    if len(chunks) == 1:
        return chunks[0]

    def joined(name: str) -> Tensor | None:
        fields = [getattr(chunk, name) for chunk in chunks]
        if fields[0] is None:
            return None
        return torch.stack(fields).sum(0) if name == "mass" else torch.cat(fields, 2)

    return _Looks(*map(joined, _Looks._fields))


def _rows_of(tensor: Tensor, rows: slice) -> Tensor:
    """Return some rows of a tensor that broadcasts to (B, H, T, S)."""
    return tensor[..., rows, :] if tensor.dim() > 1 and tensor.shape[-2] > 1 else tensor
