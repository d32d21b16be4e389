"""A bidirectional GRU over padded sequences in training, with few kernels besides its steps.

One matrix product projects the inputs for both directions. Then one copy puts the gates in the order of the
steps: for the backward direction, from the last token of each sequence to the first. layers/gru.py contains
the equations and the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.dimensions import autocast_on
from regard.layers.gru import backward_steps, forward_steps
from regard.layers.joint_linear import product_in_float32

__all__ = ["bidirectional_gru"]

ALIGNMENT = 8
"""In half precision, the inputs are padded to a multiple of this number of columns, as tensor cores need."""


def bidirectional_gru(x: Tensor, lengths: Tensor, weights: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return the states of both directions, (B, S, 2 M), which are 0 on padding. The initial states are 0.

    x: (B, S, input_size), padded at the end. lengths: number of tokens of each sequence, (B,).
    weights: weight_ih, weight_hh, bias_ih and bias_hh of torch.nn.GRU, for each direction.

    >>> layer, x = torch.nn.GRU(3, 4, batch_first=True, bidirectional=True), torch.randn(2, 5, 3)
    >>> states = bidirectional_gru(x, torch.tensor([5, 5]), layer.all_weights)
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
    def forward(ctx: Any, x: Tensor, lengths: Tensor, dtype: torch.dtype, *weights: Tensor) -> Tensor:
        (batch, steps, inputs), width = x.shape, weights[1].shape[1]
        padding = -inputs % ALIGNMENT if dtype.itemsize == 2 else 0
        x_RI = functional.pad(x.flatten(0, 1).to(dtype), (0, padding))
        of_input, bias, weight_WGM, bias_WG = _copies(weights, padding, dtype)
        gates = torch.addmm(bias.flatten(), x_RI, of_input.T).view(-1, 3 * width)
        inside_BS, there_SWB, back_BSW = _places(lengths, batch, steps)
        gates_SRG = gates.index_select(0, there_SWB.flatten()).view(steps, 2 * batch, -1)
        states_SWBM, more_SRG = forward_steps(gates_SRG, weight_WGM, bias_WG)
        # Row 0 is an initial state, which is 0.
        rows = torch.where(inside_BS[..., None], back_BSW + 2 * batch, 0)
        ctx.save_for_backward(
            x_RI, of_input, weight_WGM, gates_SRG, more_SRG, states_SWBM, inside_BS, there_SWB, back_BSW
        )
        ctx.shape, ctx.dtypes = x.shape, (x.dtype, *(each.dtype for each in weights))
        return states_SWBM.view(-1, width).index_select(0, rows.flatten()).view(batch, steps, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dresult: Tensor) -> tuple[Tensor | None, ...]:
        x_RI, of_input, weight_WGM, *buffers, inside_BS, there_SWB, back_BSW = ctx.saved_tensors
        (batch, steps, inputs), width = ctx.shape, weight_WGM.shape[2]
        rows = torch.where(inside_BS[..., None], dresult, 0.0).view(-1, width)
        dstates_SRM = rows.index_select(0, there_SWB.flatten()).view(steps, 2 * batch, width)
        dgates_SRG, dmore, states = backward_steps(dstates_SRM, weight_WGM, *buffers)
        dgates = dgates_SRG.view(-1, 3 * width).index_select(0, back_BSW.flatten()).view(-1, 6 * width)
        dx = (dgates @ of_input)[:, :inputs].reshape(ctx.shape)
        dof_input = product_in_float32(dgates.T, x_RI)[:, :inputs].unflatten(0, (2, -1))
        dweight_WGM = product_in_float32(dmore.transpose(1, 2), states)
        wide = torch.promote_types(dgates.dtype, torch.float32)
        dbias, dbias_WG = dgates.sum(0, dtype=wide).view(2, -1), dmore.sum(1, dtype=wide)
        each = [(dof_input[way], dweight_WGM[way], dbias[way], dbias_WG[way]) for way in (0, 1)]
        gradients = (dx, *each[0], *each[1])
        own = [gradient.to(dtype) for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)]
        return own[0], None, None, *own[1:]


def _copies(weights: Sequence[Tensor], padding: int, dtype: torch.dtype) -> list[Tensor]:
    """Return weight_ih, padded with columns of zeros, bias_ih, weight_hh and bias_hh, for both directions."""
    rows, inputs = weights[0].shape
    of_input = weights[0].new_zeros(2 * rows, inputs + padding, dtype=dtype)
    of_input[:rows, :inputs], of_input[rows:, :inputs] = weights[0], weights[4]
    copies = [weights[at].new_empty(2, *weights[at].shape, dtype=dtype) for at in (2, 1, 3)]
    originals = [weights[at + 4 * way] for at in (2, 1, 3) for way in (0, 1)]
    torch._foreach_copy_([copy[way] for copy in copies for way in (0, 1)], originals)
    return [of_input, *copies]


def _places(lengths: Tensor, batch: int, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return which positions are not padding, and row indices that put the steps in order, and back.

    The rows of a tensor have one of two orders: sequence, position, direction (B, S, W), or step, direction,
    sequence (S, W, B). The backward direction processes each sequence from its last token to its first, and
    then the padding.

    Returns:
    inside_BS: True for positions that are not padding.
    there_SWB: for each row of the second order, its index in the first order.
    back_BSW: for each row of the first order, its index in the second order.
    """
    position_S = torch.arange(steps, device=lengths.device)
    row_B1 = torch.arange(batch, device=lengths.device)[:, None]
    inside_BS = position_S < lengths[:, None]
    reversed_BS = torch.where(inside_BS, lengths[:, None] - 1 - position_S, position_S)
    order_WBS = torch.stack((position_S.expand(batch, -1), reversed_BS))
    way_W11 = torch.arange(2, device=lengths.device)[:, None, None]
    there_WBS = (row_B1 * steps + order_WBS) * 2 + way_W11
    back_WBS = (order_WBS * 2 + way_W11) * batch + row_B1
    return inside_BS, there_WBS.permute(2, 0, 1), back_WBS.permute(1, 2, 0)
