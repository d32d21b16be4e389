# mypy: disable-error-code="no-untyped-def"
"""Additive attention of a recurrent decoder in training: gradients that are computed for all steps at once.

attention.py contains the kernels of one step, and layers/projected_steps.py the loop over the steps.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import interpreting
from regard.kernels.aligned_sizes import units
from regard.kernels.tanh import exact_share

__all__ = ["LONGEST", "columns_of", "context_products", "length_step", "memory_backward", "tanh"]

LONGEST = 128
"""Maximum number of keys: a program holds the weights of a sequence in registers."""

MEMORY_TILE = 4096
"""Number of elements of the keys that a program of additive_memory_backward_kernel holds in registers."""


@triton.jit
def tanh(x, HALF: tl.constexpr, APPROXIMATE: tl.constexpr):
    """Return tanh(x).

    HALF: whether x was computed from numbers in half precision. Then one instruction computes tanh, with an
        error of up to 2^-11, which is less than a rounding step of bfloat16.
    """
    if HALF and APPROXIMATE:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return 1.0 - 2.0 * exact_share(x, APPROXIMATE)


@triton.jit
def additive_memory_backward_kernel(
    query, key, vector, dscores, dkey, parts, steps, keys, width, query_step, query_row, key_batch, key_row,
    dscores_step, UNIT: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the keys and of the vector v, for one sequence and WIDTH channels.

    dkey = sum over steps of v g (1 - tanh^2)     dv = sum over steps and keys of g tanh

    query: reads (T, B, D). key: reads (B, S, D). vector: reads v, (D,). dscores: reads g, (T, B, S).
    dkey: writes (B, S, D). parts: writes the part of dv of each sequence, (B, D).
    UNIT: width and all strides but dscores_step are in units of this number of elements, see units().
    """
    width, query_step, query_row = width * UNIT, query_step * UNIT, query_row * UNIT
    key_batch, key_row = key_batch * UNIT, key_row * UNIT
    batch = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    there = channel < width
    inside = (column < keys)[:, None] & there[None, :]
    at = batch * key_batch + column[:, None] * key_row + channel[None, :]
    k = tl.load(key + at, mask=inside, other=0.0).to(tl.float32)
    slopes = tl.zeros([COLUMNS, WIDTH], tl.float32)
    products = tl.zeros([COLUMNS, WIDTH], tl.float32)
    total = tl.zeros([COLUMNS], tl.float32)
    query += batch * query_row
    dscores += batch * keys
    next_q = tl.load(query + channel, mask=there, other=0.0)
    next_g = tl.load(dscores + column, mask=column < keys, other=0.0)
    for step in range(steps):
        q, g = next_q.to(tl.float32), next_g[:, None]
        total += next_g
        query += query_step
        dscores += dscores_step
        left = step + 1 < steps  # load the next step before this one is computed
        next_q = tl.load(query + channel, mask=there & left, other=0.0)
        next_g = tl.load(dscores + column, mask=(column < keys) & left, other=0.0)
        t = tanh(q[None, :] + k, HALF, APPROXIMATE)
        # Keys of the padding can be NaN; their g is 0.
        t = tl.where(g == 0.0, 0.0, t)
        product = g * t
        products += product
        # The sum of g t^2 takes fewer instructions than that of g (1 - t^2), but 1 - t^2 is more precise.
        slopes += product * t if HALF else g * (1.0 - t * t)
    if HALF:
        slopes = total[:, None] - slopes
    v = tl.load(vector + channel, mask=there, other=0.0).to(tl.float32)
    into = (batch * keys + column)[:, None] * width + channel[None, :]
    tl.store(dkey + into, slopes * v[None, :], mask=inside)
    tl.store(parts + batch * width + channel, tl.sum(products, 0), mask=there)


@triton.jit
def context_products_kernel(
    dcontexts, value, products, steps, keys, depth, step_batch, step_row, value_batch, value_row,
    UNIT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Compute products = dcontexts value^T, for one sequence and ROWS steps.

    dcontexts, value: read (B, T, E) and (B, S, E). products: writes (B, T, S) in float32.
    UNIT: depth and all strides are in units of this number of elements, see units().
    """
    depth, step_batch, step_row = depth * UNIT, step_batch * UNIT, step_row * UNIT
    value_batch, value_row = value_batch * UNIT, value_row * UNIT
    batch, column = tl.program_id(0).to(tl.int64), tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    dcontexts += batch * step_batch + row[:, None] * step_row
    value += batch * value_batch + column[:, None] * value_row
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, depth, DEPTH):
        channel = first + tl.arange(0, DEPTH)
        there = (channel < depth)[None, :]
        d = tl.load(dcontexts + channel[None, :], mask=(row < steps)[:, None] & there, other=0.0)
        x = tl.load(value + channel[None, :], mask=(column < keys)[:, None] & there, other=0.0)
        total = tl.dot(d, tl.trans(x), total, input_precision="ieee")
    into = (batch * steps + row)[:, None] * keys + column[None, :]
    tl.store(products + into, total, mask=(row < steps)[:, None] & (column < keys)[None, :])


def context_products(dcontexts: Tensor, value: Tensor) -> Tensor:
    """Return dcontexts (B, T, E) times the transposed values (B, S, E), in float32: (B, T, S).

    These are gradients of attention weights. cuBLAS takes longer, unless S is a multiple of 8.
    """
    (batch, steps, depth), keys = dcontexts.shape, value.shape[1]
    products = value.new_empty(batch, steps, keys, dtype=torch.float32)
    sizes = units((depth, *dcontexts.stride()[:2], *value.stride()[:2]))
    context_products_kernel[(batch, triton.cdiv(steps, 32))](
        dcontexts, value, products, steps, keys, *sizes, ROWS=32, COLUMNS=columns_of(keys),
        DEPTH=256 // value.dtype.itemsize, num_warps=4, num_stages=4,
    )  # fmt: skip
    return products


def memory_backward(queries: Tensor, key: Tensor, vector: Tensor, dscores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of keys (B, S, D) and vector (D,), the latter in float32, summed over all steps.

    queries: (T, B, D). dscores: the gradients of the scores, (T, B, S), contiguous, float32.
    """
    (steps, batch, width), keys = queries.shape, key.shape[1]
    dkey = key.new_empty(key.shape)
    parts = vector.new_empty(batch, width, dtype=torch.float32)
    *sizes, unit = units((width, *queries.stride()[:2], *key.stride()[:2]))
    columns = columns_of(keys)
    channels = max(MEMORY_TILE // columns, 16)
    half = key.dtype.itemsize == 2
    limit = {"maxnreg": 80} if half else {}  # then three programs run on a multiprocessor
    additive_memory_backward_kernel[(batch, triton.cdiv(width, channels))](
        queries, key, vector, dscores, dkey, parts, steps, keys, *sizes, dscores.stride(0), unit,
        COLUMNS=columns, WIDTH=channels, HALF=half, APPROXIMATE=not interpreting(), num_warps=8, **limit,
    )  # fmt: skip
    return dkey, parts.sum(0)


def length_step(lengths: Tensor | None) -> int:
    """Return the stride of the lengths along the batch: 0 for one length of all sequences."""
    return 0 if lengths is None or len(lengths) == 1 else lengths.stride(0)


def columns_of(keys: int) -> int:
    """Return the number of keys of a tile."""
    return max(triton.next_power_of_2(keys), 16)
