"""A bidirectional GRU over padded sequences in training, with few kernels besides its steps.

One copy puts the inputs of each direction in the order of its steps: for the backward direction, from the
last token of each sequence to the first. The gates, which are larger, are then computed in this order.
layers/gru.py contains the equations and the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.dimensions import autocast_on
from regard.kernels.choice import by_kernel
from regard.layers.aligned_linear import ALIGNMENT, fill_columns, first_columns
from regard.layers.gru import backward_steps, forward_steps, weight_gradients
from regard.layers.joint_linear import column_sums, product_in_float32

__all__ = ["add_inputs", "bidirectional_gru", "order_inputs", "reorder"]


def bidirectional_gru(
    x: Tensor, lengths: Tensor, weights: Sequence[Sequence[Tensor]]
) -> tuple[Tensor, Tensor]:
    """Return the states of both directions, (B, S, 2 M), which are 0 on padding. The initial states are 0.

    Also returns the state of the backward direction at the first position, (B, M). It is a separate result,
    because the backward pass of a slice of the states would take several kernels.

    x: (B, S, input_size), padded at the end. lengths: number of tokens of each sequence, (B,).
    weights: weight_ih, weight_hh, bias_ih and bias_hh of torch.nn.GRU, for each direction.

    >>> layer, x = torch.nn.GRU(3, 4, batch_first=True, bidirectional=True), torch.randn(2, 5, 3)
    >>> states, _ = bidirectional_gru(x, torch.tensor([5, 5]), layer.all_weights)
    >>> torch.allclose(states, layer(x)[0], atol=1e-6)
    True
    """
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if autocast_on(device) else x.dtype
    with torch.autocast(device, enabled=False):
        return _Both.apply(x, lengths, dtype, *weights[0], *weights[1])


class _Both(torch.autograd.Function):
    """Forward and backward pass of bidirectional_gru(). gru.py explains the letters of the shapes; W = 2."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, lengths: Tensor, dtype: torch.dtype, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        (batch, steps, inputs), width = x.shape, weights[1].shape[1]
        padding = -inputs % ALIGNMENT if dtype.itemsize == 2 else 0
        lengths = lengths.contiguous()
        x_WSBI = x.new_empty(2, steps, batch, inputs + padding, dtype=dtype)
        order_inputs(x, x_WSBI, lengths)
        of_input_WGI, bias, weight_WGM, bias_WG = _copies(weights, padding, dtype)
        gates_WSBG = x_WSBI.new_empty(2, steps, batch, 3 * width)
        for way in (0, 1):
            out = gates_WSBG[way].flatten(0, 1)
            torch.addmm(bias[way], x_WSBI[way].flatten(0, 1), of_input_WGI[way].T, out=out)
        states_WSBM, more_SWBG = forward_steps(gates_WSBG, weight_WGM, bias_WG)
        result_BSWM = states_WSBM.new_empty(batch, steps, 2, width)
        reorder(result_BSWM, states_WSBM[:, 1:].transpose(0, 1), lengths, into=False, masked=True)
        ctx.save_for_backward(x_WSBI, lengths, of_input_WGI, weight_WGM, gates_WSBG, more_SWBG, states_WSBM)
        ctx.shape, ctx.dtypes = x.shape, (x.dtype, *(each.dtype for each in weights))
        first_BM = result_BSWM[:, 0, 1].clone() if steps else result_BSWM.new_zeros(batch, width)
        return result_BSWM.flatten(2), first_BM

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dresult: Tensor, dfirst: Tensor) -> tuple[Tensor | None, ...]:
        x_WSBI, lengths, of_input_WGI, weight_WGM, *buffers = ctx.saved_tensors
        (batch, steps, inputs), width = ctx.shape, weight_WGM.shape[2]
        dresult_BSWM = dresult.contiguous().view(batch, steps, 2, width)
        dstates_SWBM = dresult.new_empty(steps, 2, batch, width)
        reorder(dresult_BSWM, dstates_SWBM, lengths, into=True, masked=True, more_BC=dfirst.contiguous())
        dgates_WSBG, dmore_SBWG = backward_steps(dstates_SWBM, weight_WGM, *buffers)
        dgates_WRG = dgates_WSBG.flatten(1, 2)
        dx = dresult.new_empty(ctx.shape, dtype=ctx.dtypes[0])
        add_inputs(torch.bmm(dgates_WRG, of_input_WGI).view_as(x_WSBI), dx, lengths)
        dof_input = product_in_float32(dgates_WRG.transpose(1, 2), x_WSBI.flatten(1, 2))
        dof_input = first_columns(dof_input.flatten(0, 1), inputs).unflatten(0, (2, -1))
        dweights = weight_gradients(dmore_SBWG, buffers[2])
        # The gradients of both biases differ only for the gate n.
        dbias = column_sums(dgates_WRG).view(2, 3, width)
        dnew = column_sums(dmore_SBWG[..., 2 * width :].flatten(0, 1).transpose(0, 1))
        dbias_WG = torch.cat((dbias[:, :2], dnew[:, None]), 1)
        each = [
            (dof_input[way], dweights[way], dbias[way].flatten(), dbias_WG[way].flatten()) for way in (0, 1)
        ]
        gradients = (*each[0], *each[1])
        dparameters = [gradient.to(dtype) for gradient, dtype in zip(gradients, ctx.dtypes[1:], strict=True)]
        return dx, None, None, *dparameters


