"""fused: Triton kernels compute all looks except the whole matrix of weights, from query, key and lse.

One kernel computes entropy, alignment, mass and pooled weights, another one the largest weights (top). Memory
is linear in T + S. The kernels can run after the forward pass of any backend that returns an lse. They run on
CUDA; with TRITON_INTERPRET=1 in the environment, they run in Triton's interpreter on the CPU, which is meant
for tests.

The kernels compute inner products. For an additive score, the scores of some queries at a time are computed
by the kernel of additive attention. They are passed to the looking kernels as a bias, with queries and keys
that are 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attended import Top
from regard.call import Call, Forward
from regard.dimensions import in_transform
from regard.errors import install_command
from regard.kernels import TRITON, interpreting
from regard.look import Look
from regard.looking.block_pooling import block_means
from regard.looking.blockwise import weights_of_rows
from regard.looking.look_result import Seen
from regard.masks.readable import PLAIN
from regard.positions import Bias
from regard.select import Soft

__all__ = ["reasons", "run"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_WIDTH = 256
MAX_TOP = 16
"""Maximum k of Look(top=k). The kernel finds the largest scores of a tile one by one."""

POOLED_STEP = 64
"""The block size of Look(pooled=...) must be a multiple of this number."""

MAX_GRID = 65535
"""Maximum size of the second dimension of a CUDA grid."""

FEWEST_REPLAYED = 16
"""Fewest queries of a call whose launches are replayed."""

MOST_REPLAYED = 1 << 24
"""Most scores (B H T S) of a call with an additive score whose launches are replayed: 64 MiB."""

NO_PRODUCT = 16
"""Width of the queries and keys that are 0, which the kernels multiply if the score is additive."""


def reasons(call: Call, look: Look) -> list[str]:
    """Return why this pass cannot compute what `look` requests; empty if it can."""
    reasons, device = [], call.query.device.type
    batch, heads, _, _ = call.sizes
    if call.combine == "additive":
        if call.softcap is not None:
            reasons.append("supports a soft cap for inner products only, but this score is additive")
        if torch.compiler.is_compiling():
            reasons.append("cannot be compiled by torch.compile for an additive score")
    elif call.query.shape[-1] > MAX_WIDTH:
        reasons.append(f"supports D up to {MAX_WIDTH} for inner products, not {call.query.shape[-1]}")
    if not isinstance(call.select, Soft):
        reasons.append(f"supports only select=Soft(), not {type(call.select).__name__}")
    if not TRITON:
        reasons.append(f"needs triton ({install_command('kernels')})")
    if device != "cuda" and not (device == "cpu" and interpreting()):
        reasons.append(f"runs on cuda, but the call is on {device}")
    if look.weights:
        reasons.append("does not compute the whole matrix of weights")
    if look.top > MAX_TOP:
        reasons.append(f"computes at most {MAX_TOP} of the largest weights, not top={look.top}")
    if look.pooled % POOLED_STEP:
        reasons.append(f"needs a block size that is a multiple of {POOLED_STEP}, not pooled={look.pooled}")
    if look.gradient:
        reasons.append("computes no gradients")
    if not call.mask.only("causal", "lengths", "window", "documents", "table"):
        reasons.append("supports named masks and bool tensors, but no conditions such as where()")
    if isinstance(call.bias, Bias):
        reasons.append(f"does not support {type(call.bias).__name__}")
    if call.query.dtype not in DTYPES:
        reasons.append(f"supports float32, bfloat16 and float16, not {call.query.dtype}")
    if 0 in (*call.sizes, call.query.shape[-1]):
        reasons.append("does not support dimensions of size 0")
    if batch * heads > MAX_GRID:
        reasons.append(f"supports B * H up to {MAX_GRID:,}, not {batch * heads:,}")
    return reasons


class _Looks(NamedTuple):
    """The results of the kernels for all queries, or for a chunk of them. Fields not requested are None."""

    entropy: Tensor | None
    alignment: Tensor | None
    mass: Tensor | None
    pooled: Tensor | None
    top_weights: Tensor | None
    top_keys: Tensor | None


class _Wanted(NamedTuple):
    """The fields of a Look that the kernels compute. pooled: the block size. top: k."""

    entropy: bool
    alignment: bool
    mass: bool
    pooled: int
    top: int


@torch.no_grad()
def run(call: Call, forward: Forward, look: Look) -> Seen:
    """Compute entropy, alignment, mass and pooled weights with one kernel, the largest weights with another.

    The weights of look.rows are computed without these kernels, by weights_of_rows().
    """
    assert forward.lse is not None
    wanted = _Wanted(look.entropy, look.alignment, look.mass, look.pooled, look.top)
    found = iter(_computed(call, forward.lse, wanted) if any(wanted) else ())
    entropy, alignment, mass, pooled = (next(found) if requested else None for requested in wanted[:4])
    return Seen(
        rows=weights_of_rows(call, forward.lse, look.rows) if look.rows is not None else None,
        top=Top(next(found), next(found)) if look.top else None,
        alignment=alignment,
        entropy=entropy,
        mass=mass,
        pooled=pooled,
    )


def _computed(call: Call, lse: Tensor, wanted: _Wanted) -> tuple[Tensor, ...]:
    """Return the requested tensors in the order of _Looks.

    Outside of torch.compile, the launches of the kernels are replayed, which takes less time on the host. Not
    replayed are calls with few queries, because steps of a decoder differ in their shapes, and large calls
    with an additive score, because a replay keeps the scores of all chunks of queries in memory.
    """
    from regard.kernels.kernel_choice import is_current
    from regard.kernels.replay import replayed

    function: Callable[..., tuple[Tensor, ...]] = (
        _additive_looks if call.combine == "additive" else _inner_looks
    )
    tensors, numbers = _arguments(call, lse)
    plain = all(type(tensor) in PLAIN for tensor in tensors if tensor is not None)
    if torch.compiler.is_compiling() or in_transform() or not plain:
        return function(*tensors, *numbers, wanted, by_operator=True)
    large = call.combine == "additive" and math.prod(call.sizes) > MOST_REPLAYED
    if call.sizes[2] < FEWEST_REPLAYED or large:
        return function(*tensors, *numbers, wanted)
    device = call.query.device
    with nullcontext() if is_current(device) else torch.cuda.device(device):
        return replayed(function, tensors, (*numbers, wanted))


def _arguments(call: Call, lse: Tensor) -> tuple[tuple[Tensor | None, ...], tuple[Any, ...]]:
    """Return the tensors and the numbers of a call, in the order of _inner_looks() and _additive_looks()."""
    of_query, of_key = call.mask.documents or (None, None)
    bias = call.bias if isinstance(call.bias, Tensor) else None
    mask = call.mask.table, call.mask.lengths, of_query, of_key
    cap = 0.0 if call.softcap is None else call.softcap
    numbers = (call.start, *call.mask.sides, call.scale, cap, 1 / call.temperature)
    if call.mask.sides == (None, None) and of_query is None:
        numbers = (0, *numbers[1:])  # the position of the first query is not read
    vector = (call.vector,) if call.combine == "additive" else ()
    return (call.query, call.key, *vector, lse, bias, *mask), numbers


def _inner_looks(
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
    wanted: _Wanted,
    by_operator: bool = False,
) -> tuple[Tensor, ...]:
    """Return the requested tensors for an inner product. The arguments are those of inner_look()."""
    of_query, of_key = (None if each is None else each.contiguous() for each in (of_query, of_key))
    mask = table, lengths, of_query, of_key
    arguments = (query, key, lse, bias, *mask, start, left, right, scale, cap, bias_scale)
    return _finished(_looks(arguments, wanted, by_operator), wanted, query.shape[2], key.shape[2])


def _additive_looks(
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
    wanted: _Wanted,
    by_operator: bool = False,
) -> tuple[Tensor, ...]:
    """Return the requested tensors for an additive score, computed for some queries at a time."""
    from regard.kernels.forward_pass import Sight
    from regard.kernels.score_chunks import score_chunks

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
        chunks.append(_looks(arguments, wanted, by_operator))
    return _finished(_joined(chunks), wanted, query.shape[2], key.shape[2])


def _looks(arguments: tuple[Any, ...], wanted: _Wanted, by_operator: bool) -> _Looks:
    """Run the kernels. arguments: the first arguments of inner_look() and inner_top()."""
    from regard.kernels.inner_look_pass import inner_look, run_inner_look
    from regard.kernels.inner_top_pass import inner_top, needs_maxima, run_inner_top

    entropy, alignment, mass, pooled, top = wanted
    fields = entropy, alignment and not top, mass, pooled
    look: Any = inner_look if by_operator else run_inner_look
    largest: Any = inner_top if by_operator else run_inner_top
    maxima = top > 0 and needs_maxima(arguments[0], arguments[1].shape[2], top)
    looks = look(*arguments, *fields, maxima) if any(fields) or maxima else [None] * 5
    tops = largest(*arguments, top, looks[4] if maxima else None) if top else [None] * 2
    return _Looks(*(each if field else None for each, field in zip(looks[:4], fields, strict=True)), *tops)


def _finished(looks: _Looks, wanted: _Wanted, queries: int, keys: int) -> tuple[Tensor, ...]:
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
