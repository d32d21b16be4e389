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
from regard.kernels.kernel_choice import by_kernel

__all__ = ["backward_steps", "forward_steps", "gru_ways"]


def gru_ways(gates_WBSG: Tensor, weight_WGM: Tensor, bias_WG: Tensor) -> Tensor:
    """Run W independent GRUs, each over B sequences, and return the states (W, B, S, M) of all steps.

    The initial states are zero.

    r = sigma(x_r + u_r),  z = sigma(x_z + u_z),  n = tanh(x_n + r * u_n)
    h = (1 - z) * n + z * h_before,  where u = U h_before + b

    S is the number of steps, and M the width of the states.

    gates_WBSG: x = W_ih input + b_ih, the input part of the gates r, z, n for all steps, (W, B, S, 3 M).
    weight_WGM: U (weight_hh in torch), (W, 3 M, M).
    bias_WG: b (bias_hh in torch), (W, 3 M).

    >>> layer, x = torch.nn.GRU(3, 4, batch_first=True), torch.randn(2, 5, 3)
    >>> gates = torch.nn.functional.linear(x, layer.weight_ih_l0, layer.bias_ih_l0)
    >>> states = gru_ways(gates[None], layer.weight_hh_l0[None], layer.bias_hh_l0[None])
    >>> torch.allclose(states[0], layer(x)[0], atol=1e-6)
    True
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

    There are W GRUs with B sequences each, so R = W B sequences in total, and S steps. M is the width of the
    states, and G = 3 M the size of the gates r, z, n together. The first dimension of the buffers is S.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight_WGM: Tensor, bias_WG: Tensor) -> Tensor:
        gates_SRG = gates.permute(2, 0, 1, 3).clone(memory_format=torch.contiguous_format).flatten(1, 2)
        states_SWBM, more_SRG = forward_steps(gates_SRG, weight_WGM, bias_WG)
        ctx.save_for_backward(weight_WGM, gates_SRG, more_SRG, states_SWBM)
        return states_SWBM[1:].permute(1, 2, 0, 3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dstates: Tensor) -> tuple[Tensor, ...]:
        weight_WGM, *buffers = ctx.saved_tensors
        ways, rows, _, _ = dstates.shape
        dstates_SRM = dstates.permute(2, 0, 1, 3).contiguous().flatten(1, 2)
        dgates_SRG, dmore, states = backward_steps(dstates_SRM, weight_WGM, *buffers)
        dgates = dgates_SRG.unflatten(1, (ways, rows)).permute(1, 2, 0, 3)
        return dgates, dmore.transpose(1, 2) @ states, dmore.sum(1)


def forward_steps(gates_SRG: Tensor, weight_WGM: Tensor, bias_WG: Tensor) -> tuple[Tensor, Tensor]:
    """Run all steps; return the states (S + 1, W, B, M), with the initial states, and u, (S, R, 3 M).

    gates_SRG: the input part of the gates, overwritten with the activations r, z, n.
    """
    (ways, _, width), (steps, total, _) = weight_WGM.shape, gates_SRG.shape
    rows = total // ways
    states_SWBM = gates_SRG.new_zeros(steps + 1, ways, rows, width)
    more_SWBG = gates_SRG.new_empty(steps, ways, rows, 3 * width)
    turned_WMG = weight_WGM.transpose(1, 2)
    states_SRM, more_SRG = states_SWBM.flatten(1, 2), more_SWBG.flatten(1, 2)
    for t in range(steps):
        torch.bmm(states_SWBM[t], turned_WMG, out=more_SWBG[t])
        gru(gates_SRG[t], more_SRG[t], bias_WG, states_SRM[t], states_SRM[t + 1], rows)
    return states_SWBM, more_SRG


def backward_steps(
    dstates_SRM: Tensor, weight_WGM: Tensor, gates_SRG: Tensor, more_SRG: Tensor, states_SWBM: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Backward pass of forward_steps(), without the gradients of the weights.

    Returns the gradients of the input part of the gates, (S, R, 3 M), the gradients of u, (W, S B, 3 M), and
    the states before each step, (W, S B, M).
    """
    steps, ways, rows = len(gates_SRG), len(weight_WGM), states_SWBM.shape[2]
    # dmore is the gradient of U h. It has a separate matrix for each gate of each GRU (Q = 3 W matrices), so
    # that more of the device works in parallel. The products of these matrices with U are three partial sums
    # of the gradient of h for each GRU. The next iteration adds them.
    dmore_SQBM = gates_SRG.new_empty(steps, 3 * ways, rows, weight_WGM.shape[2])
    weight_QMM = weight_WGM.unflatten(1, (3, -1)).flatten(0, 1)
    dgates_SRG, states_SRM = torch.empty_like(gates_SRG), states_SWBM.flatten(1, 2)
    d_RM, parts_QBM = torch.zeros_like(states_SRM[0]), torch.zeros_like(dmore_SQBM[0])
    for t in reversed(range(steps)):
        buffers = gates_SRG[t], more_SRG[t], states_SRM[t], dgates_SRG[t], dmore_SQBM[t]
        d_RM = gru_backward(parts_QBM, d_RM, dstates_SRM[t], *buffers)
        if t:
            parts_QBM = torch.bmm(dmore_SQBM[t], weight_QMM)
    # Join steps and sequences in one dimension: (W, S B, 3 M).
    dmore = dmore_SQBM.unflatten(1, (ways, 3)).permute(1, 0, 3, 2, 4).flatten(3, 4).flatten(1, 2)
    return dgates_SRG, dmore, states_SWBM[:-1].transpose(0, 1).flatten(1, 2)


