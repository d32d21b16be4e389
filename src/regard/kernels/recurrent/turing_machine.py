# mypy: disable-error-code="no-untyped-def"
"""Triton kernels for one step of the tape of a neural Turing machine (Graves et al. 2014), and its gradients.

layers/tape_heads.py has the equations. fast/recurrent/tape_steps.py computes the controller and the
matrix products between the kernels. There are E tapes, each with N slots of size M. A tape has H heads:
first R read heads, then the write heads. The heads of a tape have P parameters in total. One program
computes all heads of one tape. So each gradient is summed in a fixed order, and results are reproducible bit
by bit. The circular shift needs the weights of neighbouring slots: the program stores the weights, waits for
all its threads, and loads them again. Arithmetic is in float32.

Tested under Triton's interpreter (triton 3.7) and on an H200 (triton 3.6, with WARPS = 8).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["TapeLayout", "tape_step", "tape_step_backward"]

WARPS = 4
"""Number of warps per program. On an H200, 4 is faster than 8 and 16 (3.06, 4.10 and 4.18 ms for a training
step of 41 steps, 10 models and batch size 16)."""


class TapeLayout(NamedTuple):
    """The heads of a tape, and the limits of their parameters.

    reads, writes: number of read heads and of write heads.
    shifts: number of different moves that a head can choose from in one step.
    content, location: whether heads find their slots by content, and whether by location. Both can be True.
    places: the first columns of gate, beta, gamma, shift and key in the outputs of the controller.
    most_beta, most_gamma: the largest beta and gamma.
    smallest: added to the shifted weights before the logarithm.
    most_gradient: the largest absolute value of gradients of the head parameters, the weights and the slots.
    """

    reads: int
    writes: int
    shifts: int
    content: bool
    location: bool
    places: tuple[int, int, int, int, int]
    most_beta: float
    most_gamma: float
    smallest: float
    most_gradient: float


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _softplus(x):
    """Return log(1 + exp(x)). The result is precise even if it is small."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x > 0.0, x, 0.0) + tl.where(
        small < 1e-3, small * (1.0 - 0.5 * small), tl.log(1.0 + small)
    )


@triton.jit
def _softplus_slope(y, most):
    """Return the derivative of y = min(softplus(x), most): 1 - exp(-y), or 0 if y has reached `most`."""
    slope = tl.where(y < 1e-3, y * (1.0 - 0.5 * y), 1.0 - tl.exp(-y))
    return tl.where(y < most, slope, 0.0)


@triton.jit
def _at_most(x, most):
    """Return the smaller of x and `most`. Unlike with tl.minimum, the result is NaN if x is NaN."""
    return tl.where(x > most, most, x)


@triton.jit
def _clip(x, most):
    """Clip x to [-most, most]. The result is NaN if x is NaN."""
    return _at_most(tl.where(x < -most, -most, x), most)


@triton.jit
def _softmax(x, there):
    """Return the softmax of a vector, over the elements where `there` is True; 0 elsewhere."""
    x = tl.where(there, x, -float("inf"))
    power = tl.exp(x - tl.max(x, 0))
    return power / tl.sum(power, 0)


@triton.jit
def _softmax_gradient(y, dy):
    return y * (dy - tl.sum(y * dy, 0))


@triton.jit
def _length(squares):
    """Return the norm of a vector from the sum of its squares; 1 for a zero vector, since callers divide."""
    return tl.where(squares == 0.0, 1.0, tl.sqrt(squares))


@triton.jit
def _get(pointer, places, there):
    return tl.load(pointer + places, mask=there, other=0.0)


@triton.jit
def _sum(left, right, place):
    return tl.load(left + place) + tl.load(right + place)


@triton.jit
def _neighbours(pointer, slot, there, slots, move):
    """Load the elements at slot + move of a circular tape."""
    return _get(pointer, (slot + move + slots) % slots, there)


