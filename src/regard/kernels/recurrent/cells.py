# mypy: disable-error-code="no-untyped-def"
"""One step of a recurrent cell: each kernel computes all elementwise operations between two matrix products.

The gated cell of layers/gated_cell.py has a matrix product between its gates and its candidate state. So it
needs two kernels in each pass. Here are those of the forward pass, and that of the backward pass for s~;
attended_gates.py contains the other one, and the forward pass of the gates in training.

    z, r = sigma(...)     s~ = tanh(W e + U (r * s) + C c)     next state = s + z (s~ - s)

The GRU of torch.nn needs one kernel in each pass:

    r, z = sigma(x + u)     n = tanh(x_n + r * u_n)     next state = n + z (h - n)     u = U h + b

Here s or h is the previous state, and s~ or n is the candidate state. z is the update gate, and r is the
reset gate. x is the projected input, also called the input part. u is the projected state, also called the
recurrent part. e is the input and c the context of the gated cell. The callers compute the matrix products.
Tensors are (rows, width) unless noted; gates_row is the row stride of `gates`, and so on. Widths and strides
are in units of UNIT elements, see units(). Strides that depend on the batch size or on the number of steps
are not specialised, so that other batches do not compile other kernels. Arithmetic is in float32.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["gated", "gru", "gru_backward", "mixed", "mixed_backward", "units"]

BLOCK, WARPS = 512, 4
"""Number of columns per program, and its number of warps."""


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _place(width, BLOCK: tl.constexpr):
    """Return the row and the BLOCK columns that this program computes, and which columns are < width."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return tl.program_id(0).to(tl.int64), columns, columns < width


@triton.jit
def _get(pointer, places, there):
    """Load the elements at pointer + places as float32; 0 where `there` is False."""
    return tl.load(pointer + places, mask=there, other=0.0).to(tl.float32)


