# mypy: disable-error-code="no-untyped-def"
"""The sum of the squared gradients, and AdamW, each as one kernel launch for all parameters of a group.

A table on the device contains the addresses of all tensors, so that one launch can read them all. Each
program processes BLOCK elements of one parameter.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["AddressTables", "adamw", "clip"]

BLOCK, WARPS, NORM_WARPS = 2048, 8, 4
"""Number of elements that a program processes, its number of warps, and that of a program of the norm."""


@triton.jit
def _at(table, row, field: tl.constexpr):
    """Return a field of the table as the address of a float32 tensor that begins at a multiple of 16 bytes.

    A row of the table has six fields: the addresses of weight, gradient, first moment, second moment and
    step, and the number of elements.
    """
    return tl.multiple_of(tl.load(table + row * 6 + field).to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def _update(table, row, first, size, numbers, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """Update BLOCK elements of the parameter in a row of the table, from element `first` on.

    numbers: the learning rate, 1 - beta1^step, sqrt(1 - beta2^step), the divisor of the gradients, and the
        arguments beta1, beta2, decay and epsilon of adamw_kernel.
    WHOLE: whether all BLOCK elements exist. If not, a mask hides those from `size` on.
    """
    learning, part1, part2, scale, beta1, beta2, decay, epsilon = numbers
    element = first + tl.arange(0, BLOCK)
    weight, gradient = _at(table, row, 0) + element, _at(table, row, 1) + element
    mean, square = _at(table, row, 2) + element, _at(table, row, 3) + element
    there = None
    if not WHOLE:
        there = element < size
    g = tl.load(gradient, mask=there) / scale
    m, v, w = tl.load(mean, mask=there), tl.load(square, mask=there), tl.load(weight, mask=there)
    m += (1.0 - beta1) * (g - m)
    v = beta2 * v + (1.0 - beta2) * g * g
    w -= learning * decay * w
    w -= learning / part1 * m / (tl.sqrt(v) / part2 + epsilon)
    tl.store(mean, m, mask=there)
    tl.store(square, v, mask=there)
    tl.store(weight, w, mask=there)


@triton.jit
def adamw_kernel(
    table, chunks, rate, failed, divisor, log_beta1, log_beta2, beta1, beta2, decay, epsilon,
    DIVISOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update BLOCK elements of a parameter with AdamW (Loshchilov & Hutter 2019, algorithm 2).

    m = beta1 m + (1 - beta1) g     v = beta2 v + (1 - beta2) g^2
    w = w - rate decay w - rate m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + epsilon)

    table: reads the table of AddressTables. chunks: reads (programs, 2): the row of the table, and the index
        of the first element.
    rate: reads the learning rate. failed: reads a number; if it is 1, nothing is changed.
    divisor: if DIVISOR is True, reads a number that the gradients are divided by.
    log_beta1, log_beta2: natural logarithms of beta1 and beta2.
    """
    if tl.load(failed) == 1.0:
        return
    row = tl.load(chunks + tl.program_id(0) * 2)
    first = tl.multiple_of(tl.load(chunks + tl.program_id(0) * 2 + 1), BLOCK)
    size = tl.load(table + row * 6 + 5)
    step = tl.load(_at(table, row, 4)).to(tl.float64)
    # float64: the first steps subtract a number close to 1 from 1
    part1 = (1.0 - tl.exp(step * log_beta1)).to(tl.float32)
    part2 = tl.sqrt((1.0 - tl.exp(step * log_beta2)).to(tl.float32))
    learning = tl.load(rate).to(tl.float32)
    scale = 1.0
    if DIVISOR:
        scale = tl.load(divisor)
    numbers = learning, part1, part2, scale, beta1, beta2, decay, epsilon
    if first + BLOCK <= size:  # without a mask, 16 bytes are loaded at once
        _update(table, row, first, size, numbers, BLOCK, True)
    else:
        _update(table, row, first, size, numbers, BLOCK, False)


@triton.jit
def square_sum_kernel(table, chunks, parts, BLOCK: tl.constexpr):
    """Write the sum of the squares of BLOCK elements of a gradient to parts, (programs,)."""
    row = tl.load(chunks + tl.program_id(0) * 2)
    first = tl.multiple_of(tl.load(chunks + tl.program_id(0) * 2 + 1), BLOCK)
    size = tl.load(table + row * 6 + 5)
    element = first + tl.arange(0, BLOCK)
    gradient = _at(table, row, 1) + element
    if first + BLOCK <= size:  # without a mask, 16 bytes are loaded at once
        g = tl.load(gradient)
        tl.store(parts + tl.program_id(0), tl.sum(g * g, 0))
    else:
        g = tl.load(gradient, mask=element < size, other=0.0)
        tl.store(parts + tl.program_id(0), tl.sum(g * g, 0))


