# mypy: disable-error-code="no-untyped-def"
"""Triton kernels for one step of an LSTMN layer (long short-term memory-network, Cheng et al. 2016).

The tapes are the hidden states h_j and cell states c_j of earlier steps j, to which the layer attends. There
are two kernels, each with a backward pass:

    read    a_j = v . tanh(k_j + q),  [h~; c~] = sum_j softmax(a)_j [h_j; c_j]
    cell    i, f, o = sigma(...), c^ = tanh(...)     c = f * c~ + i * c^     h = o * tanh(c)

k_j = W_h h_j are the keys on the tapes, q is the query, and v is a learned vector. i, f and o are the gates;
c^ is the new content of the cell. fast/recurrent/lstmn.py computes the matrix products between the kernels.
One program reads the tapes of one sequence. So each gradient is summed in a fixed order, and results are
reproducible bit by bit. The scores a_j and their log-sum-exp are stored; the backward pass recomputes the
weights and the tanh. Arithmetic is in float32.

Tested under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["cell", "cell_backward", "read", "read_backward"]

BLOCK = 256
"""Number of elements of the state per program, in cell_forward_kernel and cell_backward_kernel."""

TILE = 16384
"""Maximum number of elements of a tile of keys or values in read(). In read_backward(), tiles are half as
large, because the gradients of keys and values are loaded too."""


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _get(pointer, places, there):
    """Load the elements at pointer + places as float32; 0 where `there` is False."""
    return tl.load(pointer + places, mask=there, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["first", "last"])
def read_forward_kernel(
    query, keys, values, vector, scores, totals, reads, first, last, hidden, size,
    query_row, keys_batch, keys_row, values_batch, values_row, scores_row, totals_row, reads_row,
    STEPS: tl.constexpr, HIDDEN: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Compute the attention of one time step of an LSTMN to earlier time steps, with an online softmax.

    Each program computes one sequence. The score is additive.

    query: (B, hidden), the query q of this time step.
    keys: (B, S, hidden), the keys k_j of the time steps j.
    values: (B, S, size), hidden state and cell state [h_j; c_j] of the time steps j.
    vector: (hidden,), v of the score a_j = v . tanh(k_j + q).
    scores: (B, S), receives a_j.
    totals: (B,), receives the log-sum-exp of the scores.
    reads: (B, size), receives [h~; c~] = sum_j softmax(a)_j [h_j; c_j], or 0 if first = last.
    first, last: the keys and values of the time steps `first` to last - 1 are read, STEPS at a time.
    """
    row = tl.program_id(0).to(tl.int64)
    at_key, at_value = tl.arange(0, HIDDEN), tl.arange(0, SIZE)
    in_key, in_value = at_key < hidden, at_value < size
    q, v = _get(query, row * query_row + at_key, in_key), _get(vector, at_key, in_key)
    top, total = -float("inf"), 0.0
    read = tl.zeros([SIZE], tl.float32)
    for begin in range(first, last, STEPS):
        step = begin + tl.arange(0, STEPS).to(tl.int64)
        there = step < last
        key_at = row * keys_batch + step[:, None] * keys_row + at_key[None, :]
        key = _get(keys, key_at, there[:, None] & in_key[None, :])
        score = tl.sum(_tanh(key + q[None, :]) * v[None, :], 1)
        tl.store(scores + row * scores_row + step, score, mask=there)
        score = tl.where(there, score, -float("inf"))
        higher = tl.maximum(top, tl.max(score, 0))
        weight, kept = tl.exp(score - higher), tl.exp(top - higher)
        value_at = row * values_batch + step[:, None] * values_row + at_value[None, :]
        value = _get(values, value_at, there[:, None] & in_value[None, :])
        read = read * kept + tl.sum(weight[:, None] * value, 0)
        total = total * kept + tl.sum(weight, 0)
        top = higher
    total = tl.where(last > first, total, 1.0)
    tl.store(totals + row * totals_row, top + tl.log(total))
    tl.store(reads + row * reads_row + at_value, read / total, mask=in_value)