def gru(gates: Tensor, more: Tensor, bias_WG: Tensor, state: Tensor, after: Tensor, rows: int) -> None:
    """Compute one step of W GRUs with B sequences each, in place; see gru_ways() for the equations.

    M is the width of the states, and R = W B the number of sequences in total.

    gates: (R, 3 M). On entry, it contains x, the input part of the gates. It is overwritten with the
        activations r, z, n.
    more: (R, 3 M). On entry, it contains U h. On return, the last third contains u_n, which the backward pass
        needs. The other two thirds are undefined.
    bias_WG: (W, 3 M), the bias b of each GRU.
    state: (R, M), the previous state h.
    after: (R, M), receives the next state.
    rows: B, number of sequences of each GRU.
    """
    if by_kernel(state):
        from regard.kernels import recurrent_cells

        recurrent_cells.gru(gates, more, bias_WG, state, after, rows)
        return
    width = state.shape[1]
    more.unflatten(0, (-1, rows)).add_(bias_WG[:, None])
    both, new = gates[:, : 2 * width], gates[:, 2 * width :]
    both.add_(more[:, : 2 * width]).sigmoid_()
    new.addcmul_(both[:, :width], more[:, 2 * width :]).tanh_()
    torch.lerp(new, state, both[:, width:], out=after)


def gru_backward(
    parts_QBM: Tensor, dstate: Tensor, dafter: Tensor, gates: Tensor, more: Tensor, state: Tensor,
    dgates: Tensor, dmore_QBM: Tensor,
) -> Tensor:  # fmt: skip
    """Backward pass of gru(): compute the gradients of the input part x and of u = U h + b.

    There are W GRUs with B sequences and 3 gates each; R = W B, Q = 3 W, and M is the width of the state.

    parts_QBM, dstate, dafter: three tensors. Their sum is the gradient of the next state. parts_QBM is first
        summed over the 3 gates of each GRU.
    gates: (R, 3 M), the activations r, z, n.
    more: (R, 3 M), from gru(), with u_n in the last third.
    state: (R, M), the previous state h.
    dgates: (R, 3 M), receives the gradient of x.
    dmore_QBM: receives the gradient of u, with a separate matrix for each GRU and gate.

    Returns the part of the gradient of the previous state that flows through z * h.
    """
    if by_kernel(state):
        from regard.kernels import recurrent_cells

        return recurrent_cells.gru_backward(parts_QBM, dstate, dafter, gates, more, state, dgates, dmore_QBM)
    width = state.shape[1]
    reset, keep, new = gates.split(width, 1)
    dstate = parts_QBM.unflatten(0, (-1, 3)).sum(1).flatten(0, 1) + dstate + dafter
    dnew = torch.ops.aten.tanh_backward(dstate * (1 - keep), new)
    dkeep = torch.ops.aten.sigmoid_backward(dstate * (state - new), keep)
    dreset = torch.ops.aten.sigmoid_backward(dnew * more[:, 2 * width :], reset)
    torch.cat((dreset, dkeep, dnew), 1, out=dgates)
    by_ways = dmore_QBM.unflatten(0, (-1, 3)).transpose(0, 1)
    for target, gradient in zip(by_ways, (dreset, dkeep, dnew * reset), strict=True):
        target.copy_(gradient.unflatten(0, (len(target), -1)))
    return dstate * keep
