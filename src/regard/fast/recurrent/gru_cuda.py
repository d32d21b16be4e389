"""Run the directions of a GRU over padded sequences at the same time, with a custom backward pass.

The equations are those of torch.nn.GRU. The inputs are put in the order of the steps of each direction: the
backward direction reads each sequence from its last token to its first, and then the padding. Each step
computes one batched matrix product for both directions. The backward pass computes the gradients of the
weights after its last step, with one matrix product. Under autocast, all of this runs in the autocast dtype.
The GRU of cuDNN is not used, because under autocast it computes in float16, in which small gradients
underflow.

There are W directions, B sequences and S steps. I is the size of the inputs, M the width of the states, and
G = 3 M the size of the gates r, z, n together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.dimensions import autocast_on
from regard.fast.joint_linear import column_sums, in_aligned_rows, product_in_float32

__all__ = ["gru_over_padding"]


def gru_over_padding(
    x_BSI: Tensor, lengths: Tensor, weights: Sequence[Sequence[Tensor]]
) -> tuple[Tensor, tuple[Tensor]]:
    """Return the states of all directions (B, S, W M), which are 0 on padding, and the last ones, (B, W, M).

    The initial states are zero.

    r = sigma(x_r + u_r),  z = sigma(x_z + u_z),  n = tanh(x_n + r * u_n)
    h = (1 - z) * n + z * h_before,  where x = W_ih input + b_ih and u = W_hh h_before + b_hh

    x_BSI: the inputs, padded at the end.
    lengths: (B,), number of tokens of each sequence.
    weights: weight_ih, weight_hh, bias_ih and bias_hh of torch.nn.GRU, for each direction.
    """
    device = x_BSI.device.type
    dtype = torch.get_autocast_dtype(device) if autocast_on(device) else x_BSI.dtype
    with torch.autocast(device, enabled=False):
        states, last = _Directions.apply(x_BSI, lengths, dtype, *(each for own in weights for each in own))
    return states, (last,)


class _Directions(torch.autograd.Function):
    """Forward and backward pass of gru_over_padding()."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, lengths: Tensor, dtype: torch.dtype, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        (batch, steps, _), ways, width = x.shape, len(weights) // 4, weights[1].shape[1]
        step_WBS, inside_BS = _steps_of_positions(lengths, steps, ways)
        sequence_B1, way_W11 = (torch.arange(size, device=x.device)[:, None] for size in (batch, ways))
        way_W11 = way_W11[..., None]
        # The position of a step is computed like the step of a position.
        row_WSB = (sequence_B1 * steps + step_WBS).transpose(1, 2)
        x_WRI = _rows(in_aligned_rows((x,), dtype), row_WSB).flatten(1, 2)
        of_input_WGI = torch.stack([in_aligned_rows((each,), dtype) for each in weights[::4]])
        weight_WGM, bias_WG, more_bias_WG = (
            weights[at].new_empty(ways, *weights[at].shape, dtype=dtype) for at in (1, 2, 3)
        )
        copies = [each for pair in zip(weight_WGM, bias_WG, more_bias_WG, strict=True) for each in pair]
        torch._foreach_copy_(copies, [each for at, each in enumerate(weights) if at % 4])
        gates_WSBG = x_WRI.new_empty(ways, steps, batch, 3 * width)
        for way, gates in enumerate(gates_WSBG):
            torch.addmm(bias_WG[way], x_WRI[way], of_input_WGI[way].T, out=gates.flatten(0, 1))
        states_WSBM, more_SWBG = forward_steps(gates_WSBG, weight_WGM, more_bias_WG)
        # states_WSBM begins with the initial state: step s is at s + 1. The padding reads row 0, which is 0.
        state_WBS = (way_W11 * (steps + 1) + step_WBS + 1) * batch + sequence_B1
        state_BSW = torch.where(inside_BS, state_WBS, 0).permute(1, 2, 0)
        last_BW = ((way_W11[:, 0] * (steps + 1) + lengths) * batch + sequence_B1[:, 0]).T
        saved = (
            x_WRI,
            of_input_WGI,
            weight_WGM,
            row_WSB,
            step_WBS,
            lengths,
            gates_WSBG,
            more_SWBG,
            states_WSBM,
        )
        ctx.save_for_backward(*saved)
        ctx.shape, ctx.dtypes = x.shape, (x.dtype, *(each.dtype for each in weights))
        return _rows(states_WSBM, state_BSW).flatten(2), _rows(states_WSBM, last_BW)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dstates: Tensor, dlast: Tensor) -> tuple[Tensor | None, ...]:
        x_WRI, of_input_WGI, weight_WGM, row_WSB, step_WBS, lengths, *buffers = ctx.saved_tensors
        (batch, steps, inputs), (ways, _, width) = ctx.shape, weight_WGM.shape
        way_W1, sequence_B = (torch.arange(size, device=lengths.device) for size in (ways, batch))
        way_W1 = way_W1[:, None]
        row_SWB = (row_WSB * ways + way_W1[..., None]).transpose(0, 1)
        dstates_SWBM = _rows(dstates.reshape(-1, width), row_SWB)
        step_S1 = torch.arange(steps, device=lengths.device)[:, None]
        dstates_SWBM *= (step_S1 < lengths)[:, None, :, None].to(dstates.dtype)
        last_WB = ((lengths - 1) * ways + way_W1) * batch + sequence_B
        dstates_SWBM.view(-1, width).index_add_(0, last_WB.T.flatten(), dlast.reshape(-1, width))
        dgates_WSBG, dmore_SBWG = backward_steps(dstates_SWBM, weight_WGM, *buffers)
        dgates_WRG = dgates_WSBG.flatten(1, 2)
        input_WBS = (way_W1[..., None] * steps + step_WBS) * batch + sequence_B[:, None]
        dx_WBSI = _rows(torch.bmm(dgates_WRG, of_input_WGI), input_WBS)[..., :inputs]
        dof_input_WGI = product_in_float32(dgates_WRG.transpose(1, 2), x_WRI)[..., :inputs]
        dmore_WGR = dmore_SBWG.flatten(0, 1).permute(1, 2, 0)
        dweight_WGM = product_in_float32(dmore_WGR, buffers[2][:, :-1].flatten(1, 2))
        dbias_WG = column_sums(dgates_WRG)
        # The gradients of both biases differ only for the gate n.
        dnew_WM = column_sums(dmore_SBWG[..., 2 * width :].flatten(0, 1).transpose(0, 1))
        dmore_bias_WG = torch.cat((dbias_WG[:, : 2 * width], dnew_WM), 1)
        of_weights = zip(dof_input_WGI, dweight_WGM, dbias_WG, dmore_bias_WG, strict=True)
        dx, *dtypes = ctx.dtypes
        gradients = zip((each for own in of_weights for each in own), dtypes, strict=True)
        return dx_WBSI.sum(0, dtype=dx), None, None, *(each.to(dtype) for each, dtype in gradients)