def order_inputs(x_BSI: Tensor, x_WSBC: Tensor, lengths: Tensor) -> None:
    """Copy the inputs to the order of the steps of each direction; see reorder().

    x_BSI: the inputs; its rows are contiguous. x_WSBC: contiguous; receives the rows, followed by columns of
    zeros. lengths: as in reorder().
    """
    if by_kernel(x_WSBC) and x_BSI.dtype != torch.float64:
        from regard.kernels.recurrent import step_order

        step_order.order_inputs(x_BSI if x_BSI.stride(2) == 1 else x_BSI.contiguous(), x_WSBC, lengths)
        return
    padded = functional.pad(x_BSI, (0, x_WSBC.shape[3] - x_BSI.shape[2])).to(x_WSBC.dtype)
    both_BSWC = padded[:, :, None].expand(-1, -1, 2, -1).contiguous()
    reorder(both_BSWC, x_WSBC.transpose(0, 1), lengths, into=True, masked=False)


def add_inputs(x_WSBC: Tensor, x_BSI: Tensor, lengths: Tensor) -> None:
    """Write the sum of both directions in the order of positions: the backward pass of order_inputs()."""
    if by_kernel(x_WSBC) and x_BSI.dtype != torch.float64:
        from regard.kernels.recurrent import step_order

        step_order.add_inputs(x_WSBC, x_BSI, lengths)
        return
    both_BSWC = x_WSBC.new_empty(*x_BSI.shape[:2], 2, x_WSBC.shape[3])
    reorder(both_BSWC, x_WSBC.transpose(0, 1), lengths, into=False, masked=False)
    x_BSI.copy_(both_BSWC[..., : x_BSI.shape[2]].sum(2))


def reorder(
    positions_BSWC: Tensor, by_step_SWBC: Tensor, lengths: Tensor, into: bool, masked: bool,
    more_BC: Tensor | None = None,
) -> None:  # fmt: skip
    """Copy rows from the order of positions to the order of steps, or back.

    The backward direction (w = 1) processes each sequence from its last token to its first, and then the
    padding. The forward direction processes the positions in their order.

    positions_BSWC: one row for each sequence, position and direction; contiguous.
    by_step_SWBC: one row for each step, direction and sequence; the rows can have any strides.
    lengths: number of tokens of each sequence, (B,), contiguous.
    into: whether to copy from positions to steps; otherwise from steps to positions.
    masked: whether to write 0 for the padding.
    more_BC: added to the first position of the backward direction, if it is not padding; contiguous. Only
        with `into` and `masked`.
    """
    if by_kernel(positions_BSWC):
        from regard.kernels.recurrent import step_order

        step_order.reorder(positions_BSWC, by_step_SWBC, lengths, into, masked, more_BC)
        return
    if more_BC is not None and positions_BSWC.shape[1]:
        positions_BSWC = positions_BSWC.clone()
        positions_BSWC[:, 0, 1] += more_BC
    position_S = torch.arange(positions_BSWC.shape[1], device=lengths.device)
    inside_BS = position_S < lengths[:, None]
    reversed_BS = torch.where(inside_BS, lengths[:, None] - 1 - position_S, position_S)
    index_BSW = torch.stack((position_S.expand_as(reversed_BS), reversed_BS), -1)
    by_step_BSWC = by_step_SWBC.permute(2, 0, 1, 3)
    source, target = (positions_BSWC, by_step_BSWC) if into else (by_step_BSWC, positions_BSWC)
    rows = source.gather(1, index_BSW[..., None].expand_as(source))
    target.copy_(torch.where(inside_BS[..., None, None], rows, 0.0) if masked else rows)


def _copies(weights: Sequence[Tensor], padding: int, dtype: torch.dtype) -> list[Tensor]:
    """Return weight_ih, padded with columns of zeros, bias_ih, weight_hh and bias_hh, for both directions."""
    rows, inputs = weights[0].shape
    of_input = weights[0].new_empty(2, rows, inputs + padding, dtype=dtype)
    weight_WGM = weights[1].new_empty(2, *weights[1].shape, dtype=dtype)
    for way in (0, 1):
        fill_columns(of_input[way], (weights[4 * way],))
        fill_columns(weight_WGM[way], (weights[4 * way + 1],))
    bias, bias_WG = (torch.stack((weights[at], weights[at + 4])).to(dtype) for at in (2, 3))
    return [of_input, bias, weight_WGM, bias_WG]
