"""Run several independent GRUs over whole sequences at once, with a custom backward pass.

The GRUs can be the two directions of a bidirectional layer, for example. Their equations are the equations of
torch.nn.GRU. Each step computes one batched matrix product for all GRUs. The backward pass computes the
gradients of the weights after its last step, with one matrix product. Under autocast, all of this runs in the
autocast dtype. The GRU of cuDNN is not used, because under autocast it computes in float16, in which small
gradients underflow.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.dimensions import autocast_on
from regard.fast.joint_linear import product_in_float32

__all__ = ["gru_ways"]


def gru_ways(gates_WBSG: Tensor, weight_WGM: Tensor, bias_WG: Tensor) -> Tensor:
    """Run W independent GRUs, each over B sequences, and return the states (W, B, S, M) of all steps.

    The initial states are zero.

    r = sigma(x_r + u_r),  z = sigma(x_z + u_z),  n = tanh(x_n + r * u_n)
    h = (1 - z) * n + z * h_before,  where u = U h_before + b

    S is the number of steps, and M the width of the states.

    gates_WBSG: x = W_ih input + b_ih, the input part of the gates r, z, n for all steps, (W, B, S, 3 M).
    weight_WGM: U (weight_hh in torch), (W, 3 M, M).
    bias_WG: b (bias_hh in torch), (W, 3 M).
    """
    device = gates_WBSG.device.type
    if not autocast_on(device):
        return _Ways.apply(gates_WBSG, weight_WGM, bias_WG)
    dtype = torch.get_autocast_dtype(device)
    tensors = (each.to(dtype) for each in (gates_WBSG, weight_WGM, bias_WG))
    with torch.autocast(device, enabled=False):
        return _Ways.apply(*tensors)


class _Ways(torch.autograd.Function):
    """Forward and backward pass of gru_ways(), over all steps.

    There are W GRUs with B sequences each, and S steps. M is the width of the states, and G = 3 M the size of
    the gates r, z, n together. The first dimension of most buffers is S.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight_WGM: Tensor, bias_WG: Tensor) -> Tensor:
        gates_WSBG = gates.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        states_WSBM, more_SWBG = forward_steps(gates_WSBG, weight_WGM, bias_WG)
        ctx.save_for_backward(weight_WGM, gates_WSBG, more_SWBG, states_WSBM)
        return states_WSBM[:, 1:].transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dstates: Tensor) -> tuple[Tensor, ...]:
        weight_WGM, *buffers = ctx.saved_tensors
        dstates_SWBM = dstates.permute(2, 0, 1, 3).contiguous()
        dgates_WSBG, dmore_SBWG = backward_steps(dstates_SWBM, weight_WGM, *buffers)
        dmore_WGR = dmore_SBWG.flatten(0, 1).permute(1, 2, 0)
        dweight = product_in_float32(dmore_WGR, buffers[2][:, :-1].flatten(1, 2))  # not rounded
        return dgates_WSBG.transpose(1, 2), dweight.to(weight_WGM.dtype), dmore_SBWG.sum((0, 1))


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