@triton.jit(do_not_specialize=["first", "last"])
def read_backward_kernel(
    query, keys, values, vector, scores, totals, reads, dreads, dkeys, dvalues, dquery, dvector,
    first, last, hidden, size,
    query_row, keys_batch, keys_row, values_batch, values_row, scores_row, totals_row, reads_row,
    dreads_row, dquery_row, dvector_row,
    STEPS: tl.constexpr, HIDDEN: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Backward pass of read_forward_kernel.

    dreads: (B, size), the gradient of `reads`.
    dkeys: a tensor with the strides of `keys`, to which the gradient of `keys` is added.
    dvalues: a tensor with the strides of `values`, to which the gradient of `values` is added.
    dquery: (B, hidden), receives the gradient of `query`.
    dvector: (B, hidden), one row per sequence, to which the gradient of `vector` is added.
    """
    row = tl.program_id(0).to(tl.int64)
    at_key, at_value = tl.arange(0, HIDDEN), tl.arange(0, SIZE)
    in_key, in_value = at_key < hidden, at_value < size
    q, v = _get(query, row * query_row + at_key, in_key), _get(vector, at_key, in_key)
    dread = _get(dreads, row * dreads_row + at_value, in_value)
    mean = tl.sum(dread * _get(reads, row * reads_row + at_value, in_value), 0)
    lse = tl.load(totals + row * totals_row).to(tl.float32)
    into_query, into_vector = tl.zeros([HIDDEN], tl.float32), tl.zeros([HIDDEN], tl.float32)
    for begin in range(first, last, STEPS):
        step = begin + tl.arange(0, STEPS).to(tl.int64)
        there = step < last
        score = tl.load(scores + row * scores_row + step, mask=there, other=-float("inf")).to(tl.float32)
        weight = tl.exp(score - lse)
        value_at = row * values_batch + step[:, None] * values_row + at_value[None, :]
        value_there = there[:, None] & in_value[None, :]
        dscore = weight * (tl.sum(_get(values, value_at, value_there) * dread[None, :], 1) - mean)
        dvalue = _get(dvalues, value_at, value_there) + weight[:, None] * dread[None, :]
        tl.store(dvalues + value_at, dvalue, mask=value_there)
        key_at = row * keys_batch + step[:, None] * keys_row + at_key[None, :]
        key_there = there[:, None] & in_key[None, :]
        bent = _tanh(_get(keys, key_at, key_there) + q[None, :])
        into_vector += tl.sum(dscore[:, None] * bent, 0)
        dkey = dscore[:, None] * v[None, :] * (1.0 - bent * bent)
        into_query += tl.sum(dkey, 0)
        tl.store(dkeys + key_at, _get(dkeys, key_at, key_there) + dkey, mask=key_there)
    vector_at = row * dvector_row + at_key
    tl.store(dquery + row * dquery_row + at_key, into_query, mask=in_key)
    tl.store(dvector + vector_at, _get(dvector, vector_at, in_key) + into_vector, mask=in_key)


@triton.jit
def cell_forward_kernel(
    gates, reads, added, values, width, gates_row, reads_row, added_row, values_row,
    ADDED: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gates, the cell state c and the hidden state h of one LSTMN step.

    gates: (B, 4 width). Contains i, f, o and c^ before the sigmoid or tanh, and receives them after the
        sigmoid or tanh. If DEPTH is True, (B, 5 width), with one more gate, r, at the end.
    reads: (B, 2 width), [h~; c~], the result of read_forward_kernel.
    added: (B, width), used if ADDED is True. `added`, or r * added if DEPTH is True, is added to c.
    values: (B, 2 width), receives [h; c].
    """
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there, at = columns < width, row * gates_row + columns
    take = tl.sigmoid(_get(gates, at, there))
    forget = tl.sigmoid(_get(gates, at + width, there))
    show = tl.sigmoid(_get(gates, at + 2 * width, there))
    new = _tanh(_get(gates, at + 3 * width, there))
    c = forget * _get(reads, row * reads_row + width + columns, there) + take * new
    if ADDED:
        more = _get(added, row * added_row + columns, there)
        if DEPTH:
            depth = tl.sigmoid(_get(gates, at + 4 * width, there))
            tl.store(gates + at + 4 * width, depth, mask=there)
            more = more * depth
        c += more
    tl.store(gates + at, take, mask=there)
    tl.store(gates + at + width, forget, mask=there)
    tl.store(gates + at + 2 * width, show, mask=there)
    tl.store(gates + at + 3 * width, new, mask=there)
    into = values + row * values_row + columns
    tl.store(into, show * _tanh(c), mask=there)
    tl.store(into + width, c, mask=there)


@triton.jit
def cell_backward_kernel(
    gates, reads, values, dvalues, dgates, dreads, added, dadded, width,
    gates_row, reads_row, values_row, dvalues_row, dgates_row, dreads_row, added_row, dadded_row,
    ADDED: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Backward pass of cell_forward_kernel.

    gates: the gates after their sigmoid or tanh.
    dvalues: (B, 2 width), the gradient of [h; c].
    dgates: receives the gradient of the gates before their sigmoid or tanh.
    dreads: (B, 2 width), its second half receives the gradient of c~.
    dadded: (B, width), receives the gradient of `added` if ADDED is True.
    """
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there, at = columns < width, row * gates_row + columns
    take, forget = _get(gates, at, there), _get(gates, at + width, there)
    show, new = _get(gates, at + 2 * width, there), _get(gates, at + 3 * width, there)
    bent = _tanh(_get(values, row * values_row + width + columns, there))
    dh = _get(dvalues, row * dvalues_row + columns, there)
    dc = _get(dvalues, row * dvalues_row + width + columns, there) + dh * show * (1.0 - bent * bent)
    into = dgates + row * dgates_row + columns
    past = _get(reads, row * reads_row + width + columns, there)
    tl.store(into, dc * new * take * (1.0 - take), mask=there)
    tl.store(into + width, dc * past * forget * (1.0 - forget), mask=there)
    tl.store(into + 2 * width, dh * bent * show * (1.0 - show), mask=there)
    tl.store(into + 3 * width, dc * take * (1.0 - new * new), mask=there)
    tl.store(dreads + row * dreads_row + width + columns, dc * forget, mask=there)
    if ADDED:
        more = dc
        if DEPTH:
            depth = _get(gates, at + 4 * width, there)
            other = _get(added, row * added_row + columns, there)
            tl.store(into + 4 * width, dc * other * depth * (1.0 - depth), mask=there)
            more = dc * depth
        tl.store(dadded + row * dadded_row + columns, more, mask=there)


def read(
    query: Tensor, keys: Tensor, values: Tensor, vector: Tensor, first: int, last: int, scores: Tensor,
    totals: Tensor, reads: Tensor,
) -> None:  # fmt: skip
    """Launch read_forward_kernel, which explains the arguments."""
    tensors = query, keys, values, vector, scores, totals, reads
    steps = _strides(query, keys, values, scores, totals, reads)
    _launch(read_forward_kernel, tensors, first, last, steps, TILE)


def read_backward(
    query: Tensor, keys: Tensor, values: Tensor, vector: Tensor, first: int, last: int, scores: Tensor,
    totals: Tensor, reads: Tensor, dreads: Tensor, dkeys: Tensor, dvalues: Tensor, dquery: Tensor,
    dvector: Tensor,
) -> None:  # fmt: skip
    """Launch read_backward_kernel, which explains the arguments."""
    assert dkeys.stride() == keys.stride() and dvalues.stride() == values.stride()
    tensors = query, keys, values, vector, scores, totals, reads, dreads, dkeys, dvalues, dquery, dvector
    steps = _strides(query, keys, values, scores, totals, reads, dreads, dquery, dvector)
    _launch(read_backward_kernel, tensors, first, last, steps, TILE // 2)


def cell(gates: Tensor, reads: Tensor, added: Tensor | None, values: Tensor) -> None:
    """Launch cell_forward_kernel, which explains the arguments. added: None to add nothing."""
    width = reads.shape[1] // 2
    tensors = gates, reads, reads if added is None else added, values
    depth = gates.shape[1] > 4 * width
    cell_forward_kernel[(len(reads), triton.cdiv(width, BLOCK))](
        *tensors, width, *(each.stride(0) for each in tensors),
        ADDED=added is not None, DEPTH=depth, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip


def cell_backward(
    gates: Tensor, reads: Tensor, values: Tensor, dvalues: Tensor, dgates: Tensor, dreads: Tensor,
    added: Tensor | None, dadded: Tensor | None,
) -> None:  # fmt: skip
    """Launch cell_backward_kernel, which explains the arguments."""
    width = reads.shape[1] // 2
    depth = gates.shape[1] > 4 * width
    if depth and added is None:
        dgates[:, 4 * width :] = 0.0
    both = (reads, reads) if added is None or dadded is None else (added, dadded)
    tensors = gates, reads, values, dvalues, dgates, dreads, *both
    cell_backward_kernel[(len(reads), triton.cdiv(width, BLOCK))](
        *tensors, width, *(each.stride(0) for each in tensors),
        ADDED=added is not None, DEPTH=depth, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip


def _strides(*tensors: Tensor) -> list[int]:
    """Return the strides of all tensors in one list, as arguments of a kernel.

    The last stride of each tensor is not included, except for tensors with one dimension.
    """
    return [stride for each in tensors for stride in each.stride()[: max(each.dim() - 1, 1)]]


def _launch(
    kernel, tensors: tuple[Tensor, ...], first: int, last: int, strides: list[int], most: int
) -> None:
    """Launch read_forward_kernel or read_backward_kernel with one program for each sequence.

    most: maximum number of elements in a tile of keys or values; it limits STEPS, the rows of the tile.
    """
    query, _, values, *_ = tensors
    hidden, size = query.shape[1], values.shape[2]
    tile = max(triton.next_power_of_2(hidden), triton.next_power_of_2(size))
    kernel[(len(query),)](
        *tensors, first, last, hidden, size, *strides,
        STEPS=min(max(most // tile, 1), 16), HIDDEN=triton.next_power_of_2(hidden),
        SIZE=triton.next_power_of_2(size), num_warps=8,
    )  # fmt: skip