@triton.jit
def tape_forward_kernel(
    raw, bias, parts, before, memory, content, gated, logs, weights, after, reads, slots, width,
    raw_row, parts_row, reads_row, at_gate, at_beta, at_gamma, at_shift, at_key,
    READS: tl.constexpr, WRITES: tl.constexpr, SHIFTS: tl.constexpr, CONTENT: tl.constexpr,
    LOCATION: tl.constexpr, MOST_BETA: tl.constexpr, MOST_GAMMA: tl.constexpr, SMALLEST: tl.constexpr,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, MOVES: tl.constexpr,
):  # fmt: skip
    """Compute one step of E tapes: the weights of all heads, then the reads, then the writes.

    raw: (E, P), the outputs of the controller without the bias.
    bias: (P,), the bias of the outputs of the controller.
    parts: (E, P), receives the head parameters.
    before: (E, H, N), the weights of the heads at the previous step.
    memory: (E, N, M), the slots before the step.
    content, gated, logs: (E, H, N), receive w_c, w_g and log(w~ + SMALLEST): the weights by content, after
        the gate, and after the shift (see layers/tape_heads.py).
    weights: (E, H, N), receives the weights of the heads at this step.
    after: (E, N, M), receives the slots after the step.
    reads: (E, R M), receives the vectors that the R read heads have read.
    at_gate, ...: the first column of each head parameter in `parts`; see HeadLayout.slices.
    """
    HEADS: tl.constexpr = READS + WRITES
    row = tl.program_id(0).to(tl.int64)
    slot, column, move = tl.arange(0, SLOTS), tl.arange(0, WIDTH), tl.arange(0, MOVES)
    in_slots, in_width, in_moves = slot < slots, column < width, move < SHIFTS
    in_tile = in_slots[:, None] & in_width[None, :]
    tile = row * slots * width + slot[:, None] * width + column[None, :]
    mem = _get(memory, tile, in_tile)
    lengths = _length(tl.sum(mem * mem, 1))
    own, given, more = parts + row * parts_row, raw + row * raw_row, bias
    kept, added = mem, tl.zeros([SLOTS, WIDTH], tl.float32)
    for head in tl.static_range(HEADS):
        here = (row * HEADS + head) * slots
        if CONTENT:
            at = at_key + head * width + column
            key = _get(given, at, in_width) + _get(more, at, in_width)
            tl.store(own + at, key, mask=in_width)
            beta = _at_most(_softplus(_sum(given, more, at_beta + head)), MOST_BETA)
            tl.store(own + at_beta + head, beta)
            scaled = key * (beta / _length(tl.sum(key * key, 0)))
            weight = _softmax(tl.sum(mem * scaled[None, :], 1) / lengths, in_slots)
            tl.store(content + here + slot, weight, mask=in_slots)
        if LOCATION:
            mixed = _get(before + here, slot, in_slots)
            if CONTENT:
                gate = tl.sigmoid(_sum(given, more, at_gate + head))
                tl.store(own + at_gate + head, gate)
                mixed += gate * (weight - mixed)
            tl.store(gated + here + slot, mixed, mask=in_slots)
            tl.debug_barrier()
            at = at_shift + head * SHIFTS + move
            chances = _softmax(_get(given, at, in_moves) + _get(more, at, in_moves), in_moves)
            shifted = tl.zeros([SLOTS], tl.float32)
            for q in tl.static_range(SHIFTS):
                chance = tl.sum(tl.where(move == q, chances, 0.0), 0)
                shifted += chance * _neighbours(gated + here, slot, in_slots, slots, q - SHIFTS // 2)
            tl.store(own + at, chances, mask=in_moves)
            powers = tl.log(shifted + SMALLEST)
            tl.store(logs + here + slot, powers, mask=in_slots)
            gamma = _at_most(1.0 + _softplus(_sum(given, more, at_gamma + head)), MOST_GAMMA)
            tl.store(own + at_gamma + head, gamma)
            weight = _softmax(gamma * powers, in_slots)
        tl.store(weights + here + slot, weight, mask=in_slots)
        if head < READS:
            read = tl.sum(weight[:, None] * mem, 0)
            tl.store(reads + row * reads_row + head * width + column, read, mask=in_width)
        else:
            add_at = (head - READS) * width + column
            erase_at = add_at + WRITES * width
            add = _tanh(_get(given, add_at, in_width) + _get(more, add_at, in_width))
            erase = tl.sigmoid(_get(given, erase_at, in_width) + _get(more, erase_at, in_width))
            tl.store(own + add_at, add, mask=in_width)
            tl.store(own + erase_at, erase, mask=in_width)
            kept -= kept * weight[:, None] * erase[None, :]
            added += weight[:, None] * add[None, :]
    tl.store(after + tile, kept + added, mask=in_tile)


@triton.jit
def _erased(parts, weights, slot, column, slots, width, head, READS: tl.constexpr, WRITES: tl.constexpr):
    """Return w(i) e, the fraction of each element of a tape that a write head erases."""
    weight = _get(weights + head * slots, slot, slot < slots)
    return weight[:, None] * _get(parts, (WRITES + head - READS) * width + column, column < width)[None, :]


@triton.jit
def _location_backward(
    gamma, shift, gated, logs, scratch, dshift, weight, dweight, slots, MOST: tl.constexpr,
    SHIFTS: tl.constexpr, SLOTS: tl.constexpr, MOVES: tl.constexpr,
):  # fmt: skip
    """Backward pass of the shift and the sharpening of one head. Return the gradients of gamma and of w_g.

    gamma, shift, gated, logs: pointers to the values of this head.
    scratch: memory for N elements, which this function overwrites. It may be the memory from which the caller
        has loaded `dweight`.
    dshift: receives the gradient of the shift before its softmax.
    weight, dweight: w and its gradient.
    MOST: the largest absolute value of the gradient of the shift.
    """
    slot, move = tl.arange(0, SLOTS), tl.arange(0, MOVES)
    in_slots, in_moves = slot < slots, move < SHIFTS
    powers, dscaled = _get(logs, slot, in_slots), _softmax_gradient(weight, dweight)
    dshifted = dscaled * tl.load(gamma) * tl.exp(-powers)
    tl.debug_barrier()  # all threads have loaded dweight
    tl.store(scratch + slot, dshifted, mask=in_slots)
    tl.debug_barrier()
    chances = _get(shift, move, in_moves)
    dchances, dgated = tl.zeros([MOVES], tl.float32), tl.zeros([SLOTS], tl.float32)
    for q in tl.static_range(SHIFTS):
        chance = tl.sum(tl.where(move == q, chances, 0.0), 0)
        moved = _neighbours(gated, slot, in_slots, slots, q - SHIFTS // 2)
        dchances += tl.where(move == q, tl.sum(moved * dshifted, 0), 0.0)
        dgated += chance * _neighbours(scratch, slot, in_slots, slots, SHIFTS // 2 - q)
    tl.store(dshift + move, _clip(_softmax_gradient(chances, dchances), MOST), mask=in_moves)
    return tl.sum(dscaled * powers, 0), dgated


@triton.jit
def tape_backward_kernel(
    parts, before, memory, content, gated, logs, weights, dreads, dweights, dmemory, dparts, slots, width,
    parts_row, dreads_row, dparts_row, at_gate, at_beta, at_gamma, at_shift, at_key,
    READS: tl.constexpr, WRITES: tl.constexpr, SHIFTS: tl.constexpr, CONTENT: tl.constexpr,
    LOCATION: tl.constexpr, MOST_BETA: tl.constexpr, MOST_GAMMA: tl.constexpr, MOST: tl.constexpr,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, MOVES: tl.constexpr,
):  # fmt: skip
    """Backward pass of tape_forward_kernel. It clips gradients to [-MOST, MOST].

    parts: (E, P), the head parameters that the forward pass has stored.
    dreads: (E, R M), the gradient of `reads`.
    dweights: (E, H, N), contains the gradient of `weights` from later steps; receives the gradient of
        `before`.
    dmemory: (E, N, M), contains the gradient of `after`; receives the gradient of `memory`.
    dparts: (E, P), receives the gradient of the outputs of the controller.
    """
    HEADS: tl.constexpr = READS + WRITES
    row = tl.program_id(0).to(tl.int64)
    slot, column = tl.arange(0, SLOTS), tl.arange(0, WIDTH)
    in_slots, in_width = slot < slots, column < width
    in_tile = in_slots[:, None] & in_width[None, :]
    tile = row * slots * width + slot[:, None] * width + column[None, :]
    mem, dafter = _get(memory, tile, in_tile), _clip(_get(dmemory, tile, in_tile), MOST)
    lengths = _length(tl.sum(mem * mem, 1))
    own, down, every = parts + row * parts_row, dparts + row * dparts_row, weights + row * HEADS * slots
    dmem = dafter
    for head in tl.static_range(READS, HEADS):
        dmem -= dmem * _erased(own, every, slot, column, slots, width, head, READS, WRITES)
    inward = tl.zeros([SLOTS], tl.float32)
    for head in tl.static_range(HEADS):
        here = (row * HEADS + head) * slots
        weight = _get(weights + here, slot, in_slots)
        dweight = _clip(_get(dweights + here, slot, in_slots), MOST)
        if head < READS:
            dread = _get(dreads + row * dreads_row, head * width + column, in_width)
            dweight += tl.sum(mem * dread[None, :], 1)
            dmem += weight[:, None] * dread[None, :]
        else:
            add_at = (head - READS) * width + column
            erase_at = add_at + WRITES * width
            add, erase = _get(own, add_at, in_width), _get(own, erase_at, in_width)
            others = dafter * mem
            for other in tl.static_range(READS, HEADS):
                if other != head:
                    others -= others * _erased(own, every, slot, column, slots, width, other, READS, WRITES)
            dadd, derase = tl.sum(weight[:, None] * dafter, 0), -tl.sum(weight[:, None] * others, 0)
            dweight += tl.sum(dafter * add[None, :] - others * erase[None, :], 1)
            tl.store(down + add_at, _clip(dadd * (1.0 - add * add), MOST), mask=in_width)
            tl.store(down + erase_at, _clip(derase * erase * (1.0 - erase), MOST), mask=in_width)
        dbefore = tl.zeros([SLOTS], tl.float32)
        if LOCATION:
            at, moves = at_gamma + head, at_shift + head * SHIFTS
            dgamma, dbefore = _location_backward(
                own + at, own + moves, gated + here, logs + here, dweights + here, down + moves, weight,
                dweight, slots, MOST, SHIFTS, SLOTS, MOVES,
            )  # fmt: skip
            slope = _softplus_slope(tl.load(own + at) - 1.0, MOST_GAMMA - 1.0)
            tl.store(down + at, _clip(dgamma * slope, MOST))
            dweight = dbefore
        if CONTENT:
            found = _get(content + here, slot, in_slots)
            if LOCATION:
                gate, change = tl.load(own + at_gate + head), found - _get(before + here, slot, in_slots)
                dgate = tl.sum(change * dbefore, 0) * gate * (1.0 - gate)
                tl.store(down + at_gate + head, _clip(dgate, MOST))
                dweight = dbefore * gate
                dbefore -= dweight
            divided = _softmax_gradient(found, dweight) / lengths
            at = at_key + head * width + column
            beta, key = tl.load(own + at_beta + head), _get(own, at, in_width)
            size = _length(tl.sum(key * key, 0))
            unit, dkey = key / size, tl.sum(divided[:, None] * mem, 0)
            dbeta = tl.sum(unit * dkey, 0)
            tl.store(down + at_beta + head, _clip(dbeta * _softplus_slope(beta, MOST_BETA), MOST))
            tl.store(down + at, _clip((dkey - unit * dbeta) * beta / size, MOST), mask=in_width)
            inward += divided * tl.sum(mem * unit[None, :], 1) * beta / (lengths * lengths)
            dmem += divided[:, None] * (unit * beta)[None, :]
        tl.debug_barrier()
        tl.store(dweights + here + slot, dbefore, mask=in_slots)
    tl.store(dmemory + tile, dmem - mem * inward[:, None], mask=in_tile)


def tape_step(
    layout: TapeLayout, raw: Tensor, bias: Tensor, parts: Tensor, before: Tensor, memory: Tensor,
    content: Tensor, gated: Tensor, logs: Tensor, weights: Tensor, after: Tensor, reads: Tensor,
) -> None:  # fmt: skip
    """Compute one step of E tapes; the arguments are those of tape_forward_kernel, without strides."""
    tensors = raw, bias, parts, before, memory, content, gated, logs, weights, after, reads
    rows = raw.stride(0), parts.stride(0), reads.stride(0)
    tape_forward_kernel[(len(memory),)](
        *tensors,
        *memory.shape[1:],
        *rows,
        *layout.places,
        SMALLEST=layout.smallest,
        **_constants(layout, memory),
    )


def tape_step_backward(
    layout: TapeLayout, parts: Tensor, before: Tensor, memory: Tensor, content: Tensor, gated: Tensor,
    logs: Tensor, weights: Tensor, dreads: Tensor, dweights: Tensor, dmemory: Tensor, dparts: Tensor,
) -> None:  # fmt: skip
    """Backward pass of tape_step(); the arguments are those of tape_backward_kernel, without strides."""
    tensors = parts, before, memory, content, gated, logs, weights, dreads, dweights, dmemory, dparts
    rows = parts.stride(0), dreads.stride(0), dparts.stride(0)
    tape_backward_kernel[(len(memory),)](
        *tensors, *memory.shape[1:], *rows, *layout.places, MOST=layout.most_gradient,
        **_constants(layout, memory),
    )  # fmt: skip


def _constants(layout: TapeLayout, memory: Tensor) -> dict[str, Any]:
    """Return the compile-time constants of the kernels."""
    slots, width = memory.shape[1:]
    return {
        "READS": layout.reads, "WRITES": layout.writes, "SHIFTS": layout.shifts,
        "CONTENT": layout.content, "LOCATION": layout.location,
        "MOST_BETA": layout.most_beta, "MOST_GAMMA": layout.most_gamma,
        "SLOTS": triton.next_power_of_2(slots), "WIDTH": triton.next_power_of_2(width),
        "MOVES": triton.next_power_of_2(layout.shifts), "num_warps": WARPS,
    }  # fmt: skip
