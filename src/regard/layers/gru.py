"""The GRU of torch over whole sequences, several of them side by side, its gradient written out.

Two directions are one matrix product a step; the gradients of the weights are one product behind the last
step. All in one precision, where cuDNN's under autocast would be float16, in which small gradients vanish.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.dimensions import autocast_on
from regard.kernels.kernel_choice import by_kernel

__all__ = ["gru_ways"]


def gru_ways(gates_WBSG: Tensor, weight_WGM: Tensor, bias_WG: Tensor) -> Tensor:
    """The states (W, B, S, M) of W GRUs side by side, each from 0 over B sequences of its own.

    r, z = sigma(x + u),  n = tanh(x_n + r * u_n),  h = (1 - z) * n + z * h_before,  u = U h_before + b

    gates_WBSG: x = W x + b of all steps, as r, z, n. weight_WGM: U. bias_WG: its b.

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
    """Time comes first, and the rows of all ways one after the other."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight_WGM: Tensor, bias_WG: Tensor) -> Tensor:
        ways, rows, steps, _ = gates.shape
        width = weight_WGM.shape[2]
        gates_SRG = gates.permute(2, 0, 1, 3).clone(memory_format=torch.contiguous_format).flatten(1, 2)
        states_SWBM = gates.new_zeros(steps + 1, ways, rows, width)
        more_SWBG = gates.new_empty(steps, ways, rows, 3 * width)
        turned_WMG = weight_WGM.transpose(1, 2)
        states_SRM, more_SRG = states_SWBM.flatten(1, 2), more_SWBG.flatten(1, 2)
        for t in range(steps):
            torch.bmm(states_SWBM[t], turned_WMG, out=more_SWBG[t])
            gru(gates_SRG[t], more_SRG[t], bias_WG, states_SRM[t], states_SRM[t + 1], rows)
        ctx.save_for_backward(weight_WGM, gates_SRG, more_SRG, states_SWBM)
        return states_SWBM[1:].permute(1, 2, 0, 3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dstates: Tensor) -> tuple[Tensor, ...]:
        weight_WGM, gates_SRG, more_SRG, states_SWBM = ctx.saved_tensors
        ways, rows, steps, _ = dstates.shape
        dstates_SRM = dstates.permute(2, 0, 1, 3).contiguous().flatten(1, 2)
        # U h by gates, W ways of three: their products with U are parts of a sum, which the next step puts
        # together: more of the device has work to do.
        dmore_SQBM = gates_SRG.new_empty(steps, 3 * ways, rows, weight_WGM.shape[2])
        weight_QMM = weight_WGM.unflatten(1, (3, -1)).flatten(0, 1)
        dgates_SRG, states_SRM = torch.empty_like(gates_SRG), states_SWBM.flatten(1, 2)
        d_RM, parts_QBM = torch.zeros_like(states_SRM[0]), torch.zeros_like(dmore_SQBM[0])
        for t in reversed(range(steps)):
            given = gates_SRG[t], more_SRG[t], states_SRM[t], dgates_SRG[t], dmore_SQBM[t]
            d_RM = gru_backward(parts_QBM, d_RM, dstates_SRM[t], *given)
            if t:
                parts_QBM = torch.bmm(dmore_SQBM[t], weight_QMM)
        # By ways, with steps and rows side by side.
        dmore = dmore_SQBM.unflatten(1, (ways, 3)).permute(1, 0, 3, 2, 4).flatten(3, 4).flatten(1, 2)
        states = states_SWBM[:-1].transpose(0, 1).flatten(1, 2)
        dgates = dgates_SRG.unflatten(1, (ways, rows)).permute(1, 2, 0, 3)
        return dgates, dmore.transpose(1, 2) @ states, dmore.sum(1)


def gru(gates: Tensor, more: Tensor, bias_WG: Tensor, state: Tensor, after: Tensor, rows: int) -> None:
    """One step: r, z and n in place of what they took from the input; in the last third of `more`, which is
    U h, what n was given of it; the state after it. rows: of each way, for its bias."""
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
    """The gradient of gru(), for the sum of the first three: that of W x + b, that of U h + b by ways and
    gates, and, given back, what goes straight to the state before."""
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
    for place, found in zip(by_ways, (dreset, dkeep, dnew * reset), strict=True):
        place.copy_(found.unflatten(0, (len(place), -1)))
    return dstate * keep