def _steps_of_positions(lengths: Tensor, steps: int, ways: int) -> tuple[Tensor, Tensor]:
    """Return the step at which each direction reads each position, (W, B, S), and what is no padding, (B, S).

    The second direction reads each sequence from its last token to its first, and then the padding.
    """
    position_S = torch.arange(steps, device=lengths.device)
    inside_BS = position_S < lengths[:, None]
    reversed_BS = torch.where(inside_BS, lengths[:, None] - 1 - position_S, position_S)
    return torch.stack((position_S.expand_as(reversed_BS), reversed_BS)[:ways]), inside_BS


def _rows(table: Tensor, index: Tensor) -> Tensor:
    """Return the rows of a table (..., C) with these numbers: a tensor (*index.shape, C)."""
    rows = table.view(-1, table.shape[-1]).index_select(0, index.flatten())
    return rows.view(*index.shape, -1)


def forward_steps(gates_WSBG: Tensor, weight_WGM: Tensor, bias_WG: Tensor) -> tuple[Tensor, Tensor]:
    """Run all steps; return the states (W, S + 1, B, M), with the initial states, and u, (S, W, B, 3 M).

    gates_WSBG: the input part of the gates, overwritten with the activations r, z, n.
    """
    from regard.kernels.recurrent import cells

    ways, steps, rows, size = gates_WSBG.shape
    states_WSBM = gates_WSBG.new_empty(ways, steps + 1, rows, size // 3)
    states_WSBM[:, 0] = 0.0
    more_SWBG = gates_WSBG.new_empty(steps, ways, rows, size)
    turned_WMG, states, gates = weight_WGM.transpose(1, 2), states_WSBM.unbind(1), gates_WSBG.unbind(1)
    for t in range(steps):
        torch.bmm(states[t], turned_WMG, out=more_SWBG[t])
        cells.gru(gates[t], more_SWBG[t], bias_WG, states[t], states[t + 1])
    return states_WSBM, more_SWBG


def backward_steps(
    dstates_SWBM: Tensor, weight_WGM: Tensor, gates_WSBG: Tensor, more_SWBG: Tensor, states_WSBM: Tensor
) -> tuple[Tensor, Tensor]:
    """Backward pass of forward_steps(), without the gradients of the weights.

    Returns the gradients of the input part of the gates, (W, S, B, 3 M), and of u, (S, B, W, 3 M).
    """
    from regard.kernels.recurrent import cells

    steps, ways, rows, width = dstates_SWBM.shape
    # There is a separate product with U for each gate of each GRU, Q = 3 W, so that more of the device works
    # in parallel. The next iteration adds the three products of a GRU.
    dmore_SBWG = gates_WSBG.new_empty(steps, rows, ways, 3 * width)
    weight_QMM = weight_WGM.unflatten(1, (3, -1)).flatten(0, 1)
    dgates_WSBG, states = torch.empty_like(gates_WSBG), states_WSBM.unbind(1)
    gates, dgates = gates_WSBG.unbind(1), dgates_WSBG.unbind(1)
    d_WBM, parts_QBM = torch.zeros_like(dstates_SWBM[0]), gates_WSBG.new_zeros(3 * ways, rows, width)
    for t in reversed(range(steps)):
        buffers = gates[t], more_SWBG[t], states[t], dgates[t], dmore_SBWG[t]
        d_WBM = cells.gru_backward(parts_QBM, d_WBM, dstates_SWBM[t], *buffers)
        if t:
            parts_QBM = torch.bmm(dmore_SBWG[t].view(rows, 3 * ways, width).transpose(0, 1), weight_QMM)
    return dgates_WSBG, dmore_SBWG
