# mypy: disable-error-code="no-untyped-def"
"""Matrix products inside a kernel.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["product"]


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
