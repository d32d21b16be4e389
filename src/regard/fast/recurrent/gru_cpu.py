"""Run the directions of a GRU layer over padded sequences on a CPU, with a custom backward pass.

On a CPU, torch.nn.GRU calls about 30 operators for each step and direction in training. Here, a step of both
directions takes 6 operators in the forward pass and 11 in the backward pass. The products with the inputs and
the gradients of the weights are computed for all steps at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["gru_on_cpu"]


def half_product(a: Tensor, b: Tensor, half: torch.dtype | None) -> Tensor:
    """Return the matrix product a @ b in float32, computed in the dtype `half` if it is not None.

    >>> half_product(torch.ones(2, 3), torch.ones(3, 1), torch.bfloat16).tolist()
    [[3.0], [3.0]]
    """
    if a.dim() > b.dim():  # as one product: for a transposed batch, `@` would repeat b for each of its rows
        return half_product(a.flatten(0, 1), b, half).unflatten(0, a.shape[:2])
    return a @ b if half is None else (in_half(a, half) @ in_half(b, half)).float()


def in_half(x: Tensor, half: torch.dtype | None) -> Tensor:
    """Return x in the dtype `half`, or unchanged if it is None."""
    return x if half is None else x.to(half)


def gru_on_cpu(
    x_BSI: Tensor, lengths: Tensor, weights: Sequence[Sequence[Tensor]], half: torch.dtype | None = None
) -> Tensor:
    """Run a GRU layer from a state of zeros; return the states (B, S, W M), which are 0 on padding.

    The equations are those of torch.nn.GRU. W is the number of directions, 1 or 2,
    and M is the width of the states. The second direction starts at the last token of each sequence.

    x_BSI: (B, S, I), the inputs, padded at the end.
    lengths: (B,), the number of tokens of each sequence.
    weights: for each direction, weight_ih, weight_hh, bias_ih and bias_hh, as in torch.nn.GRU.
    half: the dtype of the matrix products. None: that of the weights. Everything else stays in float32: a sum
        that is rounded at every step loses what it stores.

    >>> layer, x = torch.nn.GRU(3, 4, batch_first=True, bidirectional=True), torch.randn(2, 5, 3)
    >>> torch.allclose(gru_on_cpu(x, torch.tensor([5, 5]), layer.all_weights), layer(x)[0], atol=1e-6)
    True
    """
    return _CpuGru.apply(half, x_BSI, lengths, *(torch.stack(each) for each in zip(*weights, strict=True)))


class _CpuGru(torch.autograd.Function):
    """Forward and backward pass of gru_on_cpu().

    In the buffers, the steps of a direction are in the order in which it computes them. N = S B is the number
    of rows of a direction, and G = 3 M is the size of the gates r, z and n together.
    """

    @staticmethod
    def forward(
        ctx: Any, half: torch.dtype | None, x: Tensor, lengths: Tensor, of_input_WGI: Tensor,
        of_state_WGM: Tensor, *biases: Tensor,
    ) -> Tensor:  # fmt: skip
        (batch, steps, _), (ways, _, width) = x.shape, of_state_WGM.shape
        x_WSBI = _in_order(x.transpose(0, 1), ways)
        inputs_WNI, turned_WMG = x_WSBI.flatten(1, 2), in_half(of_state_WGM.transpose(1, 2), half)
        bias_W1G, state_bias_W1G = (each[:, None] for each in biases)
        gates_WNG = half_product(inputs_WNI, of_input_WGI.transpose(1, 2), half).add_(bias_W1G)
        gates_WSBG = gates_WNG.unflatten(1, (steps, batch))
        more_WSBG = torch.empty_like(gates_WSBG)
        states_SWBM = x.new_empty(steps + 1, ways, batch, width)
        states_SWBM[0] = 0
        inside = _inside(lengths, steps, ways)
        states = states_SWBM.unbind(0)
        for t, (gates, more) in enumerate(zip(gates_WSBG.unbind(1), more_WSBG.unbind(1), strict=True)):
            torch.add(half_product(states[t], turned_WMG, half), state_bias_W1G, out=more)
            both, new = gates[..., : 2 * width], gates[..., 2 * width :]
            both.add_(more[..., : 2 * width]).sigmoid_()
            new.addcmul_(both[..., :width], more[..., 2 * width :]).tanh_()
            torch.lerp(new, states[t], both[..., width:], out=states[t + 1])
            if inside is not None:
                states[t + 1].mul_(inside[t])
        ctx.save_for_backward(inputs_WNI, of_input_WGI, of_state_WGM, gates_WSBG, more_WSBG, states_SWBM)
        ctx.inside, ctx.half = inside, half
        directions = [each.flip(0) if way else each for way, each in enumerate(states_SWBM[1:].unbind(1))]
        return torch.cat(directions, 2).transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dstates_BSE: Tensor) -> tuple[Tensor | None, ...]:
        inputs_WNI, of_input_WGI, of_state_WGM, gates_WSBG, more_WSBG, states_SWBM = ctx.saved_tensors
        (ways, steps, batch, _), width = gates_WSBG.shape, of_state_WGM.shape[2]
        inside, half, step_WGM = ctx.inside, ctx.half, in_half(of_state_WGM, ctx.half)
        dstates_SBWM = dstates_BSE.transpose(0, 1).unflatten(2, (ways, width))
        dstates = torch.stack(
            [each.flip(0) if way else each for way, each in enumerate(dstates_SBWM.unbind(2))]
        )
        d_WSBC = gates_WSBG.new_empty(ways, steps, batch, 4 * width)  # of n, r, z, and of u_n = U_n h + b_n
        dmore_WSBG = d_WSBC[..., width:]
        buffers = (dstates, gates_WSBG, more_WSBG[..., 2 * width :], d_WSBC, dmore_WSBG)
        rows = list(zip(*(each.unbind(1) for each in buffers), strict=True))
        states, dstate = states_SWBM.unbind(0), torch.zeros_like(states_SWBM[0])
        for t in reversed(range(steps)):
            dafter_WBM, gates_WBG, more_WBM, d_WBC, dmore_WBG = rows[t]
            dstate.add_(dafter_WBM)
            if inside is not None:
                dstate.mul_(inside[t])
            _step_backward(dstate, gates_WBG, more_WBM, states[t], d_WBC)
            if t:
                dstate.add_(half_product(dmore_WBG, step_WGM, half))
        dmore_WNG = dmore_WSBG.flatten(1, 2)
        before_WNM = states_SWBM[:-1].transpose(0, 1).flatten(1, 2)
        dof_state = half_product(dmore_WNG.transpose(1, 2), before_WNM, half)
        # The gradients of n, r and z, in this order; the order of W_ih is r, z, n.
        dgates_WNG = d_WSBC[..., : 3 * width].flatten(1, 2)
        half_WNG = in_half(dgates_WNG, half)
        order = [of_input_WGI[:, 2 * width :], of_input_WGI[:, : 2 * width]]
        dx_WSBI = half_product(half_WNG, torch.cat(order, 1), half).unflatten(1, (steps, batch))
        dx_SBI = dx_WSBI[0] if ways == 1 else dx_WSBI[0] + dx_WSBI[1].flip(0)
        dof_input = half_product(half_WNG.transpose(1, 2), inputs_WNI, half).roll(-width, 1)
        dbias = dgates_WNG.sum(1).roll(-width, 1)
        return None, dx_SBI.transpose(0, 1), None, dof_input, dof_state, dbias, dmore_WNG.sum(1)


def _in_order(x_SBI: Tensor, ways: int) -> Tensor:
    """Return the inputs (W, S, B, I) in the order in which each direction reads them."""
    return torch.stack((x_SBI, x_SBI.flip(0)) if ways > 1 else (x_SBI,))


def _inside(lengths: Tensor, steps: int, ways: int) -> list[Tensor] | None:
    """Return for each step whether a direction reads a token, (W, B, 1); None if there is no padding."""
    if bool((lengths >= steps).all()):
        return None
    inside_SB1 = torch.arange(steps)[:, None, None] < lengths[:, None]
    return list(_in_order(inside_SB1, ways).unbind(1))


def _step_backward(dstate: Tensor, gates: Tensor, more: Tensor, state: Tensor, d: Tensor) -> None:
    """Compute the gradients of one step of all directions.

    dstate: (W, B, M), the gradient of the next state. It is multiplied by z, which gives the part of the
        gradient of the previous state that does not flow through the gates.
    gates: (W, B, 3 M), the activations r, z and n.
    more: (W, B, M), u_n.
    state: (W, B, M), the previous state.
    d: (W, B, 4 M), receives the gradients of n, r and z before their activation functions, and of u_n.
    """
    reset, keep, new = gates.chunk(3, 2)
    dnew, dreset, dkeep, dmore = d.chunk(4, 2)
    aten = torch.ops.aten
    aten.tanh_backward(torch.addcmul(dstate, dstate, keep, value=-1), new, grad_input=dnew)
    torch.mul(dnew, reset, out=dmore)
    aten.sigmoid_backward(dnew * more, reset, grad_input=dreset)
    aten.sigmoid_backward(torch.sub(state, new).mul_(dstate), keep, grad_input=dkeep)
    dstate.mul_(keep)
