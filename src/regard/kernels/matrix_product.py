# mypy: disable-error-code="no-untyped-def"
"""Matrix products inside a kernel.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["product", "row_products"]


@triton.jit
def product(a, b, total, PRECISION: tl.constexpr):
    """Return total + a @ b.

    PRECISION: "ieee", "tf32" or "tf32x3" is the input_precision of tl.dot, which matters for float32 only.
        "widened" converts `a` and `b` to float32 first, for the interpreter, which cannot multiply bfloat16.

    If `a` has one row, the product is computed by a reduction instead of tl.dot.
    """
    if a.shape[0] == 1:
        return total + tl.sum(tl.trans(a).to(tl.float32) * b.to(tl.float32), 0)[None, :]
    if PRECISION == "widened":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def row_products(a, b, PRECISION: tl.constexpr):
    """Return the inner product of each row of `a` with the same row of `b`, (N,). N is a multiple of 16.

    It is the diagonal of a @ b.T, computed in blocks of 16 rows, because matrix products are faster than
    other arithmetic. PRECISION: see product().
    """
    N: tl.constexpr = a.shape[0]
    WIDTH: tl.constexpr = a.shape[1]
    if PRECISION == "widened":
        a, b = a.to(tl.float32), b.to(tl.float32)
    blocks_a = tl.reshape(a, [N // 16, 16, WIDTH])
    blocks_b = tl.permute(tl.reshape(b, [N // 16, 16, WIDTH]), (0, 2, 1))
    products = tl.dot(blocks_a, blocks_b, input_precision="ieee" if PRECISION == "widened" else PRECISION)
    places = tl.arange(0, 16)
    diagonal = places[None, :, None] == places[None, None, :]
    return tl.reshape(tl.sum(tl.where(diagonal, products, 0.0), 2), [N])