@triton.jit
def clip_kernel(parts, total, failed, norm, divisor, count, limit, BLOCK: tl.constexpr):
    """Compute the norm of all gradients, and what the update needs to know about it, with one program.

    parts: reads the sums of squares, (count,). total: reads the loss.
    norm: writes the norm. divisor: writes max((norm + 1e-6) / limit, 1), which the gradients are divided by.
    failed: becomes 1 if the loss or the norm is NaN or infinite. Otherwise it is not changed.
    """
    sums = tl.zeros([BLOCK], tl.float32)
    for first in range(0, count, BLOCK):
        place = first + tl.arange(0, BLOCK)
        sums += tl.load(parts + place, mask=place < count, other=0.0)
    length = tl.sqrt(tl.sum(sums, 0))
    finite = (length < float("inf")) & (tl.abs(tl.load(total).to(tl.float32)) < float("inf"))
    tl.store(norm, length)
    tl.store(divisor, tl.maximum((length + 1e-6) / limit, 1.0))
    tl.store(failed, tl.where(finite, tl.load(failed), 1.0))


class AddressTables:
    """Make tables of addresses on a CUDA device, also while a CUDA graph is captured.

    A graph copies the table from pinned host memory at every replay. This memory cannot be allocated during
    the capture, so each call outside a capture, such as a warm-up, allocates the memory of one table ahead.
    """

    def __init__(self) -> None:
        self._spare: dict[tuple[int, int], Tensor] = {}
        self._chunks: dict[tuple[int, ...], Tensor] = {}
        self._used: list[Tensor] = []

    def make(self, group: int, *lists: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the table and the chunks of adamw_kernel.

        group: number of the parameter group.
        lists: the weights, gradients, first moments, second moments, and steps of some parameters.
        """
        table = [
            [*(each.data_ptr() for each in tensors), tensors[0].numel()]
            for tensors in zip(*lists, strict=True)
        ]
        device, sizes = lists[0][0].device, tuple(values[-1] for values in table)
        if sizes not in self._chunks:
            chunks = [(row, first) for row, size in enumerate(sizes) for first in range(0, size, BLOCK)]
            self._chunks[sizes] = torch.tensor(chunks, device=device)
        values = torch.tensor(table)
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                pinned = self._spare.pop((group, len(table)))
                self._used.append(pinned)  # the graph reads it at every replay
                values = pinned.copy_(values)
            else:
                values = values.pin_memory()
                if (group, len(table)) not in self._spare:
                    self._spare[group, len(table)] = torch.empty_like(values).pin_memory()
        return values.to(device, non_blocking=True), self._chunks[sizes]


def clip(
    tables: Sequence[tuple[Tensor, Tensor]], total: Tensor, failed: Tensor, limit: float
) -> tuple[Tensor, Tensor]:
    """Return the norm of the gradients of all tables, and the divisor that scales it down to the limit.

    total: the loss. failed: set to 1 if the loss or the norm is NaN or infinite.
    limit: can be inf; then the divisor is 1.
    """
    counts = [len(chunks) for _, chunks in tables]
    parts = torch.empty(sum(counts), device=failed.device)
    for (table, chunks), part in zip(tables, parts.split(counts), strict=True):
        square_sum_kernel[(len(chunks),)](table, chunks, part, BLOCK=BLOCK, num_warps=NORM_WARPS)
    norm, divisor = torch.empty_like(failed), torch.empty_like(failed)
    clip_kernel[(1,)](parts, total, failed, norm, divisor, len(parts), float(limit), BLOCK=4096, num_warps=8)
    return norm, divisor


def adamw(
    table: Tensor, chunks: Tensor, rate: Tensor, failed: Tensor, divisor: Tensor | None,
    betas: tuple[float, float], decay: float, epsilon: float,
) -> None:  # fmt: skip
    """Update all parameters of a table; adamw_kernel explains the arguments."""
    beta1, beta2 = betas
    numbers = math.log(beta1), math.log(beta2), beta1, beta2, decay, epsilon
    adamw_kernel[(len(chunks),)](
        table, chunks, rate, failed, failed if divisor is None else divisor, *numbers,
        DIVISOR=divisor is not None, BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip
