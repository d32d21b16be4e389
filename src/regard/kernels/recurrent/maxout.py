# mypy: disable-error-code="no-untyped-def"
"""The maximum of each pair of adjacent elements, as one kernel for each pass.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["PairMaximum"]

BLOCK = 1024
"""Number of pairs per program."""


@triton.jit(do_not_specialize=["count"])
def pair_maximum_kernel(pairs, result, count, BLOCK: tl.constexpr):
    """Write the larger element of BLOCK pairs; NaN if one is NaN.

    pairs: reads (count, 2). result: writes (count,).
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    elements = tl.load(pairs + 2 * at[:, None] + tl.arange(0, 2)[None, :], mask=(at < count)[:, None])
    first, second = tl.split(elements)
    larger = tl.maximum(first, second, propagate_nan=tl.PropagateNan.ALL)
    tl.store(result + at, larger, mask=at < count)


@triton.jit(do_not_specialize=["count"])
def pair_maximum_backward_kernel(pairs, dresult, dpairs, count, BLOCK: tl.constexpr):
    """Give the gradient to the larger element of each pair, or half of it to both if they are equal.

    pairs: reads (count, 2). dresult: reads (count,). dpairs: writes (count, 2).
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    places = 2 * at[:, None] + tl.arange(0, 2)[None, :]
    first, second = tl.split(tl.load(pairs + places, mask=(at < count)[:, None]))
    d = tl.load(dresult + at, mask=at < count).to(tl.float32)
    share = tl.where(first == second, 0.5, 1.0)
    d_first, d_second = tl.where(first >= second, d * share, 0.0), tl.where(second >= first, d * share, 0.0)
    tl.store(dpairs + places, tl.join(d_first, d_second), mask=(at < count)[:, None])


class PairMaximum(torch.autograd.Function):
    """The maximum of each pair of adjacent elements of the last dimension: (..., 2 N) to (..., N)."""

    @staticmethod
    def forward(ctx: Any, pairs: Tensor) -> Tensor:
        pairs = pairs.contiguous()
        result = pairs.new_empty(*pairs.shape[:-1], pairs.shape[-1] // 2)
        if result.numel():
            count = result.numel()
            pair_maximum_kernel[(triton.cdiv(count, BLOCK),)](pairs, result, count, BLOCK=BLOCK, num_warps=4)
        ctx.save_for_backward(pairs)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dresult: Tensor) -> Tensor:
        (pairs,) = ctx.saved_tensors
        dresult, dpairs = dresult.contiguous(), torch.empty_like(pairs)
        if dresult.numel():
            count = dresult.numel()
            pair_maximum_backward_kernel[(triton.cdiv(count, BLOCK),)](
                pairs, dresult, dpairs, count, BLOCK=BLOCK, num_warps=4
            )
        return dpairs
