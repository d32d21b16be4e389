"""Run the looking kernels: inner_looks() and additive_looks(), the latter also as a custom operator.

torch.compile does not trace into the operators. Outside of it, the functions take less time on the host.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.looking.block_pooling import block_means

__all__ = ["POOLED_STEP", "Wanted", "additive_look", "additive_looks", "inner_looks"]

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


def inner_looks(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    table: Tensor | None,
    lengths: Tensor | None,
    of_query: Tensor | None,
    of_key: Tensor | None,
    start: int,
    left: int | None,
    right: int | None,
    scale: float,
    cap: float,
    bias_scale: float,
    wanted: Wanted,
    by_operator: bool = False,
) -> tuple[Tensor, ...]:
    """Return the requested tensors for an inner product. The arguments are those of inner_look()."""
    of_query, of_key = (None if each is None else each.contiguous() for each in (of_query, of_key))
    mask = table, lengths, of_query, of_key
    arguments = (query, key, lse, bias, *mask, start, left, right, scale, cap, bias_scale)
    return _finished(_looks(arguments, wanted, by_operator), wanted, query.shape[2], key.shape[2])


def additive_looks(
    query: Tensor,
    key: Tensor,
    vector: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    table: Tensor | None,
    lengths: Tensor | None,
    of_query: Tensor | None,
    of_key: Tensor | None,
    start: int,
    left: int | None,
    right: int | None,
    scale: float,
    cap: float,
    bias_scale: float,
    wanted: Wanted,
    by_operator: bool = False,
) -> tuple[Tensor, ...]:
    """Return the requested tensors for an additive score, computed for some queries at a time.

    vector: v in the score v . tanh(q + k), (1 or H, D). scale and cap are not used. The other arguments are
        those of inner_look().
    """
    if by_operator:
        tensors = query, key, vector, lse, bias, table, lengths, of_query, of_key
        results = additive_look(*tensors, start, left, right, bias_scale, *wanted)
        fields = (*wanted[:4], wanted.top, wanted.top)
        return tuple(each for each, field in zip(results, fields, strict=True) if field)
    from regard.kernels.additive.forward import Sight, score_chunks

    of_query, of_key = (None if each is None else each.contiguous() for each in (of_query, of_key))
    sight = Sight(lengths, of_query, of_key, start, left, right)
    zero_key = key.new_zeros(key.shape[0], 1, key.shape[2], NO_PRODUCT)
    chunks = []
    for first, scores in score_chunks(query, key, vector, sight, wanted.pooled or POOLED_STEP):
        rows = slice(first, first + scores.shape[2])
        zero_query = query.new_zeros(*query.shape[:2], scores.shape[2], NO_PRODUCT)
        if bias is not None:
            scores = scores + _rows_of(bias, rows)
        mask = None if table is None else _rows_of(table, rows), lengths, of_query, of_key
        numbers = start + first, left, right, 1.0, 0.0, bias_scale
        arguments = zero_query, zero_key, lse[:, :, rows], scores, *mask, *numbers
        chunks.append(_looks(arguments, wanted, by_operator=False))
    return _finished(_joined(chunks), wanted, query.shape[2], key.shape[2])


def _additive_look(
    query: Tensor,
    key: Tensor,
    vector: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    table: Tensor | None,
    lengths: Tensor | None,
    of_query: Tensor | None,
    of_key: Tensor | None,
    start: int,
    left: int | None,
    right: int | None,
    bias_scale: float,
    entropy: bool,
    alignment: bool,
    mass: bool,
    pooled: int,
    top: int,
) -> tuple[Tensor, ...]:
    """Return all fields of _Looks; empty tensors for those that are not requested."""
    wanted = Wanted(entropy, alignment, mass, pooled, top)
    tensors = query, key, vector, lse, bias, table, lengths, of_query, of_key
    results = iter(additive_looks(*tensors, start, left, right, 1.0, 0.0, bias_scale, wanted))
    fields = (*wanted[:4], top, top)
    return tuple(next(results) if field else query.new_empty(0) for field in fields)


additive_look = torch.library.custom_op(
    "regard::additive_look",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor vector, Tensor lse, Tensor? bias, Tensor? table, "
    "Tensor? lengths, Tensor? of_query, Tensor? of_key, SymInt start, SymInt? left, SymInt? right, "
    "float bias_scale, bool entropy, bool alignment, bool mass, SymInt pooled, SymInt top)"
    " -> (Tensor entropy, Tensor alignment, Tensor mass, Tensor pooled, Tensor weights, Tensor keys)",
)(_additive_look)
"""additive_looks() as an operator, which torch.compile does not trace into."""


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


def _looks(arguments: tuple[Any, ...], wanted: Wanted, by_operator: bool) -> _Looks:
    """Run the kernels. arguments: the first arguments of inner_look() and inner_top()."""
    from regard.kernels.looking.measures import inner_look, run_inner_look
    from regard.kernels.looking.top import inner_top, needs_maxima, run_inner_top

    entropy, alignment, mass, pooled, top = wanted
    fields = entropy, alignment and not top, mass, pooled
    look: Any = inner_look if by_operator else run_inner_look
    largest: Any = inner_top if by_operator else run_inner_top
    maxima = top > 0 and needs_maxima(arguments[0], arguments[1].shape[2], top)
    looks = look(*arguments, *fields, maxima) if any(fields) or maxima else [None] * 5
    tops = largest(*arguments, top, looks[4] if maxima else None) if top else [None] * 2
    return _Looks(*(each if field else None for each, field in zip(looks[:4], fields, strict=True)), *tops)


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