@triton.jit
def gated_forward_kernel(
    gates, more, state, reset, width, gates_row, more_row, state_row, reset_row, UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the update gate z and the reset gate r of the gated cell, and r * s.

    z, r = sigma(W e + U s + C c)

    e is the input, s the previous state, and c the context.

    gates: (rows, 3 width). The first two thirds contain W e + C c for z and for r. The kernel overwrites them
        with z and r.
    more: reads U s for z and r, (rows, 2 width).
    state: reads s.
    reset: writes r * s.
    """
    width, gates_row, more_row = width * UNIT, gates_row * UNIT, more_row * UNIT
    state_row, reset_row = state_row * UNIT, reset_row * UNIT
    row, columns, there = _place(width, BLOCK)
    at, other = row * gates_row + columns, row * more_row + columns
    take = tl.sigmoid(_get(gates, at, there) + _get(more, other, there))
    keep = tl.sigmoid(_get(gates, at + width, there) + _get(more, other + width, there))
    s = _get(state, row * state_row + columns, there)
    tl.store(gates + at, take, mask=there)
    tl.store(gates + at + width, keep, mask=there)
    tl.store(reset + row * reset_row + columns, keep * s, mask=there)


@triton.jit(do_not_specialize=["part_step"])
def mixed_forward_kernel(
    parts, gates, state, after, width, part_step, parts_row, gates_row, state_row, after_row,
    UNIT: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the candidate state s~ and the next state, s + z (s~ - s), of the gated cell.

    s is the previous state, and z is the update gate.

    parts: reads PARTS tensors, which are added to the last third of the gates.
    gates: (rows, 3 width). The first third contains z. The last third contains the argument of tanh without
        the parts. The kernel overwrites it with s~.
    state: reads s.
    after: writes the next state.
    """
    width, part_step, parts_row = width * UNIT, part_step * UNIT, parts_row * UNIT
    gates_row, state_row, after_row = gates_row * UNIT, state_row * UNIT, after_row * UNIT
    row, columns, there = _place(width, BLOCK)
    at = row * gates_row + columns
    new = _get(gates, at + 2 * width, there)
    for part in tl.static_range(PARTS):
        new += _get(parts, part * part_step + row * parts_row + columns, there)
    new = _tanh(new)
    take, s = _get(gates, at, there), _get(state, row * state_row + columns, there)
    tl.store(gates + at + 2 * width, new, mask=there)
    tl.store(after + row * after_row + columns, s + take * (new - s), mask=there)


@triton.jit(do_not_specialize=["part_step", "more_row"])
def mixed_backward_kernel(
    parts, dstate, more, gates, state, dgates, before, width, part_step,
    parts_row, dstate_row, more_row, gates_row, state_row, dgates_row, before_row,
    UNIT: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Backward pass of mixed_forward_kernel, which computes the next state s + z (s~ - s).

    s is the previous state, z is the update gate, and s~ is the candidate state.

    parts, dstate, more: inputs. Their sum is the gradient of the next state. `parts` consists of PARTS
        tensors, which are added too.
    gates: reads z in the first third and s~ in the last third.
    state: reads s.
    dgates: writes the gradient of the argument of sigma in z to the first third, and the gradient of the
        argument of tanh in s~ to the last third.
    before: writes the part of the gradient of s that comes from the term (1 - z) * s of the next state.
    """
    width, part_step, parts_row = width * UNIT, part_step * UNIT, parts_row * UNIT
    dstate_row, more_row, gates_row = dstate_row * UNIT, more_row * UNIT, gates_row * UNIT
    state_row, dgates_row, before_row = state_row * UNIT, dgates_row * UNIT, before_row * UNIT
    row, columns, there = _place(width, BLOCK)
    at, d_at = row * gates_row + columns, row * dgates_row + columns
    d = _get(dstate, row * dstate_row + columns, there) + _get(more, row * more_row + columns, there)
    for part in tl.static_range(PARTS):
        d += _get(parts, part * part_step + row * parts_row + columns, there)
    take, new = _get(gates, at, there), _get(gates, at + 2 * width, there)
    s = _get(state, row * state_row + columns, there)
    tl.store(dgates + d_at, d * (new - s) * take * (1.0 - take), mask=there)
    tl.store(dgates + d_at + 2 * width, d * take * (1.0 - new * new), mask=there)
    tl.store(before + row * before_row + columns, d * (1.0 - take), mask=there)


@triton.jit(do_not_specialize=["gates_way", "state_way", "after_way", "rows"])
def gru_forward_kernel(
    gates, more, bias, state, after, width, gates_way, state_way, after_way, rows, UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute one step of several GRUs: the gates r, z and n, and the next state.

    r, z = sigma(x + u)     n = tanh(x_n + r * u_n)     next state = n + z (h - n)     u = U h + b

    h is the previous state, and x the projected input ("input part"). There are W GRUs, each with `rows`
    sequences (B).

    gates: (W, B, 3 width). Contains the input parts of r, z and n; overwritten with r, z and n.
        gates_way: its stride from one GRU to the next.
    more: (W, B, 3 width). Contains U h. The kernel overwrites the last third with u_n, the last third of u.
    bias: input, the vector b of each GRU, (W, 3 width).
    state: input, h, (W, B, width). state_way: its stride from one GRU to the next.
    after: output, the next state, (W, B, width). after_way: its stride from one GRU to the next.
    """
    width, gates_way = width * UNIT, gates_way * UNIT
    state_way, after_way = state_way * UNIT, after_way * UNIT
    row, columns, there = _place(width, BLOCK)
    way, inner = row // rows, row % rows
    at, bias_at = way * gates_way + inner * 3 * width + columns, way * 3 * width + columns
    more += row * 3 * width + columns
    reset = tl.sigmoid(_get(gates, at, there) + _get(more, 0, there) + _get(bias, bias_at, there))
    keep = _get(gates, at + width, there) + _get(more, width, there)
    keep = tl.sigmoid(keep + _get(bias, bias_at + width, there))
    fed = _get(more, 2 * width, there) + _get(bias, bias_at + 2 * width, there)
    new = _tanh(_get(gates, at + 2 * width, there) + reset * fed)
    s = _get(state, way * state_way + inner * width + columns, there)
    tl.store(gates + at, reset, mask=there)
    tl.store(gates + at + width, keep, mask=there)
    tl.store(gates + at + 2 * width, new, mask=there)
    tl.store(more + 2 * width, fed, mask=there)
    tl.store(after + way * after_way + inner * width + columns, new + keep * (s - new), mask=there)


@triton.jit(do_not_specialize=["gates_way", "state_way", "rows", "ways"])
def gru_backward_kernel(
    parts, dstate, dafter, gates, more, state, dgates, dmore, before, width, gates_way, state_way, rows, ways,
    UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Backward pass of gru_forward_kernel.

    r, z = sigma(x + u)     n = tanh(x_n + r * u_n)     next state = n + z (h - n)     u = U h + b

    h is the previous state, and x the projected input ("input part"). There are W GRUs, each with `rows`
    sequences (B).

    Inputs:
    parts, dstate, dafter: their sum is the gradient of the next state. `parts` consists of three tensors for
        each GRU, (W, 3, B, width), which are added too. The others are (W, B, width).
    gates: r, z and n, (W, B, 3 width). gates_way: its stride, and that of dgates, from one GRU to the next.
    more: u, (W, B, 3 width); only its last third, u_n, is read.
    state: h, (W, B, width). state_way: its stride from one GRU to the next.

    Outputs:
    dgates: the gradients of the input parts of r, z and n, (W, B, 3 width).
    dmore: the gradient of u, (B, W, 3 width).
    before: the part of the gradient of h that comes from the term z * h of the next state, (W, B, width).
    """
    width, gates_way, state_way = width * UNIT, gates_way * UNIT, state_way * UNIT
    row, columns, there = _place(width, BLOCK)
    way, inner = row // rows, row % rows
    place, own = inner * width + columns, row * width + columns
    at = way * gates_way + inner * 3 * width + columns
    reset, keep = _get(gates, at, there), _get(gates, at + width, there)
    new, fed = _get(gates, at + 2 * width, there), _get(more, own + (2 * row + 2) * width, there)
    s = _get(state, way * state_way + place, there)
    d = _get(dstate, own, there) + _get(dafter, own, there)
    for gate in tl.static_range(3):
        d += _get(parts, (way * 3 + gate) * rows * width + place, there)
    dnew = d * (1.0 - keep) * (1.0 - new * new)
    dkeep = d * (s - new) * keep * (1.0 - keep)
    dreset = dnew * fed * reset * (1.0 - reset)
    tl.store(dgates + at, dreset, mask=there)
    tl.store(dgates + at + width, dkeep, mask=there)
    tl.store(dgates + at + 2 * width, dnew, mask=there)
    into = dmore + (inner * ways + way) * 3 * width + columns
    tl.store(into, dreset, mask=there)
    tl.store(into + width, dkeep, mask=there)
    tl.store(into + 2 * width, dnew * reset, mask=there)
    tl.store(before + own, d * keep, mask=there)


def gated(gates: Tensor, more: Tensor, state: Tensor, reset: Tensor) -> None:
    """Compute the update gate z and the reset gate r of the gated cell, and r * s, in place.

    gates: (B, 3 width), with one third each for z, r and s~. On entry, it contains W e + C c. The first two
        thirds are overwritten with z and r.
    more: (B, 2 width), the recurrent parts of z and r.
    state, reset: (B, width), the previous state s; `reset` receives r * s.
    """
    _launch(gated_forward_kernel, state, (gates, more, state, reset))


def mixed(gates: Tensor, state: Tensor, after: Tensor, parts: Tensor | None = None) -> None:
    """Compute s~, which overwrites the last third of `gates`, and the next state, written to `after`.

    parts: (P, B, width), added to the last third of the gates before the tanh; None for none.
    """
    parts = state[None][:0] if parts is None else parts
    _launch_with_parts(mixed_forward_kernel, state, parts, (gates, state, after))


def mixed_backward(
    parts: Tensor, dstate: Tensor, more: Tensor, gates: Tensor, state: Tensor, dgates: Tensor,
) -> Tensor:  # fmt: skip
    """Backward pass of mixed(): return the gradient of the previous state that flows through (1 - z) * s.

    parts, dstate, more: the gradient of the next state is parts.sum(0) + dstate + more.
    gates: the activations z, r and s~.
    dgates: (B, 3 width), receives the gradients of z and of s~ before their activation functions.
    """
    before = torch.empty_like(state)
    tensors = (dstate, more, gates, state, dgates, before)
    _launch_with_parts(mixed_backward_kernel, state, parts, tensors)
    return before


def gru(gates: Tensor, more: Tensor, bias: Tensor, state: Tensor, after: Tensor) -> None:
    """Compute one step of W GRUs with B sequences each, in place; see gru_ways() for the equations.

    gates: (W, B, 3 M). On entry, it contains x, the input part. It is overwritten with r, z and n.
    more: (W, B, 3 M). On entry, it contains U h. On return, the last third contains u_n, which the backward
        pass needs. The other two thirds are undefined.
    bias: (W, 3 M), the bias b of each GRU.
    state, after: (W, B, M), the previous state h; `after` receives the next state.

    gates, state and after can have any stride along W; the other tensors are contiguous.
    """
    ways, rows, width = state.shape
    *sizes, unit = units((width, gates.stride(0), state.stride(0), after.stride(0)))
    gru_forward_kernel[_grid(ways * rows, width)](
        gates, more, bias, state, after, *sizes, rows, unit, BLOCK=BLOCK, num_warps=WARPS
    )


def gru_backward(
    parts: Tensor, dstate: Tensor, dafter: Tensor, gates: Tensor, more: Tensor, state: Tensor,
    dgates: Tensor, dmore: Tensor,
) -> Tensor:  # fmt: skip
    """Backward pass of gru(): return the gradient of the previous state that flows through z * h.

    parts, dstate, dafter: their sum is the gradient of the next state; parts, (3 W, B, M), is first summed
        over the 3 gates of each GRU.
    gates, more: from gru().
    dgates, dmore: (W, B, 3 M) and (B, W, 3 M), receive the gradients of x and of u. dgates has the strides of
        `gates`.
    """
    before, (ways, rows, width) = torch.empty_like(dstate), state.shape
    tensors = (parts, dstate, dafter, gates, more, state, dgates, dmore, before)
    *sizes, unit = units((width, gates.stride(0), state.stride(0)))
    gru_backward_kernel[_grid(ways * rows, width)](
        *tensors, *sizes, rows, ways, unit, BLOCK=BLOCK, num_warps=WARPS
    )
    return before


def _launch(kernel, state: Tensor, tensors: tuple[Tensor, ...]) -> None:
    """Launch a kernel with one program for each row of `state` and each block of BLOCK columns.

    The arguments of the kernel are the tensors, their width, and the row stride of each tensor.
    """
    width = state.shape[1]
    sizes = (width, *(each.stride(0) for each in tensors))
    kernel[_grid(len(state), width)](*tensors, *units(sizes), BLOCK=BLOCK, num_warps=WARPS)


def _launch_with_parts(kernel, state: Tensor, parts: Tensor, tensors: tuple[Tensor, ...]) -> None:
    """Launch a kernel as _launch() does, with `parts` (P, rows, width) as its first tensor."""
    width = state.shape[1]
    sizes = (width, *parts.stride()[:2], *(each.stride(0) for each in tensors))
    kernel[_grid(len(state), width)](
        parts, *tensors, *units(sizes), PARTS=len(parts), BLOCK=BLOCK, num_warps=WARPS
    )


def _grid(rows: int, width: int) -> tuple[int, int]:
    return rows, triton.cdiv(width, BLOCK)


def units(sizes: tuple[int, ...]) -> list[int]:
    """Return the sizes divided by 8, 4 or 1, and then this number: the largest that divides all of them.

    The kernel multiplies the sizes by the last number, a compile-time argument. The compiler then knows that
    rows begin at a multiple of 16 bytes, for example. It does not know it for a size such as 1,000, because
    it tests only whether an argument is a multiple of 16.

    >>> units((1000, 24)), units((1000, 620)), units((1000, 7))
    ([125, 3, 8], [250, 155, 4], [1000, 7, 1])
    """
    unit = next(each for each in (8, 4, 1) if not any(size % each for size in sizes))
    return [*(size // unit for size in sizes), unit]
