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

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attended import Top
from regard.call import Call, Forward
from regard.errors import install_command
from regard.kernels import TRITON, interpreting
from regard.look import Look
from regard.looking.block_pooling import block_means
from regard.looking.blockwise import weights_of_rows
from regard.looking.look_result import Seen
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


@torch.no_grad()
def run(call: Call, forward: Forward, look: Look) -> Seen:
    """Compute entropy, alignment, mass and pooled weights with one kernel, the largest weights with another.

    The weights of look.rows are computed without these kernels, by weights_of_rows().
    """
    assert forward.lse is not None
    wanted = look.entropy, look.alignment and not look.top, look.mass, look.pooled
    seen = _Looks(*[None] * 6)
    if any(wanted) or look.top:
        chunks = _additive if call.combine == "additive" else _inner
        seen = _joined([_looks(arguments, wanted, look.top) for arguments in chunks(call, forward.lse, look)])
    alignment, top = seen.alignment, None
    if look.top:
        assert seen.top_weights is not None and seen.top_keys is not None
        top = Top(seen.top_weights, seen.top_keys)
        alignment = top.keys[..., 0].clone()  # a view would keep all of top.keys in memory
    return Seen(
        rows=weights_of_rows(call, forward.lse, look.rows) if look.rows is not None else None,
        top=top,
        alignment=alignment if look.alignment else None,
        entropy=seen.entropy,
        mass=seen.mass,
        pooled=None if seen.pooled is None else block_means(seen.pooled, call.sizes, look.pooled),
    )


def _looks(arguments: tuple[Any, ...], wanted: tuple[bool, bool, bool, int], top: int) -> _Looks:
    """Run the kernels. arguments: the first arguments of inner_look() and inner_top()."""
    from regard.kernels.inner_look_pass import inner_look
    from regard.kernels.inner_top_pass import inner_top, needs_maxima

    maxima = top > 0 and needs_maxima(arguments[0], arguments[1].shape[2], top)
    looks = inner_look(*arguments, *wanted, maxima) if any(wanted) or maxima else [None] * 5
    tops = inner_top(*arguments, top, looks[4] if maxima else None) if top else [None] * 2
    return _Looks(*(each if asked else None for each, asked in zip(looks[:4], wanted, strict=True)), *tops)


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


def _mask(call: Call) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the lengths and the documents of queries and keys, as arguments of the kernels."""
    of_query, of_key = (None if each is None else each.contiguous() for each in _documents(call))
    return call.mask.lengths, of_query, of_key


def _documents(call: Call) -> tuple[Tensor | None, Tensor | None]:
    return call.mask.documents or (None, None)


def _inner(call: Call, lse: Tensor, look: Look) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of the kernels for an inner product: one chunk with all queries."""
    bias = call.bias if isinstance(call.bias, Tensor) else None
    cap = 0.0 if call.softcap is None else call.softcap
    numbers = call.start, *call.mask.sides, call.scale, cap, 1 / call.temperature
    yield call.query, call.key, lse, bias, call.mask.table, *_mask(call), *numbers


def _additive(call: Call, lse: Tensor, look: Look) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of the kernels for an additive score, for some queries at a time."""
    from regard.kernels.forward_pass import Sight
    from regard.kernels.score_chunks import score_chunks

    assert call.vector is not None
    batch, heads, _, keys = call.sizes
    mask = _mask(call)
    sight = Sight(*mask, call.start, *call.mask.sides)
    key = call.key.new_zeros(batch, 1, keys, NO_PRODUCT)
    for first, scores in score_chunks(call.query, call.key, call.vector, sight, look.pooled or POOLED_STEP):
        rows = slice(first, first + scores.shape[2])
        query = call.query.new_zeros(batch, heads, scores.shape[2], NO_PRODUCT)
        if isinstance(call.bias, Tensor):
            scores = scores + _rows_of(call.bias, rows)
        table = None if call.mask.table is None else _rows_of(call.mask.table, rows)
        numbers = call.start + first, *call.mask.sides, 1.0, 0.0, 1 / call.temperature
        yield query, key, lse[:, :, rows], scores, table, *mask, *numbers


def _rows_of(tensor: Tensor, rows: slice) -> Tensor:
    """Return some rows of a tensor that broadcasts to (B, H, T, S)."""
    return tensor[..., rows, :] if tensor.dim() > 1 and tensor.shape[-2] > 1 else tensor
